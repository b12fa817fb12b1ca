"""Reads the event files of a run with TensorBoard's own reader, and compares them with the run's metrics.jsonl.

    python3 -m venv ~/tensorboard_venv
    ~/tensorboard_venv/bin/pip install tensorboard "setuptools<81"
    ~/tensorboard_venv/bin/python tests/parity/check_tensorboard.py [RUN]

RUN is the folder of a run with telemetry.sinks.tensorboard=tensorboard. Without it, the script trains one with
.out/bin/tools/train. This run resumes from a checkpoint before its end, so that its second event file says some steps
again. Fails if TensorBoard shows a step, a tag, a time or a value that metrics.jsonl does not have, or lacks one.
"""

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.util import tensor_util

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The fields of a step by their tags. Fields that are 0 because nothing is known of them have no tag.
STEP_TAGS = {"train/loss": "loss", "train/gradient_norm": "grad_norm", "train/learning_rate": "learning_rate",
             "train/tokens": "tokens", "speed/tokens_per_second": "tokens_per_second",
             "speed/seconds_per_step": "seconds", "speed/mfu": "mfu", "memory/peak_bytes": "peak_bytes_measured"}
JOB = """
model { decoder { width: 16 layers: 1 heads: 2 hidden: 24 } }
data { path: "text.txt" evaluation_fraction: 0.2 }
batch { global_batch: 4 micro_batch: 2 sequence_length: 8 }
lr_schedule { steps: 12 }
checkpoint { every_steps: 5 }
telemetry { run_folder: "run" evaluate_every: 4 evaluation_sequences: 4 sinks { tensorboard: "tensorboard" } }
"""


def train(folder):
    """Trains in `folder`, goes on from a checkpoint before the last one, and returns the folder of the run."""
    (folder / "job.textproto").write_text(JOB)
    (folder / "text.txt").write_text("the quick brown foxes jump over the lazy dog.\n" * 60)

    def call(*arguments):
        subprocess.run([ROOT / ".out/bin/tools/train", "--job=job.textproto", *arguments], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)

    call("--set=lr_schedule.steps=8")
    shutil.rmtree(folder / "run/checkpoints/step-0000000008")
    call("--resume=auto")
    return folder / "run"


def wanted(run):
    """Returns {tag: {step: value}} of metrics.jsonl, with values rounded to fp32 as event files have them."""
    values = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        if "evaluation_loss" in fields:
            found = {"evaluation/loss": fields["evaluation_loss"]}
        else:
            found = {tag: fields[name] for tag, name in STEP_TAGS.items() if name != "mfu" or fields[name] > 0}
            found.update({f"metrics/{name}": value for name, value in fields.get("metrics", {}).items()})
        for tag, value in found.items():
            values.setdefault(tag, {})[fields["step"]] = struct.unpack("f", struct.pack("f", value))[0]
    return values


def shown(run):
    """Returns {tag: {step: value}} as TensorBoard shows them, and the number of event files."""
    folder = run / "tensorboard"
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRun(str(folder), "run")
    multiplexer.Reload()
    values = {}
    for tag in multiplexer.Runs()["run"]["tensors"]:
        events = multiplexer.Tensors("run", tag)
        times = [event.wall_time for event in events]
        if times != sorted(times):
            sys.exit(f"{tag}: the times do not ascend: {times}")
        values[tag] = {event.step: tensor_util.make_ndarray(event.tensor_proto).item() for event in events}
        if len(values[tag]) != len(events):
            sys.exit(f"{tag}: TensorBoard shows a step twice: {[event.step for event in events]}")
    return values, len(list(folder.iterdir()))


def compare(run):
    found, files = shown(run)
    expected = wanted(run)
    if not expected or found.keys() != expected.keys():
        sys.exit(f"tags: TensorBoard shows {sorted(found)}, metrics.jsonl has {sorted(expected)}")
    for tag, values in expected.items():
        if found[tag] != values:
            apart = sorted(step for step in values.keys() | found[tag].keys()
                           if values.get(step) != found[tag].get(step))
            step = apart[0]
            sys.exit(f"{tag}: {len(apart)} steps differ; step {step}: TensorBoard shows {found[tag].get(step)}, "
                     f"metrics.jsonl has {values.get(step)}")
    count = sum(len(values) for values in expected.values())
    print(f"{run}: TensorBoard shows the {count} values of metrics.jsonl under {len(expected)} tags, in "
          f"{files} event files")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, nargs="?")
    run = parser.parse_args().run
    if run is not None:
        compare(run)
        return
    with tempfile.TemporaryDirectory(prefix="check_tensorboard.") as folder:
        compare(train(pathlib.Path(folder)))


if __name__ == "__main__":
    main()

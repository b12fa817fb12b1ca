#!/usr/bin/env python3
"""Imports a Hugging Face folder, trains it, stops and resumes the run, and exports the result."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

_TRAIN = os.path.abspath("tools/train")
_EXPORT = os.path.abspath("tools/export")
_GOLDENS = os.path.abspath("tests/parity/golden/hf")
_VOCABULARY = 61

_JOB = """
name: "tuned"
model { hf_folder: "model" }
data { path: "tokens.bin" order: SEQUENTIAL }
batch { global_batch: 3 micro_batch: 1 sequence_length: 16 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-3 }
lr_schedule { steps: 4 }
checkpoint { every_steps: 2 }
telemetry { peak_flops: 1e11 }
"""


def read_safetensors(folder, prefix="model"):
    """Returns a map from name to (dtype, shape, bytes) for the tensors of all files in the folder."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.startswith(prefix) or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        for tensor, entry in json.loads(data[8:8 + size]).items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[tensor] = (entry["dtype"], entry["shape"], data[8 + size + begin:8 + size + end])
    return tensors


def flip_last_bit(path):
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


class ExportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("job.textproto"), "w", encoding="utf-8") as job:
            job.write(_JOB)
        tokens = [i * i % _VOCABULARY for i in range(2000)]
        with open(self.path("tokens.bin"), "wb") as out:
            out.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
            out.write(struct.pack("<%dH" % len(tokens), *tokens))

    def path(self, name):
        return os.path.join(self.folder, name)

    def take(self, family):
        shutil.rmtree(self.path("model"), ignore_errors=True)
        shutil.copytree(os.path.join(_GOLDENS, family), self.path("model"),
                        ignore=shutil.ignore_patterns("golden.safetensors"))
        os.chmod(self.path("model"), 0o755)
        with open(self.path("model/tokenizer.json"), "wb") as tokenizer:
            tokenizer.write(b'{"version": "1.0",\r\n "model": {}}  ')

    def call(self, *arguments):
        return subprocess.run(arguments, cwd=self.folder, capture_output=True, timeout=120, check=False)

    def train(self, *arguments):
        return self.call(_TRAIN, "--job=job.textproto", *arguments)

    def expect_ok(self, result):
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout.decode()

    def test_every_family_comes_out_as_it_went_in_but_for_what_it_learned(self):
        for family in sorted(os.listdir(_GOLDENS)):
            if not os.path.isdir(os.path.join(_GOLDENS, family)):
                continue
            with self.subTest(family=family):
                self.take(family)
                for name in ("runs", "out", "same"):
                    shutil.rmtree(self.path(name), ignore_errors=True)
                # With a tiny learning rate nothing is learned: every exported tensor has the bits of the imported one.
                self.expect_ok(self.train("--set=lr_schedule.steps=1", "--set=optimizer.learning_rate=1e-30",
                                          "--set=telemetry.run_folder=runs/same"))
                before = read_safetensors(self.path("model"))
                dtypes = {entry[0] for entry in before.values()}
                self.assertEqual(len(dtypes), 1)
                self.expect_ok(self.call(_EXPORT, "--run=runs/same", "--out=same", "--dtype=" + dtypes.pop()))
                same = read_safetensors(self.path("same"))
                self.assertEqual(sorted(before), sorted(same))
                for name, (dtype, shape, data) in before.items():
                    self.assertEqual((dtype, shape), same[name][:2], name)
                    self.assertTrue(data == same[name][2], name)
                self.assertEqual(json.load(open(self.path("same/config.json"), encoding="utf-8"))["model_type"],
                                 json.load(open(self.path("model/config.json"), encoding="utf-8"))["model_type"])
                # After real training the values differ. Exports them in another dtype and in several files.
                self.expect_ok(self.train())
                self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=out", "--dtype=BF16",
                                         "--max_file_bytes=3000"))
                out = read_safetensors(self.path("out"))
                self.assertEqual(sorted(before), sorted(out))
                self.assertEqual({entry[0] for entry in out.values()}, {"BF16"})
                self.assertTrue(os.path.exists(self.path("out/model.safetensors.index.json")))
                self.assertEqual(open(self.path("out/tokenizer.json"), "rb").read(),
                                 open(self.path("model/tokenizer.json"), "rb").read())

    def test_adapters_go_out_alone_or_merged_and_come_back(self):
        self.take("llama")
        adapter = "--set=model.adapter={rank: 3 alpha: 6 targets: \"q_proj\" targets: \"down_proj\""
        self.expect_ok(self.train("--set=optimizer.learning_rate=1e-2", adapter + "}"))
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=alone", "--adapter"))
        alone = read_safetensors(self.path("alone"), "adapter_model")
        self.assertEqual(sorted(alone), sorted(
            f"base_model.model.model.layers.{i}.{module}.lora_{side}.weight"
            for i in range(2) for module in ("self_attn.q_proj", "mlp.down_proj") for side in "AB"))
        self.assertTrue(all(any(data) for _, _, data in alone.values()))
        config = json.load(open(self.path("alone/adapter_config.json"), encoding="utf-8"))
        self.assertEqual((config["r"], config["lora_alpha"], config["target_modules"]), (3, 6, ["down_proj", "q_proj"]))

        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=merged"))
        before, merged = read_safetensors(self.path("model")), read_safetensors(self.path("merged"))
        self.assertEqual(sorted(before), sorted(merged))
        for name, entry in before.items():
            self.assertEqual(entry == merged[name], "q_proj" not in name and "down_proj" not in name, name)

        # The checkpoints leave the base out. Another one in its place is refused; a copy elsewhere is as good.
        shutil.copytree(self.path("model"), self.path("copy"))
        flip_last_bit(self.path("model/model-00002-of-00003.safetensors"))
        for tool, arguments in ((_EXPORT, ["--run=runs/tuned", "--out=changed"]),
                                (_EXPORT, ["--run=runs/tuned", "--out=changed", "--plain"]),
                                (_TRAIN, ["--job=job.textproto", adapter + "}", "--resume=latest"])):
            refused = self.call(tool, *arguments)
            self.assertEqual(refused.returncode, 2, refused.stderr.decode())
            self.assertRegex(refused.stderr.decode(), r"holds adapters of another base: they were trained on .*/model "
                             r"with digest [0-9a-f]{16}, and .*/model now has weights with digest [0-9a-f]{16}; name")
        self.assertFalse(os.path.exists(self.path("changed")))
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=with_copy", "--base=copy"))
        self.assertEqual(read_safetensors(self.path("with_copy")), merged)
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=plain", "--plain", "--base=copy"))
        shutil.rmtree(self.path("model"))
        gone = self.call(_EXPORT, "--run=runs/tuned", "--out=changed")
        self.assertEqual(gone.returncode, 2)
        self.assertRegex(gone.stderr.decode(), r"holds adapters alone, and their base cannot be read: .*/model.*: put "
                         r"it back, or name another folder \(--base=FOLDER\)")
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=needs_no_base", "--adapter"))
        shutil.move(self.path("copy"), self.path("model"))

        # A run that begins with these adapters, and learns nothing, gives them back.
        self.expect_ok(self.train("--set=lr_schedule.steps=1", "--set=optimizer.learning_rate=1e-30",
                                  "--set=telemetry.run_folder=runs/same", adapter + " folder: \"alone\"}"))
        self.expect_ok(self.call(_EXPORT, "--run=runs/same", "--out=again", "--adapter"))
        self.assertEqual(read_safetensors(self.path("again"), "adapter_model"), alone)

        for arguments, message in (
                (["--set=model.adapter={rank: 4 alpha: 6 folder: \"alone\"}"],
                 r"alone holds adapters of rank 3, alpha 6, the job has rank 4, alpha 6; give those of the folder"),
                (["--set=model.adapter={rank: 3 alpha: 6 folder: \"alone\"}"],
                 r"k_proj\.lora_A\.weight: missing, wanted \[3, 24\]"),
                (["--set=model.adapter={rank: 3 alpha: 6 folder: \"model\"}"], r"adapter_config\.json")):
            result = self.train("--set=telemetry.run_folder=runs/wrong", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr.decode())
            self.assertRegex(result.stderr.decode(), message)

    def test_dropout_that_files_ask_for_is_said_at_the_start_and_once(self):
        # Regression: dropout in config.json and in adapter_config.json was ignored without a word.
        self.take("gpt2")
        with open(self.path("model/config.json"), encoding="utf-8") as file:
            config = json.load(file)
        adapter = ("--set=model.adapter={rank: 40 folder: \"adapter\"}", "--set=telemetry.run_folder=runs/adapted")
        # The rank is larger than both sides of a layer, 24 and 72.
        self.expect_ok(self.train("--set=model.adapter={rank: 40}"))
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=adapter", "--adapter"))
        with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
            json.dump(config | {"attn_pdrop": 0.1}, file)
        with open(self.path("adapter/adapter_config.json"), encoding="utf-8") as file:
            of_adapter = json.load(file)
        self.assertEqual(of_adapter["r"], 40)
        with open(self.path("adapter/adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump(of_adapter | {"lora_dropout": 0.05}, file)
        said = self.expect_ok(self.train(*adapter))
        for file, dropout in (("model/config.json", "attn_pdrop 0.1"), ("adapter/adapter_config.json",
                                                                        "lora_dropout 0.05")):
            wanted = f"{self.path(file)} asks for dropout in training ({dropout}); Shale trains without\n"
            self.assertEqual(said.count(wanted), 1, said)
        again = self.expect_ok(self.train(*adapter, "--set=lr_schedule.steps=5", "--resume=latest"))
        self.assertNotIn("dropout", again)

    def test_a_run_needs_its_folder_only_at_the_start(self):
        self.take("qwen3")
        self.expect_ok(self.train("--set=telemetry.run_folder=straight"))
        self.expect_ok(self.train())
        shutil.rmtree(self.path("runs/tuned/checkpoints/step-0000000004"))
        shutil.move(self.path("model"), self.path("gone"))
        output = self.expect_ok(self.call(_TRAIN, "--job=runs/tuned/job.textproto", "--resume=latest"))
        self.assertIn("after step 2", output)
        losses = [[json.loads(line)["loss"] for line in open(self.path(run + "/metrics.jsonl"), encoding="utf-8")]
                  for run in ("straight", "runs/tuned")]
        self.assertEqual(losses[0], losses[1])
        self.expect_ok(self.call(_EXPORT, "--run=runs/tuned", "--out=out"))
        self.assertEqual(open(self.path("out/tokenizer.json"), "rb").read(),
                         open(self.path("gone/tokenizer.json"), "rb").read())
        # A changed tokenizer makes it a different run, which cannot resume.
        shutil.move(self.path("gone"), self.path("model"))
        with open(self.path("model/tokenizer.json"), "ab") as tokenizer:
            tokenizer.write(b" ")
        other = self.train("--resume=latest")
        self.assertEqual(other.returncode, 2)
        self.assertRegex(other.stderr.decode(), r"its tokens are of .*tokenizer\.json \w{8}\", those of this run")

    def test_what_does_not_go_together_is_refused(self):
        self.take("llama")
        for arguments, message in (
                (["--set=model.hf_folder=nowhere"], r"model\.hf_folder: .*nowhere.*No such file"),
                (["--set=model.decoder.width=32", "--set=model.decoder.layers=1", "--set=model.decoder.heads=2",
                  "--set=model.decoder.vocabulary=61"], r"holds a model that differs from the job's: it has \""),
                (["--set=batch.sequence_length=100000"], r"max_positions")):
            result = self.train(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertRegex(result.stderr.decode(), message)
            self.assertFalse(os.path.exists(self.path("runs/tuned")), arguments)
        os.remove(self.path("model/model-00002-of-00003.safetensors"))
        missing = self.train()
        self.assertEqual(missing.returncode, 2)
        self.assertRegex(missing.stderr.decode(), r"model-00002-of-00003\.safetensors")

    def test_export_says_what_it_misses(self):
        nothing = self.call(_EXPORT, "--run=nowhere", "--out=out")
        self.assertEqual(nothing.returncode, 2)
        self.assertRegex(nothing.stderr.decode(), r"there is no checkpoint in nowhere/checkpoints")
        self.take("gpt2")
        self.expect_ok(self.train("--set=lr_schedule.steps=1"))
        for arguments, message in ((["--dtype=F64"], r"allowed: F32, BF16, F16"),
                                   (["--checkpoint=x"], r'--checkpoint: found "x"; allowed: newest, best'),
                                   (["--adapter"], r"the model has no adapters \(model\.adapter\)"),
                                   (["--plain", "--merge"], r"at most one of --plain, --merge and --adapter"),
                                   ([], r"model is not empty|model.*exist")):
            result = self.call(_EXPORT, "--run=runs/tuned", "--out=model", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr.decode())
            self.assertRegex(result.stderr.decode(), message)


if __name__ == "__main__":
    unittest.main(verbosity=2)

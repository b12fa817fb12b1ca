"""Defines the kinds of contestants: how the program of each is started, and how its output becomes a result.

A result is a dict: `seconds` of each step that counts (the mean, where several steps are timed as one), `first_loss`,
`parameters`, `tokens_per_step`, `peak_rss_bytes` (summed over all processes of the contestant), and further keys that
depend on the kind of contestant.
"""

import contextlib
import json
import os
import re
import shutil
import socket

from bench.train import process, workloads

# Tells the allocator to use huge pages, and never to return memory to the system.
_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "536870912",
              "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Contestant:
    """One of the programs that are compared, with its settings. `about` is its line in --list. `first_only` contestants
    compare variants of the engine and run only on the first workload. `extra` contestants belong to no target and run
    only when --only names them, or their `group`. If `only_on` is set, it lists the workloads that they run on."""
    about = ""
    first_only = False
    extra = False
    group = ""
    only_on = ()
    only_in = ()

    def runs_on(self, workload):
        """Returns whether the contestant is measured on the workload, in its precision."""
        return ((not self.first_only or workload.name == workloads.FIRST) and
                (not self.only_on or workload.name in self.only_on) and
                (not self.only_in or workload.precision in self.only_in))

    def run(self, workload, place, steps, warmup, name, turn=None):
        """Measures once and returns a result. Names its files by `name`. Takes turns with others if `turn` is given.
        Raises process.Failed if a process fails."""
        raise NotImplementedError


class Shale(Contestant):
    """Runs tools/train as a user does."""

    def __init__(self, about, ranks=1, micro_batches=None, more=(), each=1, traced=False, first_only=False,
                 processes=1):
        """`each` steps are timed together, and the result has their mean. The ranks are threads of so many
        `processes`."""
        self.about, self.first_only, self.processes, self.extra = about, first_only, processes, processes > 1
        self.ranks, self.micro_batches, self.more, self.each, self.traced = ranks, micro_batches, more, each, traced

    def run(self, workload, place, steps, warmup, name, turn=None):
        folder = place.path(f"run-{name}")
        trace = place.path(f"trace-{name}.json")
        if max(self.each, self.micro_batches or 1) >= 8:
            # Fewer measurements of this length will do: each is long enough to contain its share of disturbances.
            steps = max(3, 2 * steps // 3)
        settings = self.settings(workload, place.threads)
        batch = workload.job(settings)["batch"]
        settings.update({"data.path": place.tokens(workload), "lr_schedule.steps": warmup + steps * self.each,
                         "telemetry.run_folder": folder})
        command = self.command(workload, place, settings)
        if self.traced:
            # Traces the last warm-up step, which does not count.
            command += [f"--trace={trace}", f"--trace_first_step={warmup}", "--trace_steps=1"]
        if turn:
            turn.by_step(r"step\s+\d+/", warmup, steps, self.each)
        try:
            group = place.run(self.commands(command), name, turn)
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                rows = [row for row in map(json.loads, file) if "seconds" in row]
            with open(os.path.join(folder, "plan.txt"), encoding="utf-8") as file:
                parameters = parameters_of(file.read())
            seconds = turn.seconds if turn else by_groups([row["seconds"] for row in rows[warmup:]], self.each)
            result = {"seconds": seconds, "first_loss": rows[0]["loss"], "last_loss": rows[-1]["loss"],
                      "parameters": parameters, "tokens_per_step": batch["global_batch"] * batch["sequence_length"],
                      "peak_rss_bytes": sum(outcome.peak_rss_bytes for outcome in group.outcomes),
                      "planned_bytes": rows[-1]["peak_bytes_planned"],
                      "start_seconds": start_seconds(group.outcomes[0].lines, rows[0]["seconds"]),
                      "other_cores": group.other_cores}
            if self.traced:
                with open(trace, encoding="utf-8") as file:
                    result["update_seconds"] = update_seconds(json.load(file))
            return result
        finally:
            # The final checkpoint is several times as large as the model.
            shutil.rmtree(folder, ignore_errors=True)

    def commands(self, command):
        """Returns the commands of all processes."""
        if self.processes == 1:
            return [command]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # While others take their turns, the processes are stopped, and nobody hears from them.
        places = {"SHALE_PROCESSES": self.processes, "SHALE_MASTER_ADDR": "127.0.0.1", "SHALE_MASTER_PORT": port,
                  "SHALE_HEARTBEAT_SECONDS": 3600}
        return [["env", f"SHALE_PROCESS={number}", *(f"{name}={value}" for name, value in places.items()), *command]
                for number in range(self.processes)]

    def settings(self, workload, threads):
        """Returns the fields that differ from the workload's job file, by path."""
        return workload.settings(threads, self.ranks, self.micro_batches, self.more)

    def command(self, workload, place, settings):
        """Returns the command that trains the workload's job with these settings."""
        return [place.binary("train"), f"--job={workload.path}", "--overwrite",
                *(f"--set={path}={value}" for path, value in settings.items())]


def by_groups(seconds, each):
    """Returns the mean of each group of `each` consecutive numbers."""
    return [sum(seconds[at:at + each]) / each for at in range(0, len(seconds), each)]


def parameters_of(plan_text):
    """Returns the number of parameters that a plan names."""
    match = re.search(r"^\s*parameters\s+([\d,]+) in", plan_text, re.MULTILINE)
    if not match:
        raise process.Failed("plan.txt names no number of parameters")
    return int(match[1].replace(",", ""))


def start_seconds(lines, first_step_seconds):
    """Returns the seconds from exec to the start of the first step. The step's line appears right after its end."""
    for seconds, text in lines:
        if re.match(r"step\s+1/", text):
            return seconds - first_step_seconds
    raise process.Failed("train printed no line for step 1")


def update_seconds(trace):
    """Returns the optimizer's seconds in a trace of one step: on rank 0, from the start of its first instruction to the
    end of its last."""
    events = [e for e in trace["traceEvents"] if e.get("cat") == "update" and e["pid"] == 0]
    if not events:
        raise process.Failed("the trace holds no instruction of the optimizer")
    return (max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)) * 1e-6


class Torch(Contestant):
    """Runs tools/parity/torch_train.py, with one process per rank."""

    def __init__(self, about, ranks=1, tuned=True, compiled="blocks", extra=False, more=(), returns_memory=False):
        """With `returns_memory`, the allocator stays as installed, even if `tuned`, and returns freed memory to the
        system."""
        self.about, self.extra, self.more = about, extra, more
        self.ranks, self.tuned, self.compiled = ranks, tuned, compiled
        self.tunes_allocator = tuned and not returns_memory

    def run(self, workload, place, steps, warmup, name, turn=None):
        job = workload.job(workload.settings(place.threads, self.ranks, more=self.more))
        threads = place.threads // self.ranks
        environment = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": place.inductor_cache(),
                       # Otherwise the compiler's worker processes stay, and take memory and cores from the measured
                       # one.
                       "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if self.tuned:
            environment["LD_PRELOAD"] = place.mkl_library()
        command = [place.python(), place.torch_program(), f"--job={json.dumps(job)}",
                   f"--tokens={place.tokens(workload)}", f"--steps={warmup + steps}", f"--threads={threads}",
                   f"--compile={self.compiled}"]
        store = place.path(f"ranks-{name}")
        commands = [command]
        if self.ranks > 1:
            commands = [[*command, f"--store={store}", f"--rank={rank}"] for rank in range(self.ranks)]
        if turn:
            turn.by_step(r"step \d+$", warmup, steps)

        def train(allocator):
            with contextlib.suppress(FileNotFoundError):
                os.remove(store)
            return place.run(commands, name, turn, {**environment, **allocator})

        kept = True
        try:
            group = train(_ALLOCATOR if self.tunes_allocator else {})
        except process.Killed:
            if turn or not self.tunes_allocator:
                raise
            # The tuned allocator never returns memory, so it needs more. Measures with the installed one instead.
            kept = False
            group = train({})
        said = [last_json(outcome.lines) for outcome in group.outcomes]
        return {"seconds": turn.seconds if turn else said[0]["seconds"][warmup:], "last_loss": said[0]["losses"][-1],
                # Each rank reports the loss of its part of the batch.
                "first_loss": sum(s["losses"][0] for s in said) / len(said),
                "parameters": said[0]["parameters"], "tokens_per_step": said[0]["tokens_per_step"],
                # Memory of the training processes only, without the compilers that they started.
                "peak_rss_bytes": sum(s["peak_rss_bytes"] for s in said), "other_cores": group.other_cores,
                **({} if kept else {"remark": "killed with the tuned allocator, probably for lack of memory; "
                                              "measured with the one installed"})}


class Matmuls(Contestant):
    """Runs tools/bench:matmuls, which measures a bound and trains nothing."""

    def __init__(self, about, ranks=1):
        self.about, self.ranks = about, ranks

    def run(self, workload, place, steps, warmup, name, turn=None):
        settings = workload.settings(place.threads, self.ranks)
        command = [place.binary("bench/matmuls"), f"--job={workload.path}", f"--repeats={steps}"]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        if turn:
            turn.by_step(r'\{"pass"', 0, steps)
        group = place.run([command], name, turn)
        said = last_json(group.outcomes[0].lines)
        return {"seconds": said["passes"], "other_cores": group.other_cores,
                **{key: said[key] for key in ("parameters", "onednn", "widened", "attention_seconds")},
                # Totals over all ranks, because the program reports one rank.
                **{key: said["ranks"] * said[key]
                   for key in ("gflop", "attention_gflop", "packed_bytes", "other_bytes", "copy_bytes_per_second")}}


def last_json(lines):
    for _, text in reversed(lines):
        if text.startswith("{"):
            return json.loads(text)
    raise process.Failed("it printed no result")

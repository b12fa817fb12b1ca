"""Defines the contestants: how each is started, and how its output becomes a result.

A result is a dict: `seconds` of each step that counts (the mean, where several steps are timed as one), `first_loss`,
`parameters`, `tokens_per_step`, `peak_rss_bytes` (summed over all processes of the contestant), and further keys that
depend on the kind of contestant.
"""

import contextlib
import json
import os
import re
import shutil

from bench.train import memory, process, workloads

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

    def __init__(self, about, ranks=1, micro_batches=None, more=(), each=1, traced=False, first_only=False):
        """`each` steps are timed together, and the result has their mean."""
        self.about, self.first_only = about, first_only
        self.ranks, self.micro_batches, self.more, self.each, self.traced = ranks, micro_batches, more, each, traced

    def run(self, workload, place, steps, warmup, name, turn=None):
        folder = place.path(f"run-{name}")
        trace = place.path(f"trace-{name}.json")
        if max(self.each, self.micro_batches or 1) >= 8:
            # Fewer measurements of this length will do: each is long enough to contain its share of disturbances.
            steps = max(3, 2 * steps // 3)
        settings = workload.settings(place.threads, self.ranks, self.micro_batches, self.more)
        batch = workload.job(settings)["batch"]
        settings.update({"data.path": place.tokens(workload), "lr_schedule.steps": warmup + steps * self.each,
                         "telemetry.run_folder": folder})
        command = [place.binary("train"), f"--job={workload.path}", "--overwrite"]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        if self.traced:
            # Traces the last warm-up step, which does not count.
            command += [f"--trace={trace}", f"--trace_first_step={warmup}", "--trace_steps=1"]
        if turn:
            turn.by_step(r"step\s+\d+/", warmup, steps, self.each)
        try:
            group = process.run([command], place.environment(), place.logs, name, turn)
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                rows = [row for row in map(json.loads, file) if "seconds" in row]
            with open(os.path.join(folder, "plan.txt"), encoding="utf-8") as file:
                parameters = parameters_of(file.read())
            seconds = turn.seconds if turn else by_groups([row["seconds"] for row in rows[warmup:]], self.each)
            result = {"seconds": seconds,
    "first_loss": rows[0]["loss"],
    "last_loss": rows[-1]["loss"],
    "parameters": parameters,
    "tokens_per_step": batch["global_batch"] * batch["sequence_length"],
    "peak_rss_bytes": group.outcomes[0].peak_rss_bytes,
    "planned_bytes": rows[-1]["peak_bytes_planned"],
    "start_seconds": start_seconds(group.outcomes[0].lines,
    rows[0]["seconds"]),
     "other_cores": group.other_cores}
            if self.traced:
                with open(trace, encoding="utf-8") as file:
                    result["update_seconds"] = update_seconds(json.load(file))
            return result
        finally:
            # The final checkpoint is several times as large as the model.
            shutil.rmtree(folder, ignore_errors=True)


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
        environment = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": place.path("inductor"),
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
            return process.run(commands, place.environment({**environment, **allocator}), place.logs, name, turn)
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
        group = process.run([command], place.environment(), place.logs, name, turn)
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


_ACCUMULATIONS = "K = 4 micro-batches on two ranks, "

# Listed in the order in which a round runs them.
ALL = {
    "shale": Shale("train, one rank with all threads"),
    "torch-best": Torch("PyTorch, blocks compiled, allocator tuned, MKL's AVX-512 path unlocked"),
    "matmuls": Matmuls("the matmuls of the step alone, by oneDNN, operand B packed beforehand"),
    "torch-installed": Torch("the same program as PyTorch is installed", tuned=False),
    "shale-2ranks": Shale("train, two sharded ranks with half of the threads each", ranks=2),
    "matmuls-2ranks": Matmuls("the matmuls of two ranks at the same time, with half of the threads each", ranks=2),
    "fsdp2-best": Torch("FSDP2 over Gloo, two processes with half of the threads each, tuned like torch-best", ranks=2),
    "shale-k8": Shale("eight micro-batches to a step, one rank", micro_batches=8, traced=True, first_only=True),
    # Eight steps are timed as one, because a disturbance lengthens that time as it lengthens one long step. The median
    # of eight short steps would hardly show it.
    "shale-8-steps": Shale("eight steps of one micro-batch, timed as one, one rank", each=8, first_only=True),
    "shale-keep-all": Shale("checkpointing NONE, one rank", more={"activation_checkpointing.preset": "NONE"},
                            first_only=True),
    "shale-block": Shale("checkpointing BLOCK, one rank", more={"activation_checkpointing.preset": "BLOCK"},
                         first_only=True),
    **{"shale-" + way.lower().replace("_", "-"): Shale(_ACCUMULATIONS + way, ranks=2, micro_batches=4,
                                                       more={"sharding.accumulation": way}, first_only=True)
       for way in ("SHARDED", "NO_SYNC", "LAYERED")},
    "torch-model": Torch("as torch-best, but the model compiled as a whole, loss included", compiled="model",
                         extra=True),
    "torch-eager": Torch("as torch-best, but nothing compiled", compiled="nothing", extra=True),
}



def _memory_contestants():
    """Yields the names and contestants of --only=memory."""
    for row, about in memory.ROWS.items():
        both = {"shale": Shale(f"memory: {about.about}", more=memory.settings(row))}
        if about.torch:
            both["torch"] = Torch("memory: the same in PyTorch, which returns freed memory to the system",
                                  more=memory.settings(row), returns_memory=True)
        for side, contestant in both.items():
            contestant.extra, contestant.group = True, "memory"
            contestant.only_on, contestant.only_in = about.workloads, about.precisions
            yield memory.contestant(side, row), contestant


ALL.update(_memory_contestants())

# Sets of contestants that a ratio compares. They take turns, step by step, if memory holds them at the same time.
SETS = (("shale", "torch-best", "matmuls", "torch-installed", "shale-2ranks", "matmuls-2ranks", "fsdp2-best"),
        ("shale-k8", "shale-8-steps"),
        ("shale-keep-all", "shale-block"),
        ("shale-sharded", "shale-no-sync", "shale-layered"),
        *(tuple(memory.contestant(side, row) for side in ("shale", "torch")) for row in memory.ROWS))


def in_sets(names, most):
    """Splits the names, in order, into lists of at most `most` contestants that take turns. Contestants in no set are
    alone. A set that is too large is split into those with one rank and those with two; if that is not enough, into
    single contestants."""
    sets = [[name for name in names if name in together] for together in SETS]
    sets += [[name] for name in names if not any(name in together for together in SETS)]
    parts = []
    for some in sets:
        by_ranks = [[name for name in some if ALL[name].ranks == ranks] for ranks in (1, 2)]
        for part in [some] if len(some) <= most else by_ranks:
            parts += [part] if len(part) <= most else [[name] for name in part]
    return [part for part in parts if part]

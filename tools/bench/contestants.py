"""Who is measured: how each is started, and what of its output is the result.

A result is a dict: `seconds` of the steps that count (where several are timed as one, of one of them), `first_loss`,
`parameters`, `tokens_per_step`, `peak_rss_bytes` (all processes of the contestant together), and what else a kind of
contestant knows.
"""

import contextlib
import json
import os
import re
import shutil

from bench import process

# The allocator keeps what it has, in huge pages.
_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "536870912",
              "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Contestant:
    """`about` is a line for --list; `first_only`: it is about the engine, not the shape, so that one shape will do;
    `extra`: no target asks for it, so that it is measured only when it is named."""
    about = ""
    first_only = False
    extra = False

    def run(self, workload, place, steps, warmup, name, turn=None):
        """Measures once, in files of that name, in turns with others or alone; process.Failed if that fails. Returns a
        result."""
        raise NotImplementedError


class Shale(Contestant):
    """train, as everybody runs it."""

    def __init__(self, about, ranks=1, micro_batches=None, more=(), each=1, traced=False, first_only=False):
        """`each`: so many steps are timed as one, whose part each has."""
        self.about, self.first_only = about, first_only
        self.ranks, self.micro_batches, self.more, self.each, self.traced = ranks, micro_batches, more, each, traced

    def run(self, workload, place, steps, warmup, name, turn=None):
        folder = place.path(f"run-{name}")
        trace = place.path(f"trace-{name}.json")
        if max(self.each, self.micro_batches or 1) >= 8:
            # What disturbs a machine lengthens some of its parts.
            steps = max(3, 2 * steps // 3)
        settings = workload.settings(place.threads, self.ranks, self.micro_batches, self.more)
        batch = workload.job(settings)["batch"]
        settings.update({"data.path": place.tokens(workload), "schedule.steps": warmup + steps * self.each,
                         "telemetry.run_folder": folder})
        command = [place.binary("train"), f"--job={workload.path}", "--overwrite"]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        if self.traced:
            # A step that does not count.
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
            result = {"seconds": seconds, "first_loss": rows[0]["loss"],
                      "last_loss": rows[-1]["loss"], "parameters": parameters,
                      "tokens_per_step": batch["global_batch"] * batch["sequence_length"],
                      "peak_rss_bytes": group.outcomes[0].peak_rss_bytes, "planned_bytes": rows[-1]["peak_bytes_planned"],
                      "start_seconds": start_seconds(group.outcomes[0].lines, rows[0]["seconds"]),
                      "other_cores": group.other_cores}
            if self.traced:
                with open(trace, encoding="utf-8") as file:
                    result["update_seconds"] = update_seconds(json.load(file))
            return result
        finally:
            # The checkpoint at the end is several times the model.
            shutil.rmtree(folder, ignore_errors=True)


def by_groups(seconds, each):
    """The means of every `each` that follow each other."""
    return [sum(seconds[at:at + each]) / each for at in range(0, len(seconds), each)]


def parameters_of(plan_text):
    """The number of parameters that a plan names."""
    match = re.search(r"^\s*parameters\s+([\d,]+) in", plan_text, re.MULTILINE)
    if not match:
        raise process.Failed("plan.txt names no number of parameters")
    return int(match[1].replace(",", ""))


def start_seconds(lines, first_step_seconds):
    """From exec to the start of the first step: its line comes right after its end."""
    for seconds, text in lines:
        if re.match(r"step\s+1/", text):
            return seconds - first_step_seconds
    raise process.Failed("train printed no line for step 1")


def update_seconds(trace):
    """Of the optimizer, in the one step of a trace, on rank 0: from its first instruction to its last one's end."""
    events = [e for e in trace["traceEvents"] if e.get("cat") == "update" and e["pid"] == 0]
    if not events:
        raise process.Failed("the trace holds no instruction of the optimizer")
    return (max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)) * 1e-6


class Torch(Contestant):
    """tools/parity/torch_train.py; several ranks are processes."""

    def __init__(self, about, ranks=1, tuned=True, compiled="blocks", extra=False):
        self.about, self.extra = about, extra
        self.ranks, self.tuned, self.compiled = ranks, tuned, compiled

    def run(self, workload, place, steps, warmup, name, turn=None):
        job = workload.job(workload.settings(place.threads, self.ranks))
        threads = place.threads // self.ranks
        environment = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": place.path("inductor"),
                       # Compiling in processes that stay would take memory and cores from what is measured.
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
            group = train(_ALLOCATOR if self.tuned else {})
        except process.Killed:
            if turn or not self.tuned:
                raise
            # An allocator that gives nothing back takes more.
            kept = False
            group = train({})
        said = [last_json(outcome.lines) for outcome in group.outcomes]
        return {"seconds": turn.seconds if turn else said[0]["seconds"][warmup:], "last_loss": said[0]["losses"][-1],
                # Each rank has its own part of the batch.
                "first_loss": sum(s["losses"][0] for s in said) / len(said),
                "parameters": said[0]["parameters"], "tokens_per_step": said[0]["tokens_per_step"],
                # Theirs alone: the compilers that they ran are not training.
                "peak_rss_bytes": sum(s["peak_rss_bytes"] for s in said), "other_cores": group.other_cores,
                **({} if kept else {"remark": "killed with the allocator tuned, for want of memory as it seems; measured with "
                                              "the one installed"})}


class Products(Contestant):
    """bench_products: a bound, not a trainer."""

    def __init__(self, about, ranks=1):
        self.about, self.ranks = about, ranks

    def run(self, workload, place, steps, warmup, name, turn=None):
        settings = workload.settings(place.threads, self.ranks)
        command = [place.binary("bench_products"), f"--job={workload.path}", f"--repeats={steps}"]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        if turn:
            turn.by_step(r'\{"pass"', 0, steps)
        group = process.run([command], place.environment(), place.logs, name, turn)
        said = last_json(group.outcomes[0].lines)
        return {"seconds": said["passes"], "other_cores": group.other_cores,
                **{key: said[key] for key in ("parameters", "onednn", "widened", "attention_seconds")},
                # Of all ranks.
                **{key: said["ranks"] * said[key]
                   for key in ("gflop", "attention_gflop", "packed_bytes", "other_bytes", "copy_bytes_per_second")}}


def last_json(lines):
    for _, text in reversed(lines):
        if text.startswith("{"):
            return json.loads(text)
    raise process.Failed("it printed no result")


_SCHEDULES = "K = 4 micro-batches on two ranks, "

# In the order in which a round runs them.
ALL = {
    "shale": Shale("train, one rank with all threads"),
    "torch-best": Torch("PyTorch, blocks compiled, allocator tuned, MKL's AVX-512 path unlocked"),
    "products": Products("the matrix products of the step alone, by oneDNN, operand B packed beforehand"),
    "torch-installed": Torch("the same program as PyTorch is installed", tuned=False),
    "shale-2ranks": Shale("train, two sharded ranks with half of the threads each", ranks=2),
    "products-2ranks": Products("those of two ranks beside each other, with half of the threads each", ranks=2),
    "fsdp2-best": Torch("FSDP2 over Gloo, two processes with half of the threads each, tuned like torch-best", ranks=2),
    "shale-k8": Shale("eight micro-batches to a step, one rank", micro_batches=8, traced=True, first_only=True),
    # What disturbs a machine lengthens one long step and one of eight short ones alike, but the median of these hardly.
    "shale-8-steps": Shale("eight steps of one micro-batch, timed as one, one rank", each=8, first_only=True),
    "shale-keep-all": Shale("KEEP_ALL retention, one rank", more={"memory.retention": "KEEP_ALL"}, first_only=True),
    "shale-block": Shale("BLOCK retention, one rank", more={"memory.retention": "BLOCK"}, first_only=True),
    **{f"shale-{schedule.lower()}": Shale(_SCHEDULES + schedule, ranks=2, micro_batches=4,
                                          more={"sharding.schedule": schedule}, first_only=True)
       for schedule in ("SHARDED", "DEFERRED", "LAYERED")},
    "torch-model": Torch("as torch-best, but the model compiled as a whole, loss included", compiled="model", extra=True),
    "torch-eager": Torch("as torch-best, but nothing compiled", compiled="nothing", extra=True),
}

# Whose figures stand against each other: they take turns, step by step, where memory holds them at once.
SETS = (("shale", "torch-best", "products", "torch-installed", "shale-2ranks", "products-2ranks", "fsdp2-best"),
        ("shale-k8", "shale-8-steps"),
        ("shale-keep-all", "shale-block"),
        ("shale-sharded", "shale-deferred", "shale-layered"))


def in_sets(names, most):
    """Lists of those names, in order: those that take turns, at most so many, and each other one alone. A set that is
    larger falls apart into those of one rank and those of two, or else into single ones."""
    sets = [[name for name in names if name in together] for together in SETS]
    sets += [[name] for name in names if not any(name in together for together in SETS)]
    parts = []
    for some in sets:
        by_ranks = [[name for name in some if ALL[name].ranks == ranks] for ranks in (1, 2)]
        for part in [some] if len(some) <= most else by_ranks:
            parts += [part] if len(part) <= most else [[name] for name in part]
    return [part for part in parts if part]

"""Defines items that run test cases of gpu_tests: some side by side, also under a tool of compute-sanitizer."""

import re

from gpu import child, outcome, store
from gpu.gpus import first_of_kinds
from gpu.kit import Item

# The suite that runs a kernel of each module, before anything else.
MODULES = "GpuModules"
_SANITIZER_ERROR = 97
# compute-sanitizer patches every kernel that is loaded, and kernels that a test does not use would cost hours.
_LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
_MOST_SAID = 300  # Characters of a failure's text.
_BEGUN = re.compile(r"\[ RUN      \] (\S+)")
# The end of a case. At the end of its output gtest names those that failed again, without their time.
_CASE_ENDED = re.compile(r"\[ *(OK|FAILED|SKIPPED) *\] ([^\s,]+).* \(\d+ ms\)$")


def gates(kit, seconds):
    """Returns an item for each kind of GPU. If its kernels do not run, nothing else would."""
    return [Item(f"modules/{number}", _work(f"{MODULES}.*", at_once=1, gpu=number), seconds, gate=True)
            for number in first_of_kinds(kit.gpus)]


def tests(name, chosen, seconds):
    """Returns an item that runs the test cases that `chosen` matches, as --gtest_filter has it, side by side."""
    return Item(f"test/{name}", outcome.needs("gpu_tests", _work(chosen)), seconds)


def in_processes(name, chosen, processes, seconds):
    """Returns an item that runs these test cases in processes that share the first GPU, all in each."""
    return Item(f"test/{name}/{processes}", outcome.needs("gpu_tests", _work(
        chosen, before=lambda kit: kit.launched(processes), at_once=1, gpu=0)), seconds)


def sanitized(kit, tool, name, chosen, seconds, part=1, parts=1):
    """Returns an item that runs these test cases under a tool of compute-sanitizer, or one of `parts` parts of them."""
    before = lambda kit: [kit.sanitizer, f"--tool={tool}", f"--error-exitcode={_SANITIZER_ERROR}"]
    return Item(f"{tool}/{name}", outcome.needs("gpu_tests", _work(chosen, tool, before, part, parts)), seconds,
                limit=max(600, 10 * seconds),
                skip="" if kit.sanitizer else "there is no compute-sanitizer in CUDA_HOME or on the PATH")


def _work(chosen, tool="", before=lambda kit: [], part=1, parts=1, at_once=0, gpu=None):
    """Returns work that divides the cases of one of `parts` parts among `at_once` programs, by default as many as the
    kit runs at once. `before` returns how their commands begin. They see one GPU alone, if `gpu` says which."""
    def work(kit, item, seconds):
        command = [*before(kit), kit.program("gpu_tests"), f"--gtest_filter={chosen}"]
        variables = {**(_LAZY if tool else {}), **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": kit.visible(gpu)})}
        count = at_once or kit.at_once
        shards = [child.Program(command, {**kit.environment, **variables, "GTEST_TOTAL_SHARDS": str(parts * count),
                                          "GTEST_SHARD_INDEX": str((part - 1) * count + shard)},
                                kit.log(f"{item.name}-{shard}")) for shard in range(count)]
        return _outcome(child.run_all(shards, seconds, folder=kit.out), tool)
    return work


class _Said:
    """What one program said of its cases: each that ended, with "OK", "FAILED" or "SKIPPED", and the one that was
    running last."""

    def __init__(self, text):
        self.ended, self.running, self.first_failure, said = {}, "", "", []
        for line in text.splitlines():
            if begun := _BEGUN.match(line):
                self.running, said = begun[1], []
            elif ended := _CASE_ENDED.match(line):
                # Of processes that say the same cases, one failure counts.
                if self.ended.get(ended[2]) != "FAILED":
                    self.ended[ended[2]] = ended[1]
                self.running = ""
                if ended[1] == "FAILED" and not self.first_failure:
                    self.first_failure = " ".join(" ".join(said).split())[:_MOST_SAID]
            else:
                said.append(line)


def _outcome(programs, tool):
    """Makes one outcome of the programs among which the cases were divided. The first that went wrong is described."""
    said = [_Said(store.read(ended.log)) for ended in programs]
    cases = {name: how for one in said for name, how in one.ended.items()}
    failed = [name for name, how in cases.items() if how == "FAILED"]
    stopped = [one.running for one, ended in zip(said, programs) if one.running and not ended.timed_out]
    skips = sum(how == "SKIPPED" for how in cases.values())
    result = {"tests": len(cases) + len(stopped), "failed": failed + stopped, "skipped": skips}
    worst = max(programs, key=lambda ended: (ended.timed_out, ended.code != 0, ended.seconds))
    wrong = ""
    if stopped:
        wrong = f"{stopped[0]} did not end: the program ended with {worst.code}: {worst.tail()}"
    elif failed:
        about = next((one.first_failure for one in said if one.first_failure), "")
        wrong = (f"{len(failed)} of {len(cases)} failed: {', '.join(failed[:5])}"
                 + (f"; the first says: {about}" if about else ""))
    elif tool and worst.code == _SANITIZER_ERROR:
        wrong = f"{tool} found errors: {worst.tail(1)}"
    elif not cases and worst.code == 0:
        wrong = "no test ran"
    made = outcome.of(worst, result, wrong)
    if made["status"] == store.PASSED and skips:
        made["about"] = f"{skips} of {len(cases)} skipped"
    return {**made, "seconds": round(max(ended.seconds for ended in programs), 3)}

"""Finds the commands that the pages show, and says which of them no test here can run, and why."""

import glob
import re

PAGES = ["README.md", *sorted(glob.glob("tools/manual/*.md")), *sorted(glob.glob("engine/manual/*.md")),
         "engine/files/hugging_face/README.md", "tools/gpu/README.md", "tests/parity/README.md"]
BUILT = ["train", "plan", "calibrate", "generate", "evaluate", "export", "tokenize", "inspect_checkpoint"]
SCRIPTS = ["inspect_run", "launch", "plot_run", "try_nccl"]

_OTHERS = ["bazel", "torchrun", "srun", "sbatch", "kubectl", "cp", "echo", "python3", "cc", "FOLDER/run",
           "~/parity_venv/bin/pip", "~/parity_venv/bin/python", "venv/bin/pip"]
_PATHS = r"(?:\.out/bin/)?tools/[\w/]+(?:\.sh|\.py)?"
# A command begins with variables and a program, which is followed by a space or the end: not the "train," of an error.
_COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:" + "|".join([_PATHS, *BUILT, *map(re.escape, _OTHERS)]) + r")(?=\s|$)")

# The first words of lines that are no commands: what commands print, jobs, and comments that go on.
_NO_COMMAND = ("#", "model", "data", "batch", "sharding", "optimizer", "precision", "lr_schedule", "step", "slow:",
               "test.jsonl", "train,", "ranks", "rank", "the", "plan:", "job.textproto:12:3:", ">", "rivers", "CANDLE",
               "4", "n")
# The first words of blocks of code and drawings.
_OTHER_BLOCKS = ("A", "job", "verify", "0", "4", "20", "38", "proto/", '{"driver":')

# Commands that no test here runs, as regular expressions with the reason. Their flags are checked where the program is.
NOT_RUN = [
    (r"tools/(quickstart|test|install|fuzz)\b", "builds with Bazel; scripts_test runs it with stand-ins"),
    (r"bazel (build|test)\b|tools/examples/service/build", "builds"),
    (r"bazel run -c opt //(tools/bench|tests/\S+):", "measures for minutes, or writes a table of the repository"),
    (r"tools/bench_", "measures for minutes, most of them with PyTorch"),
    (r"\.out/bin/tools/bench/", "measures; tests/tools/bench"),
    (r"calibrate ", "measures for a minute; tests/engine/run/calibrate"),
    (r"bazel run -c opt //tools:tune\b|.*device.*CUDA", "needs a GPU"),
    (r"tools/try_nccl|tools/launch (?s:.*)nccl_shares_gpus", "needs a GPU; try_nccl_test runs them on stand-ins"),
    (r"plan +--job=tools/bench/jobs/gpu/", "plans for CUDA, which a build without the toolkit does not"),
    (r"tools/gpu/pack|FOLDER/run|tools/gpu/attention.py",
     "packs with nvcc, runs where a GPU is, and takes what that wrote; tests/tools/gpu"),
    (r"torchrun|srun|sbatch|kubectl|tools/cluster/", "needs a cluster; cluster_test runs the launch files"),
    (r"tools/launch .*--hosts=|RANK=", "needs two hosts; launch_test runs both ends on one"),
    (r"tools/launch .*tools/bench/comm", "measures"),
    (r"tools/inspect_run", "needs a run that failed; launch_failures_test"),
    (r"cc |venv/bin/pip|python3 -m venv", "needs what tools/install installs, or a network; tests/embedding"),
    (r"python3 -c", "needs pandas"),
    (r"~/parity_venv|(tests|tools)/parity/", "needs PyTorch and transformers"),
    (r"\.out/bin/tools/examples/service/", "serves until it is ended; service_test"),
]


def blocks(text):
    """Yields the indented blocks of a page, as lists of lines. Fenced blocks, which are code, are left out."""
    block, fenced, blank = [], False, True
    for line in text.splitlines() + [""]:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and re.match(r"    +\S", line) and (block or blank):
            block.append(line.strip())
        elif block:
            yield block
            block = []
        blank = not line.strip()


def commands(text):
    """Returns the commands in the blocks of a page, in order, each with the lines that continue it. Raises ValueError
    for a line that is neither a command nor known as what a block shows besides."""
    found = []
    for block in blocks(text):
        if block[0].split()[0] in _OTHER_BLOCKS:
            continue
        whole = ""
        for line in block:
            if not whole and (not _COMMAND.match(line) or re.match("export [A-Z]", line)):
                if line.startswith("export ") or line.split()[0] in _NO_COMMAND or line.startswith("#"):
                    continue  # "export" sets a variable of the shell.
                raise ValueError(f"neither a command nor known in tests/tools/pages.py: {line}")
            whole += ("\n" if whole else "") + line
            bare = re.sub(r"\s+#.*", "", whole)
            if not bare.endswith("\\") and bare.count("'") % 2 == 0:
                found.append(whole)
                whole = ""
    return found


def inline_commands(text):
    """Returns the commands with arguments that stand between backticks in the prose of a page."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    spans = (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose))
    return [span for span in spans if _COMMAND.match(span) and " " in span]


def why_not_run(command):
    """Returns why no test runs a command, or None."""
    return next((why for pattern, why in NOT_RUN if re.match(pattern, command)), None)


def program_and_flags(command):
    """Returns the name of the program that a command runs, the last one of a pipe, and the names of its flags."""
    words = re.sub(r"(?m)\s+#.*$", "", command).replace("\\\n", " ").split(" | ")[-1]
    words = re.sub(r"^(?:[A-Z_]+=\S* )*", "", words)
    if run := re.match(r"bazel run -c opt //tools:(\w+)\s+--(?=\s)", words):
        name, words = run.group(1), words[run.end():]
    else:
        name = words.split()[0].rpartition("/")[2]
    if name == "launch":
        words = words.split(" -- ")[0]
    return name, re.findall(r"(?<=\s)--([a-z_]+)", words)

"""Parses the command line of tools/bench_train."""

import argparse
import os
import re

from bench.train import before, contestants, isa, workloads

_ABOUT = """\
Measures training steps of the engine against PyTorch at its best on this CPU, against FSDP2, and against the
matmuls of the step alone, and prints a Markdown table: every target, what was measured, met or not.

Each measurement is a process of its own. Contestants alternate, so that whatever else the machine does hits all of
them: in rounds, and where memory holds them at once step by step, one computing while the others are stopped. A ratio
is one of medians over the steps of a process; what counts is the median of the rounds' ratios. Without options it
measures everything; it builds the engine, and installs torch into .out/bench/venv (5.6 GB) unless --venv names one that
has it. Give it an idle machine: it warns when something else runs. Ctrl-C ends all contestants at once, and prints the
table of what was measured so far.
"""

_FOOTER = """\
examples:
  tools/bench_train --only=llama34m                              the shape that the targets were set for
  tools/bench_train --only=llama34m,bf16,shale,torch-best        two contestants, one precision
  tools/bench_train --rounds=1 --steps=3 --warmup=1              whether everything works
  tools/bench_train --only=memory,llama34m,fp32 --rounds=1 --steps=2 --warmup=1
                                                                 peak RSS of settings, in less than 20 minutes
  tools/bench_train --before=OTHER/.out/bin/tools --only=shale,shale-2ranks
                                                                 whether this build is as fast as another one
  tools/bench_train --isa=AVX2 --only=llama34m,fp32              as on a processor without AVX-512
  tools/bench_train --keep=two-cores                             the table also goes to tools/bench/results/

exit codes: 0 measured (targets met or not); 1 something failed; 2 wrong command line; 130 interrupted.
"""


def parse(arguments):
    """Returns a namespace with the flags and, as lists of names, `workloads`, `precisions` and `contestants`. `before`
    is the path of the other build's `train`, or None. Exits on --help and on errors."""
    parser = argparse.ArgumentParser(prog="bench_train", description=_ABOUT, epilog=_FOOTER, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME,...",
                        help="workloads, precisions and contestants to measure; memory: all contestants that compare "
                             "memory (see --list; default: all of each kind)")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--rounds", type=_count, default=3, metavar="N", help="how often each is measured (default 3)")
    parser.add_argument("--steps", type=_count, metavar="N",
                        help="steps that count in a process (default: 9, 5 and 2 by workload; two thirds where one is "
                             "eight)")
    parser.add_argument("--warmup", type=_count, metavar="N",
                        help="steps before those (default: 3, 2 and 1 by workload)")
    parser.add_argument("--threads", type=_threads, default=2, metavar="N",
                        help="threads of a contestant; two ranks have half each, and are left out if N is odd "
                             "(default 2)")
    parser.add_argument("--isa", type=_isa, metavar="CLASS",
                        help=f"limit all contestants alike to the instructions of a class of processors: "
                             f"{', '.join(isa.NAMES)} (default: all instructions of this processor)")
    parser.add_argument("--apart", action="store_true",
                        help="run one contestant after the other, which needs a fraction of the memory")
    parser.add_argument("--venv", default="", metavar="FOLDER", help="a virtual environment that has torch")
    parser.add_argument("--bin", default="", metavar="FOLDER",
                        help="where train and bench/matmuls lie, built already: bazel-bin/tools, or a copy")
    parser.add_argument("--before", type=_before, metavar="FOLDER",
                        help="also measure the train in FOLDER, built from another commit, in turns with today's: "
                             "of the contestants named by --only, or of shale and shale-2ranks")
    parser.add_argument("--keep", nargs="?", const="all", type=_name, metavar="NAME",
                        help="keep the table as tools/bench/results/DATE-NAME.md (NAME: letters, digits, . _ -; "
                             "default all)")
    parser.add_argument("--render", action="append", default=[], metavar="FILE",
                        help="measure nothing: print the table of runs.jsonl files that earlier calls left in "
                             ".out/bench/; rounds of the same number are merged")
    parser.add_argument("--resume", metavar="FILE",
                        help="resume an interrupted call with the same other flags: FILE is the runs.jsonl file "
                             "that it left in .out/bench/, and what is in it is not measured again")
    options = parser.parse_args(arguments)
    if options.resume and options.render:
        parser.error("argument --resume: --render measures nothing; give one of them")
    kinds = {"workloads": list(workloads.NAMES), "precisions": list(workloads.PRECISIONS),
             "contestants": [name for name in contestants.ALL if name == before.original(name)]}
    extra = {name for name, contestant in contestants.ALL.items() if contestant.extra}
    groups = {contestant.group for contestant in contestants.ALL.values() if contestant.group}
    given = [name for names in options.only for name in names.split(",")]
    names = [name for name in given if name not in groups]
    names += [name for name, contestant in contestants.ALL.items() if contestant.group and contestant.group in given]
    for kind, known in kinds.items():
        setattr(options, kind, [name for name in known if name in names] or [n for n in known if n not in extra])
    unknown = [name for name in names if not any(name in known for known in kinds.values())]
    if unknown:
        parser.error(f"argument --only: found {', '.join(map(repr, unknown))}; known are "
                     + "; ".join(", ".join(known) for known in (*kinds.values(), sorted(groups))))
    if options.before:
        twins = [before.twin(name) for name in options.contestants
                 if name in names or not contestants.ALL[name].first_only]
        options.contestants = [name for name in contestants.ALL if name in (*options.contestants, *twins)]
    return options


def list_text():
    lines = ["workloads:   " + ", ".join(workloads.NAMES), "precisions:  " + ", ".join(workloads.PRECISIONS),
             "contestants:"]
    for name, contestant in contestants.ALL.items():
        if name != before.original(name):
            continue
        only = ""
        if contestant.group:
            only = f" (only when named, or {contestant.group}; {' and '.join(contestant.only_on)} only)"
        elif contestant.first_only:
            only = f" ({workloads.FIRST} only)"
        elif contestant.extra:
            only = " (only when named)"
        lines.append(f"  {name:<16} {contestant.about}{only}")
    lines.append(f"  {before.twin('NAME'):<16} the same as NAME of the engine, by another build (only with --before)")
    return "\n".join(lines)


def _count(text):
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted 1 to 1000")
    return int(text)


def _threads(text):
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted 1 to 1024")
    return int(text)


def _isa(text):
    if text not in isa.NAMES:
        raise argparse.ArgumentTypeError(f"found {text!r}; known are {', '.join(isa.NAMES)}")
    available = isa.of_this_machine()
    if text not in available:
        raise argparse.ArgumentTypeError(
            f"this processor does not have {text}; it has {', '.join(available) or 'none of the classes'}")
    return text


def _before(folder):
    path = os.path.abspath(os.path.join(folder, "train"))
    if not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(
            f"{path} is not there; FOLDER is .out/bin/tools of the other checkout, where //tools:train was built, or "
            "a folder with a copy of train")
    return path


def _name(text):
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted letters, digits, '.', '_' and '-'")
    return text

"""Steps a trainer through the Python package, for the bench tools/bench/embedding, which starts this and asks.

    embedding.py JOB [OVERRIDE...]

Prints "0" when the trainer is ready. Then answers each line of standard input with one line: "step" with the seconds of
a step of the loop `for report in trainer`, of them those that the engine measures, and the loss; "calls N" with the
seconds of one of N small calls.
"""

import sys
import time

import shale


def main():
    path, *overrides = sys.argv[1:]
    job = shale.Job.load(path, set=dict(override.split("=", 1) for override in overrides))
    clock = time.perf_counter
    with shale.Trainer(job) as trainer:
        steps = iter(trainer)
        print("0", flush=True)
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "step":
                begin = clock()
                report = next(steps)
                seconds = clock() - begin
                print(repr(seconds), repr(report.seconds), repr(report.loss), flush=True)
            else:
                count = int(rest[0])
                begin = clock()
                for _ in range(count):
                    trainer.steps_done  # pylint: disable=pointless-statement
                print(repr((clock() - begin) / count), flush=True)


if __name__ == "__main__":
    try:
        main()
    except shale.ShaleError as error:
        print("error", " ".join(str(error).split()), flush=True)

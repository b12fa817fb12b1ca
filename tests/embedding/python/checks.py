"""Checks a job before a run, asks whether a machine has room for another, and generates text from a trained model.

    checks.py JOB TEXT_JOB FOLDER    after service.py JOB FOLDER; TEXT_JOB is a job that describes its model
"""

import sys

import shale
from service import classifier


def main():
    job, text_job, folder = sys.argv[1:]
    verification = shale.verify(job, model=classifier, seconds=1)  # Checks a job before a long run.
    print(verification.passed, [check.name for check in verification if not check.passed])

    with open(text_job, encoding="utf-8") as file:
        text = file.read()
    admission = shale.admit(text, most_ranks=8, budget_bytes=20 << 30)  # Has a machine room for it?
    print(admission.fits, admission.text, [way.overrides for way in admission.ways_out])

    with shale.Generator(f"{folder}/checkpoints", model=classifier) as generator:
        generator.generate_text("the ", 20, stop=["\n"], on_text=lambda piece: print(piece, end=""))


if __name__ == "__main__":
    main()

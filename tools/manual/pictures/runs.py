"""Draws a run of tools/quickstart as tools/plot_run does, from what run.json beside this file has of its run folder."""

import importlib.machinery
import importlib.util
import json
import os

_FOLDER = os.path.dirname(os.path.realpath(__file__))
_PATH = os.path.join(_FOLDER, "run.json")
_PLOT_RUN = os.path.normpath(os.path.join(_FOLDER, "../../plot_run"))


def _plot_run():
    """Returns tools/plot_run as a module. Its file has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader("plot_run", _PLOT_RUN)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot_run", loader))
    loader.exec_module(module)
    return module


def keep(folder):
    """Writes what the picture shows of a run folder to run.json: the losses of its steps 1, 2, ... and of its
    evaluations, rounded, and the peaks of memory, which are the same in all steps."""
    run = _plot_run().read_run(folder, "quickstart")
    peaks = set(zip(run.planned, run.measured))
    if run.steps != list(range(1, len(run.steps) + 1)) or len(peaks) != 1 or run.skipped or None in run.losses:
        raise ValueError(f"{folder}: wanted the whole run of a job that skips no step and takes the same memory in all")
    planned, measured = peaks.pop()
    data = {"name": run.name, "facts": run.facts, "peak_bytes_planned": planned, "peak_bytes_measured": measured,
            "evaluations": [[step, round(loss, 3)] for step, loss in run.evaluations],
            "losses": [round(loss, 3) for loss in run.losses]}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    with open(_PATH, "w", encoding="utf-8") as file:
        file.write("{\n" + lines + "\n}\n")


def draw():
    """Returns the picture."""
    with open(_PATH, encoding="utf-8") as file:
        data = json.load(file)
    plot_run = _plot_run()
    run = plot_run.Run(data["name"])
    run.losses = data["losses"]
    run.steps = list(range(1, len(run.losses) + 1))
    run.planned = [data["peak_bytes_planned"]] * len(run.steps)
    run.measured = [data["peak_bytes_measured"]] * len(run.steps)
    run.evaluations = [tuple(evaluation) for evaluation in data["evaluations"]]
    run.facts = data["facts"]
    return plot_run.svg_of([run])

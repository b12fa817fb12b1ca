#!/usr/bin/env python3
"""Tests plot_run: what it draws, read back from the SVG as XML, and its errors."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

_SVG = "{http://www.w3.org/2000/svg}"
_MIB = 1 << 20


def step_row(step, loss, planned=4 * _MIB, measured=3 * _MIB, **more):
    return {"step": step, "loss": loss, "updated": True, "peak_bytes_planned": planned, "peak_bytes_measured": measured,
            **more}


def evaluation_row(step, loss):
    return {"step": step, "evaluation_loss": loss, "evaluation_tokens": 7}


class Drawing:
    """An SVG file of plot_run."""

    def __init__(self, path):
        self.root = ElementTree.parse(path).getroot()
        self.words = [text.text for text in self.root.iter(_SVG + "text")]

    def segments(self, kind):
        """Returns the lines of a kind, each as a list of (x, y) in pixels. A dot is a line of one point."""
        lines = []
        for element in self.root.iter():
            if element.get("class") != kind:
                continue
            if element.tag == _SVG + "circle":
                lines.append([(float(element.get("cx")), float(element.get("cy")))])
            elif element.tag == _SVG + "polyline":
                lines.append([tuple(map(float, point.split(","))) for point in element.get("points").split()])
            else:
                lines.append([element.get("d")])
        return lines

    def values(self, panel):
        """Returns a function from a height in pixels to the value that the labels of the upper (0) or the lower (1)
        panel give it."""
        labels = [(float(text.get("y")) - 4, float(text.text.replace(",", "")))
                  for text in self.root.iter(_SVG + "text") if text.get("text-anchor") == "end"]
        # Labels rise within a panel; the lower panel starts at its 0, which is below all others.
        lower = [label for label in labels if label[0] > 240]
        (y0, value0), *_, (y1, value1) = lower if panel else [label for label in labels if label not in lower]
        return lambda y: value0 + (y - y0) / (y1 - y0) * (value1 - value0)


class PlotRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, run, text, name="metrics.jsonl"):
        os.makedirs(self.path(run), exist_ok=True)
        with open(os.path.join(self.path(run), name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(run)

    def write_rows(self, run, rows):
        return self.write(run, "".join(json.dumps(row) + "\n" for row in rows))

    def call(self, *arguments):
        return subprocess.run(["tools/plot_run", *arguments], capture_output=True, text=True, check=False)

    def draw(self, *runs):
        ended = self.call(*runs, "--out", self.path("out.svg"), "--overwrite")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return Drawing(self.path("out.svg"))

    def assert_fails(self, message, *arguments):
        ended = self.call(*arguments, "--out", self.path("out.svg"))
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr, f"plot_run: {message}\n")
        self.assertFalse(os.path.exists(self.path("out.svg")))

    def test_every_step_and_evaluation_is_a_point_at_its_height(self):
        losses = [5.5, 4.25, 3.0, 2.75, 2.5]
        rows = [step_row(step, loss) for step, loss in enumerate(losses, 1)]
        drawing = self.draw(self.write_rows("small", rows[:3] + [evaluation_row(3, 3.5)] + rows[3:]))
        line, = drawing.segments("loss")
        value = drawing.values(0)
        self.assertEqual(len(line), len(losses))
        for (_, y), loss in zip(line, losses):
            self.assertAlmostEqual(value(y), loss, delta=0.01)
        ((x, y),), = drawing.segments("evaluation")
        self.assertAlmostEqual(value(y), 3.5, delta=0.01)
        self.assertEqual(x, line[2][0])
        self.assertIn("training, last 2.500", drawing.words)
        self.assertIn("evaluation, last 3.500", drawing.words)

    def test_memory_is_planned_and_measured_on_an_axis_from_zero(self):
        rows = [step_row(step, 1.0, measured=(2 if step < 5 else 3) * _MIB) for step in range(1, 11)]
        drawing = self.draw(self.write_rows("memory", rows))
        value = drawing.values(1)
        planned, = drawing.segments("planned")
        self.assertEqual([round(value(y), 1) for _, y in planned], [4, 4])
        measured, = drawing.segments("measured")
        self.assertEqual([round(value(y), 1) for _, y in measured], [2, 2, 3, 3])
        self.assertIn("0", drawing.words)
        self.assertIn("Memory of one rank (MiB)", drawing.words)
        self.assertIn("planned peak, last 4 MiB", drawing.words)
        self.assertIn("measured peak, last 3 MiB", drawing.words)

    def test_a_long_run_is_thinned_and_its_spikes_stay(self):
        # Without bounds on the points, a run of 100,000 steps becomes a file of megabytes.
        steps = 100_000
        rows = [step_row(step, 2.0 + step % 7 / 10) for step in range(1, steps + 1)]
        rows[70_000]["loss"] = 9.0
        rows[30_000]["loss"] = 0.5
        rows[-1]["loss"] = 3.25
        run = self.write_rows("long", rows)
        drawing = self.draw(run)
        line, = drawing.segments("loss")
        value = drawing.values(0)
        self.assertLessEqual(len(line), 1500)
        self.assertGreaterEqual(len(line), 1400)
        self.assertEqual([x for x, _ in line], sorted(x for x, _ in line))
        values = [value(y) for _, y in line]
        self.assertAlmostEqual(max(values), 9.0, delta=0.03)
        self.assertAlmostEqual(min(values), 0.5, delta=0.03)
        self.assertAlmostEqual(values[-1], 3.25, delta=0.03)
        self.assertLess(os.path.getsize(self.path("out.svg")), 60_000)

    def test_skipped_steps_are_gaps_and_marked(self):
        rows = [step_row(step, 3.0 - step / 10) for step in range(1, 11)]
        for row in rows[3:5]:
            row.update(loss=None, updated=False)  # Step 4 and 5.
        rows[6].update(loss=0, updated=False)     # Step 7 had no valid token.
        rows[8].update(loss=float("nan"))
        drawing = self.draw(self.write_rows("gaps", rows))
        self.assertEqual([len(line) for line in drawing.segments("loss")], [3, 1, 1, 1])
        self.assertEqual(len(drawing.segments("skipped")), 3)
        self.assertIn("step without update", drawing.words)

    def test_a_gap_of_a_long_run_stays(self):
        rows = [step_row(step, None if 4000 <= step < 6000 else 2.0 + step % 3) for step in range(1, 10_001)]
        left, right = self.draw(self.write_rows("hole", rows)).segments("loss")
        width = right[-1][0] - left[0][0]
        self.assertAlmostEqual((right[0][0] - left[-1][0]) / width, 0.2, delta=0.01)

    def test_one_step_is_a_point(self):
        drawing = self.draw(self.write_rows("one", [step_row(1, 5.5)]))
        (point,), = drawing.segments("loss")
        self.assertAlmostEqual(drawing.values(0)(point[1]), 5.5, delta=0.01)
        self.assertEqual([len(line) for line in drawing.segments("planned") + drawing.segments("measured")], [1, 1])

    def test_a_run_whose_losses_are_all_unknown_still_shows_memory(self):
        drawing = self.draw(self.write_rows("nan", [step_row(1, None, updated=False), step_row(2, None)]))
        self.assertEqual(drawing.segments("loss"), [])
        self.assertEqual(len(drawing.segments("measured")), 1)

    def test_several_runs_have_a_color_and_a_name_each(self):
        runs = [self.write_rows(name, [step_row(1, 3.0), step_row(2, 2.0)]) for name in ("a", 'b <&"', "c")]
        drawing = self.draw(*runs)
        groups = [group for group in drawing.root.iter(_SVG + "g") if group.get("data-run")]
        self.assertEqual([group.get("data-run") for group in groups], ["a", 'b <&"', "c"])
        self.assertEqual(len({group.find(_SVG + "polyline").get("stroke") for group in groups}), 3)
        for name in ("3 runs", "a", 'b <&"', "c"):
            self.assertIn(name, drawing.words)

    def test_runs_of_the_same_name_are_told_apart_by_their_paths(self):
        runs = [self.write_rows(name, [step_row(1, 3.0)]) for name in ("x/run", "y/run")]
        words = self.draw(*runs).words
        self.assertIn("x/run", words)
        self.assertIn("y/run", words)

    def test_the_plan_gives_the_facts(self):
        run = self.write_rows("quick", [step_row(1, 3.0)])
        self.assertEqual(self.draw(run).words[:2], ["quick", "Loss (nats per token)"])
        self.write("quick", """Plan of quick
  parameters     1,870,464 in 6 units
  batch          16 sequences of 128 tokens a step: 2 ranks x 2 micro-batches x 4 sequences
  strategy       FULL_SHARD, 1 unit gathered ahead, parameters freed after forward
  accumulation   LAYERED: sends least
  activations    NONE
""", "plan.txt")
        self.assertEqual(self.draw(run).words[1], "1,870,464 parameters, 2 ranks, FULL_SHARD, accumulation LAYERED, "
                                                  "activation checkpointing NONE")

    def test_what_cannot_be_drawn_is_one_line(self):
        missing = self.path("missing")
        self.assert_fails(f"{missing}: there is no such folder", missing)
        os.mkdir(self.path("empty"))
        metrics = self.path("empty/metrics.jsonl")
        self.assert_fails(f"{metrics}: No such file or directory; a run folder of train has this file",
                          self.path("empty"))
        self.write("empty", "")
        self.assert_fails(f"{metrics}: there is no step in it", self.path("empty"))
        self.write_rows("empty", [evaluation_row(5, 2.0)])
        self.assert_fails(f"{metrics}: there is no step in it", self.path("empty"))

    def test_damage_is_named_by_its_line(self):
        good = json.dumps(step_row(1, 3.0)) + "\n"
        metrics = self.path("bad/metrics.jsonl")
        for damage, message in (('{"step": 2, "lo\n', "expected a JSON object"),
                                ("\0\0\0\n", "expected a JSON object"),
                                ("[1]\n", "expected a JSON object"),
                                ('{"loss": 2}\n', "expected a number for step, found nothing"),
                                (json.dumps(step_row(2, "2.5")) + "\n", 'expected a number for loss, found "2.5"'),
                                (json.dumps(step_row(2, 2.5, planned=None)) + "\n",
                                 "expected a number for peak_bytes_planned, found null"),
                                (good, "step 1 follows step 1")):
            run = self.write("bad", good + damage + good)
            self.assert_fails(f"{metrics}:2: {message}", run)

    def test_a_last_line_that_is_being_written_is_left_out(self):
        run = self.write("live", json.dumps(step_row(1, 3.0)) + '\n{"step": 2, "lo')
        ended = self.call(run, "--out", self.path("out.svg"))
        self.assertEqual(ended.returncode, 0)
        self.assertEqual(ended.stderr, f"plot_run: {run}/metrics.jsonl:2: leaves out the last line, which is "
                                       "incomplete\n")

    def test_a_file_is_replaced_only_on_request(self):
        run = self.write_rows("a", [step_row(1, 3.0)])
        out = self.write("kept", "mine", "out.svg") + "/out.svg"
        ended = self.call(run, "--out", out)
        self.assertEqual((ended.returncode, ended.stderr), (1, f"plot_run: {out} exists; --overwrite replaces it\n"))
        with open(out, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        self.assertEqual(self.call(run, "--out", out, "--overwrite").returncode, 0)
        Drawing(out)
        nowhere = self.path("nowhere/out.svg")
        self.assertEqual(self.call(run, "--out", nowhere).stderr,
                         f"plot_run: cannot write {nowhere}: No such file or directory\n")

    def test_help_and_wrong_command_lines(self):
        ended = self.call("--help")
        self.assertEqual(ended.returncode, 0)
        self.assertIn("--overwrite", ended.stdout)
        self.assertEqual(self.call().returncode, 2)
        self.assertEqual(self.call(*"abcdefg", "--out", "x").returncode, 2)


if __name__ == "__main__":
    unittest.main()

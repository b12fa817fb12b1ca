#!/usr/bin/env python3
"""Tests the files that plan writes (JSON, messages, pages, memory snapshots) and --fit."""

import json
import os
import pickle
import re
import subprocess
import tempfile
import unittest

_PLAN = os.path.abspath("tools/plan")
_JOBS = os.path.abspath("tools/jobs")


class PlanFilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def call(self, job, *arguments):
        environment = dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder)
        return subprocess.run([_PLAN, f"--job={_JOBS}/{job}.textproto", *arguments], cwd="/", env=environment,
                              capture_output=True, text=True, timeout=300, check=False)

    def plan(self, job, *arguments):
        result = self.call(job, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def test_timeline(self):
        text = self.plan("quickstart", "--timeline")
        rows = text[text.index("Memory of one rank over a step"):].splitlines()
        moments = [re.match(r"  ((?:held|peak) [a-z ]*[a-z])  ", row) for row in rows]
        self.assertEqual([moment.group(1) for moment in moments if moment],
                         ["held after load", "peak of begin", "peak of forward", "peak of loss", "peak of backward",
                          "peak of reduce", "peak of update", "peak of end", "held after the step"])

    def test_json_takes_the_place_of_the_text(self):
        printed = self.plan("quickstart", "--json")
        plan = json.loads(printed)
        self.assertEqual((plan["version"], plan["name"]), (1, "quickstart"))
        self.assertNotIn("instructions", plan)
        self.assertIn("Plan of quickstart", self.plan("quickstart", "--json=plan.json"))
        self.assertEqual(self.read("plan.json"), printed)
        with_program = json.loads(self.plan("quickstart", "--json", "--dump_program"))
        names = {instruction["name"] for instruction in with_program["instructions"]}
        self.assertLessEqual({"AllGather", "AdamW"}, names)

    def test_what_is_refused_is_said_to_programs(self):
        budget = "--set=memory.budget_bytes=35000000"
        refused = self.call("quickstart", budget, "--json", "--proto=plan.binpb")
        self.assertEqual(refused.returncode, 2)
        plan = json.loads(refused.stdout)
        self.assertEqual(plan["verdict"], "DOES_NOT_FIT")
        self.assertEqual(refused.stderr, f"plan: {plan['text']}\n")
        self.assertEqual(plan["refusal"]["budget"]["bytes"], 35000000)
        self.assertEqual(plan["memory"]["arena_bytes"], plan["refusal"]["arena_bytes"])
        self.assertGreater(len(plan["buffers"]), 100)
        with open(self.path("plan.binpb"), "rb") as file:
            self.assertIn(plan["text"].encode(), file.read())
        self.assertGreater(len(plan["refusal"]["ways_out"]), 2)
        for way in plan["refusal"]["ways_out"]:
            settings = [f"--set={change['path']}={change['value']}" for change in way["overrides"]]
            with self.subTest(settings):
                changed = json.loads(self.plan("quickstart", budget, *settings, "--json"))
                self.assertEqual((changed["verdict"], changed["memory"]["arena_bytes"]), ("FITS", way["arena_bytes"]))

    def test_what_does_not_fit_is_explained_and_drawn_in_full(self):
        # Regression: a job that does not fit answered one line, whatever was asked for.
        refused = self.call("quickstart", "--set=memory.budget_bytes=1000000", "--explain", "--timeline",
                            "--html=plan.html", "--memory_snapshot=plan.pickle")
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, r"^plan: needs [\d.]+ .iB per rank, budget .* too little; .*\n$")
        for part in ["Plan of quickstart", "too little: the job does not fit", "none fits, and this one exceeds",
                     "Where every byte goes", "no batch.micro_batch fits", "What other strategies would need",
                     "held after the step"]:
            self.assertIn(part, " ".join(refused.stdout.split()))
        page = self.read("plan.html")
        self.assertRegex(page, r"The job does not fit: [\d.]+ .iB are missing")
        self.assertRegex(page, r'class="limit".*">budget [\d.]+ .iB</text>')
        with open(self.path("plan.pickle"), "rb") as file:
            self.assertEqual(len(pickle.load(file)["segments"]), 1)

    def test_errors_are_said_to_programs_with_their_fields(self):
        refused = self.call("quickstart", "--set=sharding.strategy=FULL", "--json=plan.json")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        plan = json.loads(self.read("plan.json"))
        self.assertEqual(plan["verdict"], "INVALID")
        [error] = plan["errors"]
        self.assertEqual((error["source"], error["line"], error["path"]), ("--set", None, "sharding.strategy"))
        self.assertIn("did you mean FULL_SHARD", error["message"])

    def test_memory_snapshot_is_the_plan(self):
        # The first job loops over micro-batches in one slot; in the second, LAYERED, each micro-batch has a slot.
        for job, *flags in [("quickstart", "--set=batch.global_batch=64"),
                            ("quickstart", "--set=batch.global_batch=64", "--set=sharding.accumulation=LAYERED"),
                            ("gpt2_124m", "--ranks=3")]:
            with self.subTest([job, *flags]):
                self.plan(job, *flags, "--json=plan.json", "--memory_snapshot=snapshot.pickle")
                plan = json.loads(self.read("plan.json"))
                with open(self.path("snapshot.pickle"), "rb") as file:
                    snapshot = pickle.load(file)
                self.check_snapshot(plan, snapshot)

    def check_snapshot(self, plan, snapshot):
        memory = plan["memory"]
        planned = [b for b in plan["buffers"] if b["memory"] == "arena" and b["address"] is not None and b["bytes"]]
        [segment] = snapshot["segments"]
        self.assertEqual((segment["address"], segment["total_size"]), (0, memory["arena_bytes"]))
        end = 0
        for block in segment["blocks"]:
            self.assertEqual(block["address"], end)  # The viewer expects blocks without gaps.
            end += block["size"]
        self.assertEqual(end, memory["arena_bytes"])

        [events] = snapshot["device_traces"]
        self.assertEqual(events[0]["action"], "segment_alloc")
        live, seen, most = {}, set(), 0
        for event in events[1:]:
            address, size = event["addr"], event["size"]
            buffer = event["frames"][0]
            if event["action"] == "alloc":
                self.assertFalse([a for a, s in live.items() if a < address + size and address < a + s])
                live[address] = size
                most = max(most, sum(live.values()))
                seen.add((buffer["filename"], address, size))
            elif event["action"] == "free_requested":
                self.assertEqual(live[address], size)
            else:
                self.assertEqual(event["action"], "free_completed")
                del live[address]
        self.assertEqual(seen, {(b["name"], b["address"], b["bytes"]) for b in planned})
        self.assertEqual(most, memory["lower_bound_bytes"])
        persistent = {b["address"]: b["bytes"] for b in planned if b["persistent"]}
        self.assertEqual(live, persistent)
        self.assertEqual(persistent, {b["address"]: b["requested_size"] for b in segment["blocks"]
                                      if b["state"] == "active_allocated"})

        backward = [event for event in events if len(event["frames"]) > 1 and "backward" in event["frames"][1]["name"]]
        frame = backward[0]["frames"][1]
        self.assertIn(frame["filename"], plan["model"]["units"])
        self.assertRegex(frame["name"], r"^\w+, backward, \w+ stream$")
        self.assertGreater(frame["line"], 0)

    def test_page(self):
        self.plan("quickstart", "--html=plan.html")
        page = self.read("plan.html")
        self.assertTrue(page.startswith("<!DOCTYPE html>"))
        self.assertIn(">peak ", page)
        self.assertNotIn("http", page)

    def test_page_of_the_longest_program_stays_small(self):
        self.plan("llama3_405b", "--html=plan.html")
        self.assertLess(os.path.getsize(self.path("plan.html")), 3 << 20)

    def test_fit(self):
        budget = "--set=memory.budget_bytes=60000000"
        for field in ["batch.micro_batch", "batch.sequence_length", "sharding.ranks"]:
            with self.subTest(field):
                text = self.plan("quickstart", budget, f"--fit={field}")
                found = re.fullmatch(rf"{re.escape(field)}=(\d+) fits: [A-Z_]+ needs [^;]* \(([\d,]+) bytes\) per "
                                     r"rank, budget 57\.2 MiB; (.*)\n", text)
                self.assertTrue(found, text)
                value, needed = int(found.group(1)), int(found.group(2).replace(",", ""))
                self.assertLessEqual(needed, 60000000)
                plan = json.loads(self.plan("quickstart", budget, f"--set={field}={value}", "--json"))
                self.assertEqual(plan["memory"]["arena_bytes"], needed)
                after = re.match(r"(\d+) needs .* \(([\d,]+) bytes\)$", found.group(3))
                if after:
                    self.assertGreater(int(after.group(2).replace(",", "")), 60000000)
                    refused = self.call("quickstart", budget, f"--set={field}={after.group(1)}")
                    self.assertEqual(refused.returncode, 2, refused.stdout)

    def test_fit_says_what_bounds_it(self):
        text = self.plan("gpt2_124m", "--set=memory.budget_bytes=1000000000000", "--fit=batch.sequence_length")
        self.assertRegex(text, r"^batch\.sequence_length=1024 fits: .*; 1025 is not possible: .*max_positions is 1024")

    def refused(self, code, wanted, *arguments):
        result = self.call("quickstart", *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, f"^plan: {wanted}[^\n]*\n$")

    def test_what_is_refused(self):
        self.refused(2, r"--fit: found \"optimizer\.beta1\"; allowed: batch\.micro_batch, batch\.sequence_length, "
                     r"sharding\.ranks", "--fit=optimizer.beta1")
        self.refused(2, r"no batch\.micro_batch fits: 1 needs .* per rank, budget 1\.0 MiB", "--fit=batch.micro_batch",
                     "--set=memory.budget_bytes=1048576")
        without = self.call("quickstart", "--set=runtime.device=CUDA", "--fit=batch.micro_batch")
        if without.returncode != 0:  # There is no GPU.
            self.assertRegex(without.stderr, r"^plan: --fit knows no memory of device CUDA.*; set memory\.budget_bytes")
        self.refused(2, r"--fit makes no plan of the job; leave out --timeline", "--fit=sharding.ranks", "--timeline")
        self.refused(2, r"--json and --explain both print to standard output", "--json", "--explain")
        for flag in ["json", "proto", "html", "memory_snapshot"]:
            self.refused(1, r"cannot write /nowhere/file: No such file or directory", f"--{flag}=/nowhere/file")


if __name__ == "__main__":
    unittest.main(verbosity=2)

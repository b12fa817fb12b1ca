#!/usr/bin/env python3
"""Tests what calls of the GPU kit's `run` owe to the calls before them, and what becomes of items that are cut or
interrupted."""

import json
import os
import signal
import sys
import tarfile
import threading
import unittest
from unittest import mock

sys.path[:0] = ["tools", "tests/tools/gpu"]

from fake_kit import KitCase  # noqa: E402
from gpu import child, items, main, measure, store  # noqa: E402


class CallsTest(KitCase):
    def pack(self, commit, packed="today"):
        with open(os.path.join(self.root, "kit.json"), "w", encoding="utf-8") as file:
            json.dump({"commit": commit, "packed": packed}, file)

    def test_what_has_ended_is_not_run_again_unless_asked(self):
        self.assertEqual(self.call("--only=^test/")[0], 1)
        self.assertEqual(self.ran(), ["Good", "All/OpTest", "Crash"])
        self.assertEqual(self.call("--only=^test/")[0], 1)
        self.assertEqual(len(self.ran()), 3)
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertEqual(self.ran()[3:], ["Good"])

    # Regression: a kit of a later commit in the same folder reported the results of the earlier commit as its own.
    def test_results_count_for_their_commit_alone(self):
        self.pack("aaa")
        self.assertEqual(self.call("--only=test/Good", "--only=^plan/qwen2_5_0_5b")[0], 0)
        self.assertEqual({item["commit"] for item in self.items().values()}, {"aaa"})
        self.pack("bbb")
        self.assertRegex(self.call("--list", "--only=test/Good")[1], r"test/Good +to do \(passed with commit aaa\), ")
        self.assertEqual(self.call("--only=test/Good")[0], 0)
        self.assertEqual(self.ran(), ["Good", "Good"])
        self.assertEqual({name: item["commit"] for name, item in self.items().items()},
                         {"modules/0": "bbb", "test/Good": "bbb", "plan/qwen2_5_0_5b_1024": "aaa"})
        self.assertIn("Of the items to do, 1 have results of commit aaa, which are not shown.", self.markdown())
        self.assertNotIn("| plan |", self.markdown())

    def test_kits_packed_of_changed_files_are_told_apart_by_when(self):
        for packed, wanted in (("noon", ["Good"]), ("noon", ["Good"]), ("one", ["Good", "Good"])):
            self.pack("aaa-dirty", packed)
            self.call("--only=test/Good")
            self.assertEqual(self.ran(), wanted)

    def test_trials_go_on_after_a_cut_and_begin_anew_when_asked(self):
        trials = self.write(os.path.join(self.out, "data/trials-qwen2_5_0_5b_1024.jsonl"), "")
        self.assertEqual(self.call("--only=^torch/qwen2_5_0_5b")[0], 0)
        self.assertTrue(os.path.exists(trials))
        self.assertEqual(self.call("--only=^torch/qwen2_5_0_5b", "--again")[0], 0)
        self.assertFalse(os.path.exists(trials))

    def test_an_item_that_the_budget_cuts_waits_behind_the_others(self):
        os.environ["FAKE_HANG"] = "1"
        self.short_items()
        code, said = self.call("--only=^torch/", "--only=test/Good", "--budget_seconds=1.5")
        self.assertEqual(code, 3, said)
        self.assertEqual(self.statuses()["torch/qwen2_5_0_5b_1024"], "cut")
        self.assertIn("call it again to continue", said)
        code, said = self.call("--only=^torch/", "--budget_seconds=0.1")
        self.assertEqual(code, 3)
        del os.environ["FAKE_HANG"]
        code, said = self.call("--only=^torch/")
        self.assertEqual(code, 0, said)
        self.assertLess(said.index("torch/qwen2_5_3b"), said.index("torch/qwen2_5_0_5b"))

    def short_items(self):
        every = main.all_items

        def short(kit):
            made = every(kit)
            for item in made:
                item.least = 0.2
            return made
        main.all_items = short
        self.addCleanup(lambda: setattr(main, "all_items", every))

    def test_an_interrupted_item_is_cut_and_done_by_a_later_call(self):
        interrupts = [True]

        def work(kit, item, seconds):
            if interrupts.pop():
                os.kill(os.getpid(), signal.SIGTERM)
            return {"status": store.PASSED}
        with mock.patch.object(main, "all_items", lambda kit: [items.Item("a", work)]):
            code, said = self.call()
            self.assertEqual((code, self.statuses()), (130, {"a": "cut"}))
            self.assertIn("interrupted by SIGTERM; call it again to continue", said)
            interrupts.append(False)
            self.assertEqual((self.call()[0], self.statuses()), (0, {"a": "passed"}))

    def test_tests_run_side_by_side_and_all_else_alone(self):
        running, seen = [], []
        both = threading.Barrier(2)

        def work(kit, item, seconds):
            running.append(item.name)
            if item.shares:
                both.wait(timeout=30)  # Breaks if the two tests do not run at once.
            seen.append((item.name, len(running)))
            running.remove(item.name)
            return {"status": store.PASSED}
        made = [items.Item("a", work), items.Item("b", work, shares=True), items.Item("c", work, shares=True),
                items.Item("d", work)]
        with mock.patch.object(main, "all_items", lambda kit: made):
            code, said = self.call("--tests_at_once=2")
        self.assertEqual(code, 0, said)
        self.assertEqual((seen[0], seen[-1]), (("a", 1), ("d", 1)))

    # Regression: an interruption while tests were being started waited for those that ran.
    def test_an_interruption_kills_all_tests_that_run(self):
        begun = threading.Barrier(3)

        def work(kit, item, seconds):
            begun.wait(timeout=30)
            return measure._outcome(child.run(["sleep", "1000"], {}, kit.log(item.name), seconds, kit.stop.is_set))

        def interrupt():
            begun.wait(timeout=30)
            os.kill(os.getpid(), signal.SIGTERM)
        made = [items.Item(name, work, shares=True) for name in "ab"] + [items.Item("c", work, shares=True)]
        with mock.patch.object(main, "all_items", lambda kit: made):
            threading.Thread(target=interrupt).start()
            code, said = self.call("--tests_at_once=2")
        self.assertEqual((code, self.statuses()), (130, {"a": "cut", "b": "cut"}))

    def test_an_item_that_takes_longer_than_it_may_fails(self):
        kept = store.Store(self.out, "aaa")
        kit = items.Kit(root=self.root, out=self.out, environment=dict(os.environ), plain={}, python=None)
        hang = items.Item("hang", lambda k, i, s: measure._outcome(
            child.run(["sleep", "1000"], {}, k.log("hang"), s)), limit=0.3)
        main.do(kit, hang, kept, 1000)
        self.assertEqual(kept.item("hang")["status"], "failed")
        self.assertIn("did not end within 0 s", kept.item("hang")["about"])

    def test_an_item_during_which_everything_ends_twice_is_given_up(self):
        kept = store.Store(self.out, "aaa")
        self.assertTrue(kept.begin("a"))
        self.assertTrue(store.Store(self.out, "aaa").begin("a"))
        kept = store.Store(self.out, "aaa")
        self.assertFalse(kept.begin("a"))
        self.assertEqual(kept.item("a")["status"], "failed")
        self.assertIn("2 times", kept.item("a")["about"])

    def test_a_report_that_is_none_is_not_overwritten(self):
        self.write(os.path.join(self.out, "report.json"), "{")
        code, said = self.call()
        self.assertEqual(code, 1)
        self.assertIn("remove it to start over", said)

    def test_the_list_tells_how_each_item_stands(self):
        self.call("--only=test/Good")
        code, said = self.call("--list", "--only=^test")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"test/Good +passed\ntest/All/OpTest +to do, 0\.1 min\n")

    def test_programs_are_unpacked_once_and_again_when_the_kit_is_another(self):
        path, unpacked = os.path.join(self.root, "bin/gpu_tests"), os.path.join(self.out, "bin/gpu_tests")
        archive = os.path.join(self.root, "bin", items.PROGRAMS)
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(path, "gpu_tests")
        os.remove(path)
        self.assertEqual(self.call("--only=test/Good")[0], 0)
        before = os.stat(unpacked)
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)
        os.utime(archive, ns=(1, 1))
        self.assertEqual(self.call("--only=test/Good", "--again")[0], 0)
        self.assertNotEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests what calls of the GPU kit's `run` owe to the calls before them, and what becomes of items that do not fit, are
cut or are interrupted."""

import json
import os
import signal
import sys
import tarfile
import unittest
from unittest import mock

sys.path[:0] = ["tools", "tests/tools/gpu"]

from fake_kit import KitCase  # noqa: E402
from fake_programs import gtest  # noqa: E402
from gpu import archive, calls, kit, orders, outcome, store  # noqa: E402


def passes(kit_, item, seconds):
    return {"status": store.PASSED}


class CallsTest(KitCase):
    def pack(self, commit, packed="today"):
        self.write("kit.json", json.dumps({"commit": commit, "packed": packed}))

    def ran(self):
        return [call.flags["gtest_filter"] for call in self.programs.ran if call.name == "gpu_tests"
                and call.environment["GTEST_SHARD_INDEX"] == "0" and "GpuModules.*" != call.flags["gtest_filter"]]

    def with_items(self, *made):
        return mock.patch.object(orders, "items", lambda kit_, names: list(made))

    def test_what_has_ended_is_not_run_again_unless_asked(self):
        self.programs.instead["gpu_tests"] = lambda call: gtest(call, {"A.B": "OK" if "Modules" in call.flags[
            "gtest_filter"] else "FAILED"})
        for _ in range(2):
            self.assertEqual(self.call("--order=verify", "--only=laws/graphs")[0], 1)
            self.assertEqual(self.ran(), ["GraphLaws.*"])
        del self.programs.instead["gpu_tests"]
        self.assertEqual(self.call("--order=verify", "--only=laws/graphs", "--again")[0], 0)
        self.assertEqual(self.ran(), ["GraphLaws.*"] * 2)

    # Regression: a kit of a later commit in the same folder reported the results of the earlier commit as its own.
    def test_results_count_for_their_commit_alone(self):
        self.pack("aaa")
        chosen = ("--order=nccl", "--only=test/nccl$", "--only=comm/in_process")
        self.assertEqual(self.call(*chosen)[0], 0)
        self.assertEqual({item["commit"] for item in self.items().values()}, {"aaa"})
        self.pack("bbb")
        self.assertRegex(self.call("--list", *chosen)[1], r"test/nccl .* to do \(passed with commit aaa\)\n")
        self.assertEqual(self.call(*chosen[:2])[0], 0)
        self.assertEqual(len(self.ran()), 2)
        self.assertEqual({name: item["commit"] for name, item in self.items().items()},
                         {"modules/0": "bbb", "test/nccl": "bbb", "comm/in_process": "aaa"})
        self.assertIn("Of the items to do, 1 have results of commit aaa, which are not shown.", self.text("report.md"))
        self.assertNotIn("AllGather", self.text("report.md") + self.text("rates.json"))

    def test_kits_packed_of_changed_files_are_told_apart_by_when(self):
        for packed, wanted in (("noon", 1), ("noon", 1), ("one", 2)):
            self.pack("aaa-dirty", packed)
            self.call("--order=nccl", "--only=test/nccl$")
            self.assertEqual(len(self.ran()), wanted)

    def test_results_of_several_orders_are_on_one_page(self):
        self.call("--order=nccl")
        self.call("--order=formats")
        self.assertIn("AllGather", self.text("report.md"))
        self.assertIn("MatMul", self.text("report.md"))

    def test_trials_go_on_after_a_cut_and_begin_anew_when_asked(self):
        trials = self.write(os.path.join(self.out, "data/trials-qwen2_5_0_5b_1024.jsonl"), "")
        chosen = ("--order=hours", "--only=^torch_search/qwen2_5_0_5b_1024")
        self.assertEqual(self.call(*chosen)[0], 0)
        self.assertTrue(os.path.exists(trials))
        self.assertEqual(self.call(*chosen, "--again")[0], 0)
        self.assertFalse(os.path.exists(trials))

    def test_a_call_ends_before_the_first_item_that_does_not_fit_and_says_what_did_not(self):
        took = []

        def work(kit_, item, seconds):
            took.append((item.name, seconds))
            self.now += 50
            return {"status": store.PASSED}
        made = [kit.Item("a", work, 50), kit.Item("b", work, 50), kit.Item("c", work, 10)]
        with self.with_items(*made):
            code, said = self.call("--budget_seconds=104")
            # Five seconds are left to end an item and to write what it found.
            self.assertEqual((code, took), (3, [("a", 99)]))
            self.assertIn("not done, for want of time: b (50 s), c (10 s): about 60 s; call it again to go on, ", said)
            self.assertEqual(self.call("--budget_seconds=1000")[0], 0)
        self.assertEqual([name for name, _ in took], ["a", "b", "c"])

    def test_an_item_that_is_longer_than_any_call_holds_up_none_behind_it(self):
        with self.with_items(kit.Item("a", passes, 100), kit.Item("b", passes, 50)):
            code, said = self.call("--budget_seconds=80")
            self.assertEqual((code, self.statuses()), (3, {"b": "passed"}))
            self.assertIn("not done, for want of time: a (100 s): ", said)
            self.assertEqual(self.call("--budget_seconds=120")[0], 0)

    def test_the_first_call_of_an_order_has_more_seconds_than_those_after_it(self):
        items = [kit.Item("modules/0", passes, 1, gate=True), kit.Item("a", passes, 1)]
        kept = store.Store(self.out, "aaa")
        seconds = lambda *arguments: [next(budget) for budget in [calls.budgets(*arguments, items, kept)] * 3]
        self.assertEqual(seconds(None, ["speed"]), [400, 300, 300])
        self.assertEqual(seconds(99, ["speed"]), [99, 99, 99])
        for unlimited in ([], ["hours"]):
            self.assertEqual(seconds(None, unlimited), [float("inf")] * 3)
        kept.end("modules/0", {"status": store.PASSED})
        self.assertEqual(seconds(None, ["speed"])[0], 400)
        kept.end("a", {"status": store.PASSED})
        self.assertEqual(seconds(None, ["speed"])[0], 300)

    def test_an_item_that_the_budget_cuts_waits_behind_the_others(self):
        order = []

        def work(kit_, item, seconds):
            order.append(item.name)
            return {"status": outcome.TIMED_OUT if len(order) == 1 else store.PASSED, "about": "did not end"}
        with self.with_items(kit.Item("long", work, 10), kit.Item("b", work, 10)):
            self.assertEqual(self.call("--budget_seconds=500")[0], 3)
            self.assertEqual(self.statuses(), {"long": "cut", "b": "passed"})
            self.assertEqual(self.call("--budget_seconds=500")[0], 0)
        self.assertEqual(order, ["long", "b", "long"])

    def test_an_item_that_takes_longer_than_it_may_fails(self):
        hang = kit.Item("hang", lambda k, i, s: {"status": outcome.TIMED_OUT, "about": f"after {s} s"}, 10, limit=60)
        with self.with_items(hang):
            self.assertEqual(self.call()[0], 1)
        self.assertEqual(self.items()["hang"]["about"], "after 60 s")

    def test_an_interrupted_item_is_cut_and_done_by_a_later_call(self):
        interrupts = [True]

        def work(kit_, item, seconds):
            if interrupts.pop():
                os.kill(os.getpid(), signal.SIGTERM)
            return {"status": store.PASSED}
        with self.with_items(kit.Item("a", work, 1)):
            code, said = self.call()
            self.assertEqual((code, self.statuses()), (130, {"a": "cut"}))
            self.assertIn("interrupted by SIGTERM; call it again to continue", said)
            interrupts.append(False)
            self.assertEqual((self.call()[0], self.statuses()), (0, {"a": "passed"}))

    def test_an_item_during_which_everything_ends_twice_is_given_up(self):
        for _ in range(2):
            self.assertTrue(store.Store(self.out, "aaa").begin("a"))
        kept = store.Store(self.out, "aaa")
        self.assertFalse(kept.begin("a"))
        self.assertEqual(kept.item("a")["status"], "failed")
        self.assertIn("2 times", kept.item("a")["about"])

    def test_what_is_no_report_and_no_archive_is_not_overwritten(self):
        self.write(os.path.join(self.out, "report.json"), "{")
        code, said = self.call()
        self.assertEqual(code, 1)
        self.assertIn("remove it to start over", said)
        self.out = os.path.join(self.folder, "other")
        code, said = self.call(f"--archive={self.write('mine', 'my notes')}")
        self.assertEqual((code, said.count("\n")), (1, 1))
        self.assertIn("is no archive", said)
        path = os.path.join(self.folder, "mine.tar.gz")
        with tarfile.open(path, "w:gz") as packed:
            packed.add(self.write("../evil", "x"), "../evil")
        self.assertIn("is no result of a kit", self.call(f"--archive={path}")[1])

    # Visits end at any moment: also while an archive is put back, which a later call then does anew.
    def test_an_archive_that_was_cut_or_put_back_in_part_is_known_as_such(self):
        whole = os.path.join(self.folder, "whole.tar.gz")
        with self.with_items(kit.Item("a", passes, 1)):
            self.assertEqual(self.call(f"--archive={whole}")[0], 0)
        self.out = os.path.join(self.folder, "other")
        cut = self.write("cut.tar.gz", "")
        with open(whole, "rb") as file, open(cut, "wb") as part:
            part.write(file.read(os.path.getsize(whole) // 2))
        code, said = self.call(f"--archive={cut}")
        self.assertEqual((code, os.path.exists(os.path.join(self.out, "report.json"))), (1, False))
        self.assertIn("was cut short; remove it or name another file", said)
        archive.restore(whole, self.out)
        self.assertEqual(self.statuses(), {"a": "passed"})

    # A result that the page cannot show must not end a visit to a GPU.
    def test_a_result_that_the_page_cannot_show_ends_no_call(self):
        strange = lambda k, i, s: {"status": store.PASSED, "result": {"tests": "many"}}
        with self.with_items(kit.Item("test/strange", strange, 1), kit.Item("test/b", passes, 1)):
            self.assertEqual(self.call()[0], 0)
        self.assertEqual(self.statuses(), {"test/strange": "passed", "test/b": "passed"})
        self.assertIn("report.md cannot be made: KeyError", self.text("report.md"))

    def test_programs_are_unpacked_once_and_again_when_the_kit_is_another(self):
        path, unpacked = os.path.join(self.root, "bin/gpu_tests"), os.path.join(self.out, "bin/gpu_tests")
        programs = os.path.join(self.root, "bin", kit.PROGRAMS)
        with tarfile.open(programs, "w:xz") as packed:
            packed.add(path, "gpu_tests")
        os.remove(path)
        chosen = ("--order=nccl", "--only=test/nccl$")
        self.assertEqual(self.call(*chosen)[0], 0)
        before = os.stat(unpacked)
        self.assertEqual(self.call(*chosen, "--again")[0], 0)
        self.assertEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)
        os.utime(programs, ns=(1, 1))
        self.assertEqual(self.call(*chosen, "--again")[0], 0)
        self.assertNotEqual(os.stat(unpacked).st_ctime_ns, before.st_ctime_ns)


if __name__ == "__main__":
    unittest.main()

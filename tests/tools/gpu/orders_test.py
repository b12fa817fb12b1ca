#!/usr/bin/env python3
"""Tests every order of the GPU kit whole, on stand-ins for its programs and by a fake clock: its items run in their
order and within the seconds of their calls, and an end at any moment loses the item that ran and nothing else."""

import fnmatch
import json
import os
import re
import sys
import tarfile
import unittest
from unittest import mock

sys.path[:0] = ["tools", "tests/tools/gpu"]

from bench.train import textproto  # noqa: E402
from fake_kit import GPUS, KitCase  # noqa: E402
from gpu import calls, expected, orders  # noqa: E402

FIRST_OF_EACH = {"speed": "test/ops", "nccl": "test/nccl/2", "verify": "test/laws/steps",
                 "large": "train/qwen2_5_7b_1024/8bit_16k", "h100": "turns/qwen2_5_0_5b_1024/steps",
                 "formats": "formats/qwen2_5_0_5b_1024", "peer": "train/qwen2_5_1_5b_1024/as_peer",
                 "hours": "ops/qwen2_5_0_5b_1024"}


class Killed(BaseException):
    """The machine was taken away."""


class OrdersTest(KitCase):
    def setUp(self):
        super().setUp()
        self.done, self.victim = [], ""
        real = calls.Call._work

        def work(call, item, limit):
            if item.name == self.victim:
                self.programs.before = self.kill
            made = real(call, item, limit)
            self.now += item.expected
            self.done.append(item.name)
            return made
        patch = mock.patch.object(calls.Call, "_work", work)
        patch.start()
        self.addCleanup(patch.stop)

    def kill(self, name):
        self.victim, self.programs.before = "", lambda name: None
        raise Killed

    def names(self, order):
        """Returns the items of an order as --list names them."""
        code, said = self.call("--list", *([f"--order={order}"] if order else []))
        self.assertEqual(code, 0, said)
        return [line.split()[0] for line in said.splitlines() if re.match(r"\S+/\S+ ", line)]

    def test_every_order_begins_with_a_kernel_of_each_module_and_its_most_valuable_item(self):
        for order, first in FIRST_OF_EACH.items():
            self.assertEqual(self.names(order)[:2], ["modules/0", first])
        self.assertEqual(set(FIRST_OF_EACH), set(orders.ORDERS))

    def start(self):
        self.now += expected.CALL
        return GPUS

    def run_whole(self, order):
        """Calls the order until it is done. Returns the seconds of each call."""
        taken, code = [], 3
        while code == 3:
            began = self.now
            with mock.patch.object(calls, "sampler") as fake:
                fake.Sampler.return_value.__enter__.return_value.summary.return_value = {"sm_mhz": 1}
                code, said = self.call(f"--order={order}", find=self.start)
            taken.append(self.now - began)
            self.assertLess(len(taken), 15, said)
        self.assertEqual(code, 0, said)
        return taken

    def test_every_order_runs_whole_in_its_order_and_within_the_seconds_of_its_calls(self):
        for order in orders.ORDERS:
            with self.subTest(order):
                self.out = os.path.join(self.folder, order)
                names, self.done = self.names(order), []
                taken = self.run_whole(order)
                self.assertEqual(self.done, names)
                self.assertEqual(set(self.statuses().values()), {"passed"})
                if order != "hours":
                    self.assertLessEqual(taken[0], calls.FIRST)
                    self.assertLessEqual(max(taken[1:], default=0), calls.LATER)
                    self.assertIn(f"and {len(taken)} call", self.listed_before(order))
                for name, item in self.items().items():
                    sampled = name.split("/")[0] in ("train", "trace", "turns", "torch", "torch_search", "tune", "ops",
                                                     "comm", "resume", "formats", "sweep")
                    self.assertEqual(item.get("clocks"), {"sm_mhz": 1} if sampled else None, name)

    def listed_before(self, order):
        """Returns the last line of the list as it was before anything ran."""
        here, self.out = self.out, os.path.join(self.folder, "nothing")
        said = self.call("--list", f"--order={order}")[1]
        self.out = here
        return said.splitlines()[-1]

    def check_complete(self, archive, done):
        """Checks that what was written is whole, and tells of exactly the items `done`."""
        finished = [name for name, item in self.items().items() if item.get("status") == "passed"]
        self.assertEqual(finished, done)
        self.assertEqual(self.rates()["format"], 1)
        self.assertIn(f" {len(done)} passed, ", self.text("report.md"))
        with tarfile.open(archive) as packed:
            for name in packed.getnames():
                text = packed.extractfile(name).read().decode()
                if name == "report.json":
                    self.assertEqual([n for n, i in json.loads(text)["items"].items() if i.get("status")], done)
                elif name.endswith(".json"):
                    json.loads(text)
            self.assertLessEqual({"report.json", "report.md", "rates.json"}, set(packed.getnames()))

    # What was on the machine is gone with it: all but the archive, from which the next visit goes on.
    def test_an_end_at_any_item_loses_that_item_and_the_next_visit_goes_on(self):
        for order in orders.ORDERS:
            if order == "hours":
                continue
            with self.subTest(order):
                archive, self.out = (os.path.join(self.folder, name) for name in (f"{order}.tar.gz", f"{order}-none"))
                names, self.done = self.names(order), []
                for visit, victim in enumerate(names):
                    self.out, self.victim = os.path.join(self.folder, f"{order}-{visit}"), victim
                    with self.assertRaises(Killed):
                        self.call(f"--order={order}", "--budget_seconds=10000", f"--archive={archive}")
                    self.assertEqual(self.done, names[:visit])
                    self.check_complete(archive, names[:visit])
                self.assertEqual(self.call(f"--order={order}", "--budget_seconds=10000", f"--archive={archive}")[0], 0)
                self.assertEqual(self.done, names)
                self.check_complete(archive, names)

    def test_without_an_order_all_run_one_after_another_and_each_item_once(self):
        each = {order: self.names(order)[1:] for order in orders.ORDERS}
        every = [name for names in each.values() for name in names]
        self.assertEqual(self.names(""), ["modules/0", *dict.fromkeys(every)])
        for order, names in each.items():  # Two rows of one name would count as one.
            self.assertEqual(len(set(names)), len(names), order)
        twice = {name for name in every if every.count(name) > 1}
        self.assertEqual(twice, {*each["speed"], *each["formats"]} & set(each["h100"]))

    # So a table for one of them serves both, and `tune` runs for one.
    def test_presets_of_both_lengths_have_the_same_matmuls(self):
        def matmuls(name):
            with open(f"tools/bench/jobs/gpu/{name}.textproto", encoding="utf-8") as file:
                job = textproto.parse(file.read())
            return (job["model"], job["batch"]["micro_batch"] * job["batch"]["sequence_length"], job["precision"],
                    job["memory"]["loss_chunk_tokens"], job["activation_checkpointing"])
        for shape in orders.SHAPES:
            self.assertEqual(matmuls(f"{shape}_1024"), matmuls(f"{shape}_4096"))

    # The same card is compared in the same way, whichever of the two orders it runs.
    def test_the_orders_of_both_cards_have_the_same_pairs(self):
        paired = lambda order: [name for name in self.names(order)
                                if re.search(r"^turns/.*(steps|pack|attention)$|/(before|after|cudnn|own)$", name)]
        self.assertEqual(paired("speed"), paired("h100"))
        self.assertEqual(len(paired("h100")), 27)

    def test_several_gpus_add_nccl_between_them_if_they_are_of_one_kind(self):
        one = GPUS.all[0]
        two = type(GPUS)([one, one, one], "13.0")
        self.assertEqual(self.call("--order=nccl", "--budget_seconds=10000", find=lambda: two)[0], 0)
        self.assertEqual(self.done[-5:], ["comm/in_process", "comm/nccl", "train/qwen2_5_0_5b_1024/nccl",
                                          "train/qwen2_5_0_5b_1024/nccl_windows", "comm/peers"])
        windows = [call for call in self.programs.ran if call.name == "train"][-1]
        self.assertEqual([windows.sets[name] for name in ("sharding.ranks", "runtime.nccl_windows")], ["2", "true"])

    def test_every_kernel_file_has_a_case_for_compute_sanitizer(self):
        files = {name for name in os.listdir("kernels/cuda") if name.endswith(".cu")}
        found = {pattern: fnmatch.filter(files, pattern) for pattern in orders.CASE_OF_FILE}
        self.assertEqual({name for names in found.values() for name in names}, files)
        self.assertEqual([pattern for pattern, names in found.items() if not names], [])


if __name__ == "__main__":
    unittest.main()

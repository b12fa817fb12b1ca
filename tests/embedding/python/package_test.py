"""Tests the Python package. run_test.py runs it in a virtual environment in which the wheel is installed.

    package_test.py HEADERS    HEADERS is the folder of shale.h
"""

import copy
import ctypes
import dataclasses
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import shale
from shale import _c

from trainers import JOB, TOKENS, Counter, TestOfTrainers, sample

_HEADERS = sys.argv.pop(1)


class DeclarationsTest(unittest.TestCase):
    """The declarations for ctypes are those of the headers."""

    def test_structs(self):
        lines = [f'printf("sizeof {name} %zu\\n", sizeof({name}));' for name in _c.STRUCTS]
        for name, struct in _c.STRUCTS.items():
            lines += [f'printf("{name} {member} %zu\\n", offsetof({name}, {member}));' for member, _ in struct._fields_]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sizes.c")
            with open(path, "w", encoding="utf-8") as file:
                file.write("#include <shale_model.h>\n#include <stdio.h>\nint main(void) {" + "\n".join(lines) + "}\n")
            subprocess.run(["cc", "-I", _HEADERS, "-o", path + ".out", path], check=True)
            printed = subprocess.run([path + ".out"], check=True, stdout=subprocess.PIPE, text=True).stdout
        here = {f"sizeof {name} {ctypes.sizeof(struct)}" for name, struct in _c.STRUCTS.items()}
        for name, struct in _c.STRUCTS.items():
            here |= {f"{name} {member} {getattr(struct, member).offset}" for member, _ in struct._fields_}
        self.assertEqual(set(printed.splitlines()), here)

    def test_functions(self):
        declared = {}
        for header in ("shale.h", "shale_admission.h", "shale_model.h", "shale_weights.h"):
            with open(os.path.join(_HEADERS, header), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
            for name, arguments in re.findall(r"^SHALE_API\s+\w+\s+(shale_\w+)\((.*?)\);", text, re.S | re.M):
                without_functions = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", arguments)
                declared[name] = 0 if arguments == "void" else without_functions.count(",") + 1
        here = {name: len(arguments) + 1 for name, arguments in _c.CALLS.items()}
        here.update({name: len(arguments) + 1 for name, (_, arguments) in _c.BUILDER_CALLS.items()})
        here["shale_api_version"] = 0
        self.assertEqual(declared, here)


class PackageTest(TestOfTrainers):
    def test_plans(self):
        job = self.job.with_set({"model.mlp.vocabulary": TOKENS})
        plan = shale.plan(job, ranks=4)
        self.assertEqual(plan.ranks, 4)
        self.assertEqual(plan.json()["memory"]["peak_bytes"], plan.peak_bytes)
        self.assertIn("activation checkpointing", plan.explain())
        with self.assertRaises(shale.OutOfMemory) as raised:
            shale.plan(job, set={"memory.budget_bytes": 1000})
        self.assertIn("too little", str(raised.exception))

    def test_admits_jobs_of_others(self):
        text = self.job.with_set({"model.mlp.vocabulary": TOKENS}).text
        plan = shale.plan(shale.Job.parse(text))
        fits = shale.admit(text, budget_bytes=plan.arena_bytes, hardware_threads=2)
        self.assertTrue(fits.fits, fits.text)
        self.assertEqual((fits.verdict, fits.arena_bytes), ("FITS", plan.arena_bytes))
        self.assertEqual(fits.json()["memory"]["arena_bytes"], plan.arena_bytes)
        self.assertIn(fits.text.encode(), fits.message)
        self.assertEqual(shale.admit(shale.Job.parse(text)).arena_bytes, plan.arena_bytes)
        invalid = shale.admit(text, set={"sharding.strategy": "FULL"})
        self.assertEqual((invalid.verdict, invalid.arena_bytes, invalid.fits), ("INVALID", 0, False))
        self.assertIn("did you mean FULL_SHARD?", invalid.text)
        with self.assertRaises(shale.DeadlineExceeded):
            shale.admit(text, seconds=1e-9)
        with self.assertRaises(shale.OutOfMemory):
            shale.admit(text, memory_bytes=1)
        for wrong, error in (({"device": "TPU"}, ValueError), ({"most_ranks": -1}, shale.InvalidJob)):
            with self.assertRaises(error):
                shale.admit(text, **wrong)
        with self.assertRaises(TypeError):
            shale.admit(7)
        stop = shale.Stop()
        stop.request()
        with self.assertRaises(shale.Cancelled):
            shale.admit(text, stop=stop)

    def test_ways_out_are_settings(self):
        text = ("model { decoder { width: 16 layers: 4 heads: 2 vocabulary: 50 } } lr_schedule { steps: 1 }\n"
                "batch { global_batch: 8 micro_batch: 2 sequence_length: 32 }")
        budget = shale.admit(text).arena_bytes * 9 // 10
        refused = shale.admit(text, budget_bytes=budget)
        self.assertEqual(refused.verdict, "DOES_NOT_FIT")
        self.assertTrue(refused.ways_out)
        for way in refused.ways_out:
            changed = shale.admit(text, set=way.overrides, budget_bytes=budget)
            self.assertEqual((changed.fits, changed.arena_bytes), (True, way.arena_bytes), way)

    def test_verifies_jobs(self):
        seen = []
        verification = shale.verify(self.job, data=self.samples(), seconds=1e-6, on_check=seen.append,
                                    temporary_folder=self.folder)
        self.assertTrue(verification.passed, verification)
        self.assertEqual(list(verification), seen)
        self.assertIn("2 ranks", [check.name for check in verification])
        self.assertIn("all checks hold", str(verification))
        self.assertEqual(os.listdir(self.folder), [])

        reads = []

        def impure(number):
            reads.append(number)
            return sample(len(reads))

        verification = shale.verify(self.job, data=shale.Samples(impure, 31, vocabulary=TOKENS), seconds=1e-6)
        self.assertFalse(verification.passed)
        failed, = (check for check in verification if not check.passed)
        self.assertEqual(failed.name, "data")
        self.assertIn("not a function of the position", failed.remark)
        with self.assertRaises(shale.InvalidJob):
            shale.verify(self.job, seconds=-1)

    def test_jobs(self):
        with self.assertRaises(shale.InvalidJob) as raised:
            shale.Job.parse("bach { }", name="my.textproto")
        self.assertIn("my.textproto:1:1", str(raised.exception))
        with self.assertRaises(shale.NotFound):
            shale.Job.load(os.path.join(self.folder, "missing.textproto"))
        self.assertEqual(shale.Job.parse(self.job.text).text, self.job.text)

    def test_a_string_is_a_path_and_never_a_text(self):
        path = os.path.join(self.folder, "job.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.job.with_set({"model.mlp.vocabulary": TOKENS}).text)
        for job in (path, path.encode(), pathlib.Path(path)):
            self.assertEqual(shale.plan(job).ranks, 2)
        # Regression: a short text was taken for a path, and a long one for a name that is too long.
        for text in ("model { mlp { } }", JOB * 20):
            for use in (shale.plan, shale.Trainer):
                with self.assertRaises(shale.NotFound) as raised:
                    use(text)
                self.assertIn("no file has this path", str(raised.exception))
                self.assertIn("shale.Job.parse(text)", str(raised.exception))

    def test_reports_are_values_that_never_change(self):
        with shale.Trainer(self.job, data=self.samples()) as trainer:
            first, second = trainer.step(), trainer.step()
            seen = []
            trainer.run(lambda report: seen.append(report) or report.step == 4)
        self.assertEqual([first.step, second.step, *(report.step for report in seen)], [1, 2, 3, 4])
        self.assertIs(first.updated, True)
        self.assertEqual(pickle.loads(pickle.dumps(first)), first)
        self.assertNotEqual(first, second)
        self.assertEqual(len({first, second, first}), 2)
        self.assertEqual(dataclasses.asdict(first)["loss"], first.loss)
        self.assertIn(f"loss={first.loss!r}", repr(first))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            first.loss = 0

    def test_streams_and_samples_give_the_same_bits_also_after_a_stop(self):
        losses = self.losses(data=self.samples())
        self.assertEqual(len(losses), 6)
        self.assertEqual(self.losses(data=shale.Stream(Counter(), vocabulary=TOKENS)), losses)
        parts = []
        for steps in (2, 4):
            with shale.Trainer(self.job, data=shale.Stream(Counter(), vocabulary=TOKENS), resume="auto",
                               checkpoint_folder=os.path.join(self.folder, "checkpoints")) as trainer:
                parts += [trainer.step().loss for _ in range(steps)]
                trainer.save()
        self.assertEqual(parts, losses)

    def test_parameters_are_read_and_written(self):
        with shale.Trainer(self.job, data=self.samples()) as trainer:
            weight = trainer.parameters["head.weight"]
            self.assertEqual((weight.shape, weight.dtype), ((TOKENS, 8), np.float32))
            trainer.parameters["head.weight"] = weight + 1
            np.testing.assert_array_equal(trainer.parameters["head.weight"], weight + 1)
            self.assertIn("hidden.0.bias", list(trainer.parameters))
            with self.assertRaises(KeyError):
                trainer.parameters["tail.weight"]  # pylint: disable=expression-not-assigned
            with self.assertRaises(ValueError):
                trainer.parameters["head.weight"] = weight[1:]

    def test_a_loop_of_ones_own(self):
        job = self.job.with_set({"runtime.generate": True})
        with shale.Trainer(job, data=self.samples()) as trainer:
            weight = trainer.parameters["head.weight"]
            trainer.set_learning_rate(0)
            trainer.step()
            np.testing.assert_array_equal(trainer.parameters["head.weight"], weight)
            trainer.set_learning_rate(None)
            trainer.set_data(shale.Samples([sample(7)] * 4, name="other", vocabulary=TOKENS))
            trainer.add_metric("reward", 0.5)
            trainer.step()
            self.assertTrue((trainer.parameters["head.weight"] != weight).any())
            moments = trainer.optimizer_states["m"]
            moments.set_rows("head.weight", 3, weight[3:5])
            np.testing.assert_array_equal(moments.rows("head.weight", 3, 2), weight[3:5])
            self.assertEqual(len(trainer.generate([1, 2], 5)), 5)

    def test_documents_in_a_sequence(self):
        decoder = "model { decoder { width: 8 layers: 1 heads: 2 hidden: 12 init_std: 0.5 } }"
        job = shale.Job.parse(JOB[JOB.index("batch"):] + decoder).with_set({"data.packing": "PACK"})

        def loss(length):
            def read(number):
                inputs, targets = sample(number)
                return {"inputs": inputs, "targets": targets, "position_ids": np.arange(len(inputs)) % length}

            with shale.Trainer(job, data=shale.Samples(read, 31, vocabulary=TOKENS)) as trainer:
                return trainer.step().loss

        self.assertNotEqual(loss(2), loss(3))

    def test_errors_of_callbacks_are_causes(self):
        def broken(number):
            if number > 10:
                raise KeyError("row 11")
            return sample(number)

        with shale.Trainer(self.job, data=shale.Samples(broken, 31, vocabulary=TOKENS)) as trainer:
            with self.assertRaises(shale.ShaleError) as raised:
                for _ in trainer:
                    pass
        self.assertIn("row 11", str(raised.exception))
        self.assertIsInstance(raised.exception.__cause__, KeyError)

        @shale.model(digest="none")
        def wrong(b):
            b.begin_unit("only")
            raise RuntimeError("no such layer")

        with self.assertRaises(shale.ShaleError) as raised:
            shale.plan(shale.Job.parse(JOB[JOB.index("batch"):], own_model=True), model=wrong)
        self.assertIn("no such layer", str(raised.exception))

    def test_misuse_of_a_builder_is_told_in_names_of_python(self):
        def parameter(b):
            return b.parameter(b.group("all"), "table", (b.options.vocabulary, 4))

        def begin(b):
            b.begin_unit("all")
            return b.embedding(parameter(b))

        def no_loss(b):
            begin(b)
            b.end_last_unit()

        misuses = [no_loss, lambda b: b.embedding(parameter(b)), lambda b: b.end_unit(begin(b)), begin,
                   lambda b: b.linear(begin(b), 99), lambda b: b.parameter(7, "p", (1, 1)),
                   lambda b: b.swiglu(b.split_last(begin(b), 3)), lambda b: b.rope(begin(b)),
                   lambda b: (begin(b), b.begin_unit("other")), lambda b: b.mean_squared_error(begin(b)),
                   lambda b: b.head_norm(begin(b), parameter(b), begin(b)), lambda b: b.end_last_unit()]
        job = shale.Job.parse(JOB[JOB.index("batch"):], own_model=True)
        for build in misuses:
            with self.assertRaises(shale.ShaleError) as raised:
                self.losses_of(job, model=shale.Model(build, "wrong", "digest"), data=self.samples())
            self.assertNotRegex(str(raised.exception), r"\b[A-Z][a-z]+[A-Z]\w*|::", str(raised.exception))

    def test_attention_in_both_directions(self):
        @shale.model(digest="width=6")
        def encoder(b):
            group = b.group("all")
            table = b.parameter(group, "table", (b.options.vocabulary, 18))
            head = b.parameter(group, "head", (b.options.vocabulary, 6))
            b.begin_unit("all")
            qkv = b.embedding(table)
            heads = [b.split_first(b.split_last(b.slice(qkv, 1, 6 * i, 6), 2), b.options.micro_batch) for i in range(3)]
            b.linear_cross_entropy(b.bidirectional_attention(*heads), head)
            b.end_last_unit()

        self.job = shale.Job.parse(JOB[JOB.index("batch"):], own_model=True)
        self.assertEqual(len(self.losses(model=encoder, data=self.samples())), 6)
        self.job = self.job.with_set({"runtime.generate": True})
        with self.assertRaises(shale.ShaleError) as raised:
            self.losses(model=encoder, data=self.samples())
        self.assertIn("a model with bidirectional attention cannot generate tokens", str(raised.exception))

    # Regression: a copy had the handle of the original, and freed it.
    def test_copies_of_jobs(self):
        path = os.path.join(self.folder, "job.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(JOB)
        for job in (self.job, shale.Job.load(path, set={"sharding.ranks": 1})):
            for other in (copy.copy(job), copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
                self.assertEqual(other.text, job.text)
                del other
            self.assertIn("mlp", job.text)
        pickled = pickle.dumps(job)
        with open(path, "a", encoding="utf-8") as file:
            file.write("checkpoint { keep_last: 7 }")
        with self.assertRaisesRegex(ValueError, "is not the job that was pickled"):
            pickle.loads(pickled)
        for cannot in (shale.Stop(), shale.plan(self.job.with_set({"model.mlp.vocabulary": TOKENS}))):
            for make in (copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                    make(cannot)

    def test_parameters_keep_their_trainer(self):
        # Regression: the trainer was freed.
        trainer = shale.Trainer(self.job, data=self.samples())
        weight = trainer.parameters["head.weight"]
        for parameters in (trainer.parameters, trainer.optimizer_states["m"]):
            del trainer
            self.assertEqual(parameters["head.weight"].shape, weight.shape)
            trainer = shale.Trainer(self.job, data=self.samples())
        trainer.close()

    def test_a_trainer_that_is_dropped_frees_its_data_last(self):
        for _ in range(20):  # Regression: the thread that reads ahead called functions that were freed already.
            shale.Trainer(self.job, data=self.samples()).step()

    def test_wrong_samples(self):
        for source, count in (([], None), (sample, 0), (sample, -1), (sample, None)):
            with self.assertRaisesRegex(ValueError, "at least one|count is missing"):
                shale.Samples(source, count)

        def masked(target):
            return shale.Samples(lambda i: (sample(i)[0], np.where(np.arange(8) < 4, target, sample(i)[1])), 31,
                                 vocabulary=TOKENS)

        self.losses(data=masked(-1))
        for target in (-100, -2, TOKENS):
            with self.assertRaisesRegex(shale.ShaleError, f"target 0 is {target}; the model allows 0 to "):
                self.losses(data=masked(target))

    def test_events_go_where_the_job_says(self):
        path = os.path.join(self.folder, "events.jsonl")
        job = self.job.with_set({"telemetry.sinks.events": path})
        with shale.Trainer(job, data=self.samples()) as trainer:
            trainer.run()
        with open(path, encoding="utf-8") as lines:
            self.assertEqual([json.loads(line)["event"] for line in lines].count("step"), 6)
        with self.assertRaisesRegex(shale.InvalidJob, "telemetry.sinks.events: .* give an absolute path"):
            shale.Trainer(job.with_set({"telemetry.sinks.events": "events.jsonl"}), data=self.samples())

    def test_generates_from_a_checkpoint(self):
        text = os.path.join(self.folder, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"line {i} of the text\n" for i in range(50))
        folder = os.path.join(self.folder, "checkpoints")
        job = self.job.with_set({"data.path": text, "data.order": "SHUFFLED"})
        with shale.Trainer(job, checkpoint_folder=folder) as trainer:
            trainer.run()
        with shale.Generator(folder) as generator:
            self.assertEqual(generator.encode("ab"), [97, 98])
            drawn = generator.generate("the ", 5)
            self.assertEqual(len(drawn), 5)
            self.assertEqual(drawn, generator.generate("the ", 5))
            self.assertEqual(generator.generate("the ", 5, on_token=lambda _: True), drawn[:1])
            # The few most likely tokens are characters of the text.
            said = generator.generate_text("the ", 40, top_k=3)
            self.assertEqual(said, bytes(generator.generate("the ", 40, top_k=3)).decode())
            pieces, end = [], said[20:23]
            short = generator.generate_text("the ", 40, top_k=3, stop=["no such text", end], on_text=pieces.append)
            self.assertEqual(short, said[:said.index(end)])
            self.assertEqual("".join(pieces), short)
            self.assertEqual(generator.generate_text("the ", 40, top_k=3, on_text=lambda _: True), said[:1])
            with self.assertRaises(ZeroDivisionError):
                generator.generate_text("the ", 40, on_text=lambda _: 1 // 0)
            with self.assertRaises(shale.NotFound):
                shale.Generator(folder, tokenizer=self.folder)
        shale.export(folder, os.path.join(self.folder, "model.safetensors"), "BF16")
        with self.assertRaisesRegex(shale.FailedPrecondition, r"the model has no adapters \(model\.adapter\)"):
            shale.export_adapter(folder, os.path.join(self.folder, "adapter"))
        for use in (shale.Generator, lambda *a, **k: shale.export(*a, os.path.join(self.folder, "file"), **k)):
            with self.assertRaisesRegex(shale.InvalidJob, "holds all weights of its model"):
                use(folder, base=self.folder)

    def test_exports_adapters(self):
        folder, out = os.path.join(self.folder, "checkpoints"), os.path.join(self.folder, "adapter")
        model = "decoder { width: 16 layers: 1 heads: 2 hidden: 24 } adapter { rank: 3 targets: \"q_proj\" }"
        job = shale.Job.parse(JOB.replace("mlp { embedding: 4 hidden: 8 layers: 1 }", model))
        with shale.Trainer(job, data=self.samples(), checkpoint_folder=folder) as trainer:
            trainer.run()
        shale.export_adapter(folder, out, "BF16")
        with open(os.path.join(out, "adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["r"], config["target_modules"]), (3, ["q_proj"]))
        self.assertTrue(os.path.exists(os.path.join(out, "adapter_model.safetensors")))


if __name__ == "__main__":
    unittest.main()

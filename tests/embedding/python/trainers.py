"""What tests of the Python package share: a job, its samples, and a class that trains it."""

import tempfile
import unittest

import numpy as np

import shale

JOB = """
model { mlp { embedding: 4 hidden: 8 layers: 1 } }
batch { global_batch: 4 micro_batch: 2 sequence_length: 8 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 }
runtime { threads_per_rank: 1 cpu_matmuls: ONEDNN }
data { order: SEQUENTIAL }
"""
TOKENS = 29


def sample(number):
    i = np.arange(8)
    return (number * 7919 + i * i * 31 + 5) % TOKENS, (number * 31 + i * 17 + 1) % TOKENS


class Counter:
    """An iterable over the same samples, with a state."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while True:
            self.next += 1
            yield sample((self.next - 1) % 31)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class TestOfTrainers(unittest.TestCase):
    """A test with a folder of its own and a job of six steps."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.job = shale.Job.parse(JOB)

    def samples(self):
        return shale.Samples(sample, 31, vocabulary=TOKENS)

    def losses(self, **options):
        return self.losses_of(self.job, **options)

    def losses_of(self, job, **options):
        with shale.Trainer(job, **options) as trainer:
            return [report.loss for report in trainer]

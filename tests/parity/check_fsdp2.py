#!/usr/bin/env python3
"""Compares torch_fsdp2_rank.py with the unsharded model: loss and every gradient, on the CPU, with ranks over Gloo.

    ~/parity_venv/bin/python tests/parity/check_fsdp2.py

Runs in fp32 on one and two ranks, with micro-batches of one and two sequences, and with every setting that a search may
try.
"""

import argparse
import itertools
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../tools/parity"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402

import torch_fsdp2 as program  # noqa: E402
import torch_fsdp2_rank as fsdp2  # noqa: E402

_SHAPES = {
    "tied": {"family": "QWEN2", "vocabulary": 301, "width": 48, "layers": 3, "heads": 6, "kv_heads": 2, "hidden": 80,
             "rope_theta": 1e6, "tied_head": True},
    "untied": {"family": "LLAMA", "vocabulary": 97, "width": 40, "layers": 2, "heads": 5, "hidden": 56},
}
_SEQUENCES, _LENGTH = 8, 24


def batch(vocabulary):
    rows = torch.randint(vocabulary, (_SEQUENCES, _LENGTH + 1), generator=torch.Generator().manual_seed(7))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def options_of(compiled):
    return argparse.Namespace(sequence=_LENGTH, precision="fp32", device="cpu", compile=compiled)


def check(rank, ranks, store, name, compiled):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    job, options = {"model": {"decoder": _SHAPES[name]}}, options_of(compiled)
    plain = fsdp2.build(job, options, torch.device("cpu"))
    inputs, targets = batch(plain.shape.vocabulary)
    wanted = plain(inputs, targets)
    wanted.backward()
    share = slice(rank * _SEQUENCES // ranks, (rank + 1) * _SEQUENCES // ranks)
    kinds = itertools.product((1, 2), program.CHECKPOINTING, program.GATHERED)
    for micro_batch, checkpoint, gathered in [(2, "selective", "pass")] if compiled == "blocks" else kinds:
        configuration = program.Configuration(micro_batch, checkpoint, gathered)
        model = fsdp2.shard(fsdp2.build(job, options, torch.device("cpu")), options, configuration, ranks)
        loss = fsdp2.backward(model, configuration, inputs[share], targets[share])
        dist.all_reduce(loss)
        where = f"{name}, {ranks} ranks, {vars(configuration)}"
        torch.testing.assert_close(loss / ranks, wanted.detach(), rtol=1e-5,
                                   atol=0, msg=lambda text: f"{where}: {text}")
        for (parameter, found), (_, plainly) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
            # Sums over 8 x 24 tokens in another order differ by far less than 1e-5 of the tensor's largest gradient.
            torch.testing.assert_close(found.grad.full_tensor(), plainly.grad, rtol=0,
                                       atol=1e-5 * plainly.grad.abs().max().item(),
                                       msg=lambda text: f"{where}, {parameter}: {text}")
    dist.destroy_process_group()


def main():
    for name, ranks, compiled in [*itertools.product(_SHAPES, (1, 2), ("nothing",)), ("tied", 2, "blocks")]:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(check, (ranks, os.path.join(folder, "ranks"), name, compiled), nprocs=ranks)
        print(f"{name}, {ranks} rank{'s' * (ranks > 1)}, compiled: {compiled}: loss and gradients agree", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/engine/compile/step/muon_goldens.h: weights after 50 steps of torch.optim.Muon.

    tests/parity/make_muon_goldens.py > tests/engine/compile/step/muon_goldens.h

Needs torch. The matrices, values and gradients are those of tests/engine/compile/step/orthogonal_update_test.cc. torch
iterates in bf16. The cases in fp32 run the same code, which then takes fp32 for bf16.
"""

import sys

import numpy
import torch

STEPS = 50
SHAPES = [(5, 7), (8, 3), (1, 9), (6, 1), (4, 4), (1, 1)]
CASES = {
    "kOriginal": dict(lr=1e-2),
    "kMatched": dict(lr=1e-2, adjust_lr_fn="match_rms_adamw", weight_decay=0.5, nesterov=False, momentum=0.8),
    "kSpectral": dict(lr=1e-2, adjust_lr_fn="spectral_unclamped", weight_decay=0.0, ns_steps=2, eps=30.0),
}


def values(begin, shape, formula):
    numbers = [formula(begin + i) for i in range(shape[0] * shape[1])]
    return torch.from_numpy(numpy.array(numbers, dtype=numpy.float32).reshape(shape))


def train(settings, dtype):
    begins = [100 * i for i in range(len(SHAPES))]
    parameters = [
        torch.nn.Parameter(values(begin, shape, lambda i: (i * 29 % 61 - 30) * 0.02))
        for begin, shape in zip(begins, SHAPES)
    ]
    optimizer = torch.optim.Muon(parameters, **settings)
    for step in range(1, STEPS + 1):
        for parameter, begin in zip(parameters, begins):
            parameter.grad = values(
                begin, parameter.shape, lambda i: ((i * 37 + step * 101 + i * step * 13) % 199 - 99) * 0.01
            )
        bfloat16, torch.bfloat16 = torch.bfloat16, dtype
        optimizer.step()
        torch.bfloat16 = bfloat16
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).tolist()


print(f"torch {torch.__version__}", file=sys.stderr)
print("// Written by tests/parity/make_muon_goldens.py.")
print("#pragma once\n\nnamespace shale::testing {\n")
for suffix, dtype in (("", torch.float32), ("InBf16", torch.bfloat16)):
    for name, settings in CASES.items():
        print(f"inline constexpr float {name}{suffix}[] = {{")
        weights = [
            f"{numpy.float32(w)!r}".replace("np.float32(", "").replace(")", "") + "f" for w in train(settings, dtype)
        ]
        for i in range(0, len(weights), 6):
            print("    " + ", ".join(weights[i : i + 6]) + ",")
        print("};")
print("\n}  // namespace shale::testing")

#!/usr/bin/env python3
"""Writes tests/kernels/adafactor_goldens.h: weights after 50 steps of transformers.optimization.Adafactor.

    tests/parity/make_adafactor_goldens.py > tests/kernels/adafactor_goldens.h

Needs torch and transformers. The parameters are a matrix of 5 x 7, a vector of 6 and a matrix of 1 x 9; values and
gradients are the formulas of tests/kernels/adafactor_test.cc.
"""

import numpy
import torch
from transformers.optimization import Adafactor

STEPS = 50
PARAMETERS = [(0, (5, 7)), (40, (6,)), (48, (1, 9))]  # The number of the first element, and the shape.
CASES = {
    "kRelative": dict(lr=None, relative_step=True, scale_parameter=True),
    "kAbsolute": dict(lr=1e-2, relative_step=False, scale_parameter=False, weight_decay=0.1),
    "kRelativeMomentum": dict(lr=None, relative_step=True, scale_parameter=True, beta1=0.9),
    "kAbsoluteMomentum": dict(lr=1e-2, relative_step=False, scale_parameter=False, beta1=0.9),
    "kScaled": dict(lr=1e-2, relative_step=False, scale_parameter=True, weight_decay=0.1),
}


def values(begin, shape, formula):
    numbers = [formula(begin + i) for i in range(numpy.prod(shape))]
    return torch.from_numpy(numpy.array(numbers, dtype=numpy.float32).reshape(shape))


def train(settings):
    parameters = [
        torch.nn.Parameter(values(begin, shape, lambda i: (i * 29 % 61 - 30) * 0.02)) for begin, shape in PARAMETERS
    ]
    decays = settings.pop("weight_decay", 0.0)
    # Vectors do not decay in Shale, nor do parameters that the case leaves out.
    groups = [{"params": parameters[:1], "weight_decay": decays}, {"params": parameters[1:], "weight_decay": 0.0}]
    optimizer = Adafactor(groups, **settings)
    for step in range(1, STEPS + 1):
        for parameter, (begin, shape) in zip(parameters, PARAMETERS):
            parameter.grad = values(
                begin, shape, lambda i: ((i * 37 + step * 101 + i * step * 13) % 199 - 99) * 0.01
            )
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).tolist()


print("// Written by tests/parity/make_adafactor_goldens.py.")
print("#pragma once\n\nnamespace shale::testing {\n")
for name, settings in CASES.items():
    print(f"inline constexpr float {name}[] = {{")
    weights = [f"{numpy.float32(w)!r}".replace("np.float32(", "").replace(")", "") + "f" for w in train(dict(settings))]
    for i in range(0, len(weights), 6):
        print("    " + ", ".join(weights[i : i + 6]) + ",")
    print("};")
print("\n}  // namespace shale::testing")

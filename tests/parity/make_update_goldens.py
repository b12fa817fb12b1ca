#!/usr/bin/env python3
"""Writes tests/kernels/update_goldens.h: the results of other implementations of the update rules.

    pip install numpy torch bitsandbytes
    tests/parity/make_update_goldens.py | clang-format --assume-filename=x.h > tests/kernels/update_goldens.h

Everything is computed in fp64 from fp32 inputs and hyper-parameters. SGD is torch.optim.SGD. Lion is algorithm 2 of its
paper (Chen et al., 2023), written out below. 8-bit AdamW is AdamW whose states are stored between steps as bitsandbytes
stores them: its maps, blocks of 256, the nearest entry, and the sign of m.
"""

import bitsandbytes
import numpy
import torch

_SIZE = 300  # One full block of 8-bit states, and a short one.
_STEPS = 4
_BLOCK = 256
_RATE = 0.01
_DECAYED = slice(10, 280)


def single(x):
    """Returns x rounded to fp32, as a Python number."""
    return float(numpy.float32(x))


def uniform(series):
    """Returns numbers in [-1, 1) that fp32 holds exactly, as Uniform() of tests/kernels/update_cases.cc does."""
    i = numpy.arange(_SIZE, dtype=numpy.uint64) + numpy.uint64(1000 * series)
    x = i * numpy.uint64(2654435761) % numpy.uint64(2**32)
    x ^= x >> numpy.uint64(15)
    x = x * numpy.uint64(2246822519) % numpy.uint64(2**32)
    x ^= x >> numpy.uint64(13)
    return (x >> numpy.uint64(8)).astype(numpy.float64) * 2.0**-23 - 1


def gradients(first):
    """Returns the gradients of each step. None is near 0, where 8-bit states lose v before m."""
    return [numpy.sign(u) * (0.25 + 0.75 * abs(u)) for u in (uniform(first + t) for t in range(_STEPS))]


def decay(weight_decay):
    decays = numpy.zeros(_SIZE)
    decays[_DECAYED] = single(weight_decay)
    return decays


def sgd(nesterov):
    groups = []
    weights = torch.from_numpy(uniform(0))
    for decays, part in ((0.0, slice(0, _DECAYED.start)), (0.1, _DECAYED), (0.0, slice(_DECAYED.stop, _SIZE))):
        groups.append({"params": [torch.nn.Parameter(weights[part].clone())], "weight_decay": single(decays)})
    optimizer = torch.optim.SGD(groups, lr=single(_RATE), momentum=single(0.9), nesterov=nesterov)
    parameters = [group["params"][0] for group in optimizer.param_groups]
    for g in gradients(1):
        first = 0
        for p in parameters:
            p.grad = torch.from_numpy(g[first:first + p.numel()])
            first += p.numel()
        optimizer.step()
    return (torch.cat([p.detach() for p in parameters]).numpy(),
            torch.cat([optimizer.state[p]["momentum_buffer"] for p in parameters]).numpy())


def lion():
    beta1, beta2, rate = single(0.9), single(0.99), single(_RATE)
    p, m = uniform(0), numpy.zeros(_SIZE)
    for g in gradients(1):
        c = beta1 * m + (1 - beta1) * g
        assert abs(c).min() > 1e-6, "a sign hangs on rounding"
        p = p - rate * (numpy.sign(c) + decay(0.1) * p)
        m = beta2 * m + (1 - beta2) * g
    return p, m


class Quantized:
    """An 8-bit state between two steps: a code for each element, and a scale for each block."""

    def __init__(self, signed):
        self.map = bitsandbytes.functional.create_dynamic_map(signed).numpy().astype(numpy.float64)
        self.signed = signed
        self.codes = numpy.zeros(_SIZE, numpy.uint8)
        self.scales = numpy.zeros(-(-_SIZE // _BLOCK))

    def values(self):
        return self.map[self.codes] * numpy.repeat(self.scales, _BLOCK)[:_SIZE]

    def store(self, values):
        """Rounds the values to codes. Returns the smallest distance between a value's ratio to its scale and the middle
        of two entries of the map."""
        nearest = 1.0
        for b in range(len(self.scales)):
            part = slice(b * _BLOCK, (b + 1) * _BLOCK)
            scale = abs(values[part]).max()
            self.scales[b] = single(scale)
            ratios = values[part] / scale
            self.codes[part] = abs(ratios[:, None] - self.map[None, :]).argmin(axis=1)
            if self.signed:  # bitsandbytes keeps the sign of m.
                self.codes[part][(ratios < 0) & (self.map[self.codes[part]] == 0)] -= 1
            else:  # Unlike in bitsandbytes, no v above 0 becomes 0.
                self.codes[part][(ratios > 0) & (self.codes[part] == 0)] = 1
            middles = (self.map[1:] + self.map[:-1]) / 2
            nearest = min(nearest, abs(ratios[:, None] - middles[None, :]).min())
        return nearest


def adamw_8bit(first):
    """Returns weights, m and v after the last step, or None if rounding to fp32 could decide a code."""
    beta1, beta2, epsilon, rate = single(0.9), single(0.95), single(1e-8), single(_RATE)
    p, m, v = uniform(0), Quantized(True), Quantized(False)
    for t, g in enumerate(gradients(first), start=1):
        new_m = beta1 * m.values() + (1 - beta1) * g
        new_v = beta2 * v.values() + (1 - beta2) * g * g
        p = p - rate * decay(0.1) * p
        p = p - rate / (1 - beta1**t) * new_m / (numpy.sqrt(new_v) / numpy.sqrt(1 - beta2**t) + epsilon)
        if min(m.store(new_m), v.store(new_v)) < 2e-6:
            return None
    return p, m, v


def words(name, values):
    bits = numpy.asarray(values, dtype=numpy.float64).astype(numpy.float32).view(numpy.uint32)
    print(f"inline constexpr uint32_t {name}[] = {{{', '.join(f'0x{b:08x}' for b in bits)}}};\n")


def codes(name, values):
    print(f"inline constexpr uint8_t {name}[] = {{{', '.join(str(c) for c in values)}}};\n")


def main():
    print("// Made by tests/parity/make_update_goldens.py. Words are bits of fp32 numbers: weights and states after "
          f"{_STEPS} steps, and\n// the dynamic maps of bitsandbytes {bitsandbytes.__version__}.\n#pragma once\n\n"
          "#include <cstdint>\n\nnamespace shale::testing {\n")
    for name, (weights, momentum) in (("HeavyBall", sgd(False)), ("Nesterov", sgd(True)), ("Lion", lion())):
        words(f"k{name}Weights", weights)
        words(f"k{name}Momentum", momentum)
    first = next(first for first in range(1, 1000) if adamw_8bit(first) is not None)
    p, m, v = adamw_8bit(first)
    print(f"inline constexpr int kAdamW8BitSeries = {first};  // Of the first step's gradients.")
    words("kAdamW8BitWeights", p)
    codes("kAdamW8BitM", m.codes)
    codes("kAdamW8BitV", v.codes)
    words("kAdamW8BitMScales", m.scales)
    words("kAdamW8BitVScales", v.scales)
    words("kSignedMap", m.map)
    words("kUnsignedMap", v.map)
    print("}  // namespace shale::testing")


if __name__ == "__main__":
    main()

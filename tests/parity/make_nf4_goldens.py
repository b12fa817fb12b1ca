#!/usr/bin/env python3
"""Writes tests/kernels/nf4_goldens.h: what bitsandbytes makes of weights in NF4 with double quantization.

    pip install numpy torch bitsandbytes
    tests/parity/make_nf4_goldens.py | clang-format --assume-filename=x.h > tests/kernels/nf4_goldens.h

Chooses weights of which no code hangs on rounding, and checks that the formula gives the same weights. bitsandbytes
takes the nearest absmax code on GPUs; on CPUs it now and then takes the other of two that are nearly as near.
"""

import bitsandbytes
import numpy
import torch

_SIZE = 16384 + 5 * 64 + 21  # A full group and a short one, whose last block is short and odd.


def weights(series):
    """Returns weights that fp32 holds exactly, as GoldenWeight() of tests/kernels/nf4_test.cc does."""
    i = numpy.arange(_SIZE, dtype=numpy.uint64)
    x = (i + numpy.uint64(100000 * series)) * numpy.uint64(2654435761) % numpy.uint64(2**32)
    x ^= x >> numpy.uint64(15)
    x = x * numpy.uint64(2246822519) % numpy.uint64(2**32)
    x ^= x >> numpy.uint64(13)
    uniform = ((x >> numpy.uint64(24)).astype(numpy.float64) + 0.5) * 2.0**-7 - 1
    block = (i // numpy.uint64(64)).astype(numpy.float64)
    return (uniform * (32 + block % 61) * 2.0**-10).astype(numpy.float32)


def fnv(data):
    """Returns FNV-1a of some bytes."""
    digest = 0xCBF29CE484222325
    for byte in data.tobytes():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def margin(ratios, values):
    """Returns the smallest distance between a ratio and the middle of two values."""
    middles = (values[1:].astype(numpy.float64) + values[:-1]) / 2
    return min(abs(ratios[:, None] - middles[None, :]).min(axis=1))


def quantize(w):
    """Returns bitsandbytes' codes, absmax codes, mean, scales and state. Returns None if rounding decides some code."""
    codes, state = bitsandbytes.functional.quantize_4bit(torch.from_numpy(w), blocksize=64, compress_statistics=True,
                                                         quant_type="nf4")
    mean, scales, nested = state.offset.numpy(), state.state2.absmax.numpy(), state.state2.code.numpy()
    absmax = numpy.array([abs(w[b:b + 64]).max() for b in range(0, _SIZE, 64)])
    if mean != numpy.float32(absmax.astype(numpy.float64).mean()):
        return None
    near = (margin(w / numpy.repeat(absmax, 64)[:_SIZE].astype(numpy.float64), state.code.numpy()) < 1e-6 or
            margin((absmax - mean) / numpy.repeat(scales, 256)[:len(absmax)].astype(numpy.float64), nested) < 2e-5)
    return None if near else (codes.numpy().reshape(-1), state.absmax.numpy(), mean, scales, state)


def main():
    series = next(series for series in range(1000) if quantize(weights(series)) is not None)
    codes, q, mean, scales, state = quantize(weights(series))
    values = state.code.numpy()
    back = bitsandbytes.functional.dequantize_4bit(torch.from_numpy(codes.reshape(-1, 1)), state)
    back = back.numpy().reshape(-1)
    own = state.state2.code.numpy()[q] * numpy.repeat(scales, 256)[:len(q)] + mean
    pairs = numpy.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[:_SIZE]
    assert (values[pairs] * numpy.repeat(own, 64)[:_SIZE] == back).all()

    def words(name, numbers):
        bits = numpy.asarray(numbers, dtype=numpy.float32).reshape(-1).view(numpy.uint32)
        print(f"inline constexpr uint32_t {name}[] = {{{', '.join(f'0x{b:08x}' for b in bits)}}};")

    print(f"// Made by tests/parity/make_nf4_goldens.py with bitsandbytes {bitsandbytes.__version__}. Words are bits "
          "of fp32 numbers, digests\n// are FNV-1a.\n#pragma once\n\n#include <cstdint>\n\n"
          "namespace shale::testing {\n")
    print(f"inline constexpr int64_t kNf4GoldenWeights = {_SIZE};")
    print(f"inline constexpr int kNf4GoldenSeries = {series};")
    words("kNf4GoldenValues", values)
    words("kNf4GoldenMean", mean)
    words("kNf4GoldenScales", scales)
    print(f"inline constexpr uint8_t kNf4GoldenAbsmax[] = {{{', '.join(str(c) for c in q)}}};")
    print(f"inline constexpr uint8_t kNf4GoldenFirstCodes[] = {{{', '.join(str(c) for c in codes[:96])}}};")
    print(f"inline constexpr uint64_t kNf4GoldenCodesDigest = 0x{fnv(codes[:_SIZE // 2]):016x};  // Of whole bytes.")
    print(f"inline constexpr uint8_t kNf4GoldenLastCode = {codes[-1] >> 4};")
    print(f"inline constexpr uint64_t kNf4GoldenWeightsDigest = 0x{fnv(back):016x};")
    print("\n}  // namespace shale::testing")


if __name__ == "__main__":
    main()

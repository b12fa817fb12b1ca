#!/usr/bin/env python3
"""Writes tests/kernels/float8_goldens.h: what ml_dtypes makes of numbers in the two formats of fp8.

    pip install ml_dtypes
    tests/parity/make_float8_goldens.py | clang-format --assume-filename=x.h > tests/kernels/float8_goldens.h

The digests are those of the values of all 256 codes; of the codes of all 65,536 bf16 numbers, rounded and saturated;
and of the codes of the fp32 numbers in the middle between two neighbors and right beside it. All NaNs count as one.
"""

import ml_dtypes
import numpy

_FORMATS = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}


def fnv(data):
    """Returns FNV-1a of some bytes."""
    digest = 0xCBF29CE484222325
    for byte in data.tobytes():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def codes_of(numbers, dtype):
    """Returns the codes of fp32 numbers."""
    rounded = numbers.astype(dtype)
    return numpy.where(numpy.isnan(rounded.astype(numpy.float32)), numpy.uint8(0x7F), rounded.view(numpy.uint8))


def middles(values):
    """Returns the middle of every two neighbors, and the fp32 numbers right below and above it, of both signs."""
    ascending = numpy.unique(values[numpy.isfinite(values) & (values >= 0)])
    middle = (ascending[1:] + ascending[:-1]) / numpy.float32(2)
    below, above = (numpy.nextafter(middle, numpy.float32(to)) for to in (0, numpy.inf))
    each = numpy.stack([below, middle, above], axis=1).reshape(-1)
    return numpy.concatenate([each, -each])


def golden(dtype):
    values = numpy.arange(256, dtype=numpy.uint8).view(dtype).astype(numpy.float32)
    words = numpy.where(numpy.isnan(values), numpy.uint32(0x7FC00000), values.view(numpy.uint32))
    numbers = numpy.arange(65536, dtype=numpy.uint16).view(ml_dtypes.bfloat16).astype(numpy.float32)
    largest = numpy.float32(ml_dtypes.finfo(dtype).max)
    return [fnv(words), fnv(codes_of(numbers, dtype)), fnv(codes_of(numpy.clip(numbers, -largest, largest), dtype)),
            fnv(codes_of(middles(values), dtype))]


def main():
    print("// Made by tests/parity/make_float8_goldens.py with ml_dtypes "
          f"{ml_dtypes.__version__}. Digests are FNV-1a.\n"
          "#pragma once\n\n#include <cstdint>\n\nnamespace shale::testing {\n\n"
          "struct Float8Golden {\n"
          "  uint64_t values;     // Of all codes, as fp32.\n"
          "  uint64_t rounded;    // Codes of all bf16 numbers.\n"
          "  uint64_t saturated;  // The same, with the largest finite value in place of those beyond it.\n"
          "  uint64_t middles;    // Codes of numbers in the middle of two neighbors, and right beside it.\n"
          "};")
    for name, dtype in _FORMATS.items():
        digests = ", ".join(f"0x{digest:016x}" for digest in golden(dtype))
        print(f"inline constexpr Float8Golden k{name}Golden = {{{digests}}};")
    print("\n}  // namespace shale::testing")


if __name__ == "__main__":
    main()

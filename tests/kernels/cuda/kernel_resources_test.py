#!/usr/bin/env python3
"""Tests what nvcc says of every kernel, for each architecture of the build: that a block of the kernel fits the
registers of a GPU, that it has no stack, and that nothing has changed unnoticed. Needs no GPU.

With --write, and run by `bazel run`, it writes kernels/cuda/kernel_resources.txt of the checkout anew."""

import collections
import glob
import os
import pathlib
import re
import sys
import unittest

_TABLE = "kernels/cuda/kernel_resources.txt"
# Of a streaming multiprocessor of every GPU that we take. A warp gets registers in portions of 256, a thread in 8.
_REGISTERS, _PORTION = 65536, 8


class Kernel:
    """The most that any instance of a kernel template needs, by architecture."""

    def __init__(self):
        self.instances = set()
        self.threads = 0                                       # Launch bounds. 0: an instance has none.
        self.registers, self.stack, self.spills = ({}, {}, {})  # By architecture.
        self.problems = []


def name_of(symbol):
    """Returns the name of a kernel template from the mangled name of an instance."""
    found = re.search(r"\d([A-Z][A-Za-z0-9]*?Kernel)(?=[IEN])", symbol)
    return found.group(1) if found else symbol


def raise_to(most, key, value):
    most[key] = max(most.get(key, 0), value)


def read(lines):
    """Returns the version of nvcc, and a Kernel for each template."""
    version, kernels, bounds = "", collections.defaultdict(Kernel), {}
    symbol = architecture = None
    for line in lines:
        if found := re.match(r"// Cuda compilation tools, .*(V[0-9.]+)", line):
            version = found.group(1)
        elif found := re.search(r"\.entry (\S+)", line):
            symbol = found.group(1)
            bounds.setdefault(symbol, 0)
        elif found := re.match(r"\.maxntid (\d+), (\d+), (\d+)", line):
            x, y, z = map(int, found.groups())
            bounds[symbol] = x * y * z
        elif found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            symbol, architecture = found.groups()
            kernels[name_of(symbol)].instances.add(symbol)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel, (stack, stores, loads) = kernels[name_of(symbol)], map(int, found.groups())
            raise_to(kernel.stack, architecture, stack)
            raise_to(kernel.spills, architecture, stores + loads)
        elif found := re.search(r"Used (\d+) registers", line):
            kernel, registers = kernels[name_of(symbol)], int(found.group(1))
            raise_to(kernel.registers, architecture, registers)
            threads, rounded = bounds.get(symbol, 0), -(-registers // _PORTION) * _PORTION
            if threads == 0:
                kernel.problems.append(f"{symbol}: no launch bounds (SHALE_BOUNDS)")
            elif threads * rounded > _REGISTERS:
                kernel.problems.append(f"{symbol}, {architecture}: {threads} threads with {registers} registers each "
                                       f"need more than the {_REGISTERS} of an SM")
            kernel.threads = max(kernel.threads, threads)
    return version, kernels


def table_of(version, kernels):
    architectures = sorted({a for kernel in kernels.values() for a in kernel.registers})
    text = (f"# What nvcc {version} says of the kernels, written by\n"
            "#   bazel run -c opt //tests/kernels/cuda:kernel_resources_test -- --write\n"
            "# Of all instances of a kernel: the most threads of a block, and for each architecture the most registers "
            "of a\n# thread, and the most bytes of stack and of spills. Not measured on a GPU.\n")
    text += f"{'# kernel':34}{'instances':>10}{'threads':>8}"
    text += "".join(f"{a:>9} stack spills" for a in architectures) + "\n"
    for name, kernel in sorted(kernels.items()):
        text += f"{name:34}{len(kernel.instances):10}{kernel.threads:8}"
        text += "".join(f"{kernel.registers.get(a, 0):9}{kernel.stack.get(a, 0):6}{kernel.spills.get(a, 0):7}"
                        for a in architectures) + "\n"
    return text


def rows_of(table):
    """Returns {(kernel, architecture): [instances, threads, registers, stack, spills]} of a table."""
    rows, architectures = {}, []
    for words in (line.split() for line in table.splitlines()):
        if words[:2] == ["#", "kernel"]:
            architectures = [word for word in words if word.startswith("sm_")]
        elif words[0] != "#":
            for i, architecture in enumerate(architectures):
                rows[words[0], architecture] = words[1:3] + words[3 + 3 * i:6 + 3 * i]
    return rows


def read_build():
    files = sorted(glob.glob("kernels/cuda/_objs/device_kernels/*.resources"))
    return read(line for file in files for line in pathlib.Path(file).read_text().splitlines())


class KernelResourcesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.version, cls.kernels = read_build()

    def test_every_source_has_kernels_with_names(self):
        self.assertGreater(len(self.kernels), 30)
        self.assertEqual([name for name in self.kernels if name.startswith("_")], [])

    def test_a_block_of_each_kernel_has_its_registers(self):
        self.assertEqual([problem for kernel in self.kernels.values() for problem in kernel.problems], [])

    def test_no_kernel_has_a_stack_or_spills(self):
        found = {(name, architecture): count for name, kernel in self.kernels.items()
                 for counts in (kernel.stack, kernel.spills) for architecture, count in counts.items() if count > 0}
        self.assertEqual(found, {})

    def test_the_committed_table_is_what_nvcc_says(self):
        committed = pathlib.Path(_TABLE).read_text()
        wanted, found = rows_of(committed), rows_of(table_of(self.version, self.kernels))
        common = {architecture for _, architecture in wanted} & {architecture for _, architecture in found}
        if f"nvcc {self.version} " not in committed or not common:
            self.skipTest(f"the table is of another nvcc than {self.version}, or of other architectures")
        for rows in (wanted, found):
            for key in [key for key in rows if key[1] not in common]:
                del rows[key]
        self.assertEqual(wanted, found, "if this is meant, write the table anew: see the first lines of this test")


class ParserTest(unittest.TestCase):
    _LINES = ["// Cuda compilation tools, release 13.0, V13.0.88", ".visible .entry _ZN5shale1AKernelIfEEvv",
              ".maxntid 1024, 1, 1", "ptxas info    : Compiling entry function '_ZN5shale7AKernelIfEEvv' for 'sm_80'",
              "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads",
              "ptxas info    : Used 65 registers, used 0 barriers"]

    def test_registers_beyond_those_of_an_sm_and_missing_bounds_are_found(self):
        _, kernels = read(self._LINES)
        self.assertIn("no launch bounds", kernels["AKernel"].problems[0])
        lines = [line.replace("1AKernel", "7AKernel") for line in self._LINES]
        version, kernels = read(lines)
        self.assertEqual(version, "V13.0.88")
        self.assertIn("1024 threads with 65 registers", kernels["AKernel"].problems[0])
        self.assertEqual((kernels["AKernel"].stack, kernels["AKernel"].spills), ({"sm_80": 8}, {"sm_80": 8}))
        lines = [line.replace("65", "64") for line in lines]
        self.assertEqual(read(lines)[1]["AKernel"].problems, [])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"], _TABLE).write_text(table_of(*read_build()))
    else:
        unittest.main()

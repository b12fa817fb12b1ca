#!/usr/bin/env python3
"""Tests instructions.py: it finds the loop of a kernel, and the way through it that it says. Needs no CUDA toolkit."""

import sys
import unittest

sys.path.insert(0, "tools/bench")
import instructions

# A loop that loads a pack, multiplies it unless a cap is given, and loads another one; with code that only a cap needs
# and that stands after the end of the kernel. Before it there is a loop without accesses.
_LISTING = """
	.section	.text._ZN5shale7AKernelE,"ax",@progbits
.text._ZN5shale7AKernelE:
_ZN5shale7AKernelE:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDG.E.128 R4, [R2.64] ;
        /*0040*/               @P1 BRA `(.L_x_3) ;
        /*0050*/                   FMUL R4, R4, R5 ;
        /*0060*/                   FADD R4, R4, R5 ;
.L_x_2:
        /*0070*/              @!P2 BRA `(.L_x_4) ;
        /*0080*/                   LDG.E.128 R8, [R2.64+0x10] ;
.L_x_4:
        /*0090*/                   HADD2.F32 R4, R4, R5 ;
        /*00a0*/              @!P0 BRA P3, `(.L_x_1) ;
        /*00b0*/                   EXIT ;
.L_x_3:
        /*00c0*/                   MUFU.RCP R6, R6 ;
        /*00d0*/                   BRA `(.L_x_2) ;
.L_x_5:
        /*00e0*/                   BRA `(.L_x_5);
.L_x_6:
	.section	.text._ZN5shale7BKernelE,"ax",@progbits
.text._ZN5shale7BKernelE:
        /*0000*/                   EXIT ;
"""


def case(kernel, **loop_has):
    loop_has = {name.replace("_", "."): count for name, count in loop_has.items()}
    return instructions.Case("a case", "a_source", kernel, loop_has, "LDG.E.128", 8)


class InstructionsTest(unittest.TestCase):
    def setUp(self):
        self.functions = instructions.functions_of(_LISTING)

    def test_an_iteration_has_all_accesses_and_no_division(self):
        self.assertEqual(len(self.functions), 2)
        elements, kinds, names = instructions.count(case("AKernel", LDG_E=1), self.functions)
        self.assertEqual(names, ["LDG.E.128", "BRA", "FMUL", "FADD", "BRA", "LDG.E.128", "HADD2.F32", "BRA"])
        self.assertEqual(elements, 16)
        self.assertEqual({kind: 16 * count for kind, count in kinds.items() if count > 0},
                         {"memory": 2, "fp32": 2, "rounding": 1, "control": 3})

    def test_it_refuses_a_case_that_matches_no_kernel_or_no_loop(self):
        for wrong in (case("CKernel"), case("Kernel"), case("AKernel", HMMA=1), case("BKernel")):
            with self.assertRaises(SystemExit):
                instructions.count(wrong, self.functions)


if __name__ == "__main__":
    unittest.main()

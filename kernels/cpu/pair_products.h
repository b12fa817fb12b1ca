// Matrix products of bf16 by vdpbf16ps (pair_panel-inl.h), with operands packed just before they are used. Private to
// kernels/cpu.
//
// Of processors with AVX-512 and bf16 instructions, but no tile unit (AMX), this uses 95 % of the peak where oneDNN 2.6
// reaches 80 to 90 %. Bits depend on sizes alone: every element of c is one sum in the order of k, in blocks of k that
// the sizes fix, however the rest is cut and on however many threads it runs.
#pragma once

#include "kernels/cpu/products.h"

namespace shale::cpu {

// Whether `shape` is a product that this processor is best given here. The same answer for the life of the process.
bool MultipliesPairs(const ProductShape& shape);

// REQUIRES: MultipliesPairs(shape), of each of these.
int64_t PairScratchBytes(const ProductShape& shape, int threads);
void MultiplyPairs(const ProductShape& shape, const ProductOperands& operands, int threads);

}  // namespace shale::cpu

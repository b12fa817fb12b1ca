// What bench_ops prints and writes.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "tools/bench_ops_machine.h"
#include "tools/bench_ops_runner.h"

namespace shale {

// What was measured of the machine.
struct OpRates {
  std::array<CopyWords, 2> copies;
  double copy[2] = {};       // Bytes per second, read and written.
  double peak[2] = {};       // FLOP per second of the best product: f32, bf16.
  double sustained[2] = {};  // The same, of one product for a long time; 0: not measured.
  double target = 0;
};

// Of peak and sustained.
inline int IndexOf(DType dtype) { return dtype == DType::kBFloat16 ? 1 : 0; }

// "bf16", of the case's activations.
std::string Act(const OpCase& c);

// Markdown: ops that move memory; products and attention. Nothing when there are no results.
void PrintMoving(const std::vector<OpResult>& results, const OpRates& rates);
void PrintComputing(const std::vector<OpResult>& results, const OpRates& rates);

std::string ResultJson(const OpResult& r, const OpRates& rates);

}  // namespace shale

// Prints and writes the results of the ops bench.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "tools/bench/ops_machine.h"
#include "tools/bench/ops_runner.h"

namespace shale {

// The measured rates of the machine.
struct OpRates {
  std::array<CopyWords, 2> copies;
  double copy[2] = {};       // Bytes read and written per second, by kind of copy.
  double peak[2] = {};       // FLOP per second of the best matmul: f32, bf16. Those of fp8 matrices do not count.
  double sustained[2] = {};  // FLOP per second of one matmul that runs for a long time; 0 if not measured.
  double target = 0;         // OpsMachine::target().
};

// Returns the index of a dtype in OpRates::peak and OpRates::sustained.
inline int IndexOf(DType dtype) { return dtype == DType::kBFloat16 ? 1 : 0; }

// Returns the dtype of the case's activations as text: "f32" or "bf16".
std::string Act(const OpCase& c);

// Print Markdown tables: PrintMoving of ops that move memory, PrintComputing of matmuls and attention. They print
// nothing if there are no results.
void PrintMoving(const std::vector<OpResult>& results, const OpRates& rates);
void PrintComputing(const std::vector<OpResult>& results, const OpRates& rates);

std::string ResultJson(const OpResult& r, const OpRates& rates);
// Of a case that the machine refused.
std::string RefusalJson(const OpCase& c, const absl::Status& why);

}  // namespace shale

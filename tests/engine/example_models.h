// The example models of tools/examples, which programs bring themselves, with data for them: what laws of models of
// one's own run on.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/api/model.h"
#include "engine/compile/model/config.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {

struct Example {
  const char* name;
  CustomModel (*model)(int64_t blocks);  // Its sizes are multiples of nothing.
  // Makes the model with sizes that matmuls in fp8 take. Null if a layer of its blocks reads too few numbers for them.
  CustomModel (*float8_model)(int64_t blocks);
  Tokens (*data)(int64_t sequences, int64_t length);
  int64_t vocabulary;                            // Of the model and its data. 0: it predicts values.
  const char* activation;                        // A pattern of one in every block.
  TargetWeights weights = TargetWeights::kNone;  // What its jobs must set, because its data needs them.
};

// Returns all of them. The span is valid forever.
absl::Span<const Example> Examples();

}  // namespace shale::testing

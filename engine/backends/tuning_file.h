// Files with tables of tuned matmuls: tools/tune writes them and runtime.tuning_table names one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/tuning_table.h"

namespace shale {

// Reads the table at `path`. Returns NotFound if there is no file, InvalidArgument if it is not a table, and otherwise
// the errors of ReadFile. Errors name the path.
absl::StatusOr<cuda::TuningTable> ReadTuningTable(const std::string& path);

}  // namespace shale

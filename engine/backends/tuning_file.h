// Tables of tuned matrix products, as files: what `tune` writes and runtime.tuning_table names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/tuning_table.h"

namespace shale {

// NotFound where there is no file, InvalidArgument for what is no table, else as ReadFile. Errors name the path.
absl::StatusOr<cuda::TuningTable> ReadTuningTable(const std::string& path);

}  // namespace shale

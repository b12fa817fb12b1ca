// Files with tables of tuned matmuls: tools/tune writes them and runtime.tuning_table names one. A job that names none
// uses the compiled table of its GPU, if tools/tuning has one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/io/file.h"
#include "kernels/cuda/cublaslt/tuning_table.h"

namespace shale {

// Returns the file of a table for a GPU with this name (CUDA's). A `path` that is a folder, or ends with /, holds a
// file for each kind of GPU: NVIDIA_H200.txt for "NVIDIA H200". Any other path is the file itself.
std::string TuningTablePath(const std::string& path, absl::string_view gpu);

// Returns whether TuningTablePath depends on the GPU.
bool IsTuningFolder(const std::string& path);

// The tables that are compiled in: the files of tools/tuning, by the names of the files.
extern const absl::Span<const CompiledFile> kCompiledTables;

// Returns the table of a GPU with this name, an empty one if `tables` have none. Returns InvalidArgument if it is no
// table.
absl::StatusOr<cuda::TuningTable> CompiledTuningTable(absl::string_view gpu,
                                                      absl::Span<const CompiledFile> tables = kCompiledTables);

// Reads the table at `path`. Returns NotFound if there is no file, InvalidArgument if it is not a table, and otherwise
// the errors of ReadFile. Errors name the path.
absl::StatusOr<cuda::TuningTable> ReadTuningTable(const std::string& path);

}  // namespace shale

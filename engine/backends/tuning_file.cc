#include "engine/backends/tuning_file.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kLargestTable = int64_t{64} << 20;

}  // namespace

absl::StatusOr<cuda::TuningTable> ReadTuningTable(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kLargestTable));
  absl::StatusOr<cuda::TuningTable> table = cuda::TuningTable::Parse(text);
  if (table.ok()) return table;
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a tuning table: ", table.status().message()));
}

}  // namespace shale

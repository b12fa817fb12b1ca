#include "engine/train/cut_metrics.h"

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "engine/io/file.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

// Returns the step of a row, or nothing if it has none, or is not JSON. A crash of the machine may leave zeros behind a
// row, which the parser would take for its end.
std::optional<int64_t> StepOf(absl::string_view row) {
  if (row.find('\0') != absl::string_view::npos) return std::nullopt;
  const auto json = nlohmann::json::parse(row.begin(), row.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto found = json.find("step");
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

}  // namespace

absl::StatusOr<int64_t> LastStepOfMetrics(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxMetricsBytes);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  const std::vector<absl::string_view> rows = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (const std::optional<int64_t> step = StepOf(*row)) return *step;
  }
  return 0;
}

absl::Status CutMetrics(const std::string& path, int64_t step) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxMetricsBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  std::string kept;
  for (absl::string_view row : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    if (StepOf(row).value_or(step + 1) <= step) kept.append(row.data(), row.size()).push_back('\n');
  }
  return kept == *text ? absl::OkStatus() : WriteFileDurably(path, kept);
}

}  // namespace shale

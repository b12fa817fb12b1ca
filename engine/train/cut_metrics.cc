#include "engine/train/cut_metrics.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "engine/io/file.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;

bool IsUpTo(absl::string_view row, int64_t step) {
  const auto json = nlohmann::json::parse(row.begin(), row.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto found = json.find("step");
  return found != json.end() && found->is_number_integer() && found->get<int64_t>() <= step;
}

}  // namespace

absl::Status CutMetrics(const std::string& path, int64_t step) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxMetricsBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  std::string kept;
  for (absl::string_view row : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    if (IsUpTo(row, step)) kept.append(row.data(), row.size()).push_back('\n');
  }
  return kept == *text ? absl::OkStatus() : WriteFileDurably(path, kept);
}

}  // namespace shale

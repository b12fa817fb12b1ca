#include "engine/run/backends/tuning_file.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kLargestTable = int64_t{64} << 20;

// Returns the name of the file of a table for a GPU with this name.
std::string FileNameOf(absl::string_view gpu) {
  std::string name(gpu);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  }
  return absl::StrCat(name, ".txt");
}

absl::StatusOr<cuda::TuningTable> ParseTable(absl::string_view name, absl::string_view text) {
  absl::StatusOr<cuda::TuningTable> table = cuda::TuningTable::Parse(text);
  if (table.ok()) return table;
  return absl::InvalidArgumentError(absl::StrCat(name, " is not a tuning table: ", table.status().message()));
}

}  // namespace

bool IsTuningFolder(const std::string& path) {
  std::error_code error;
  return absl::EndsWith(path, "/") || std::filesystem::is_directory(path, error);
}

std::string TuningTablePath(const std::string& path, absl::string_view gpu) {
  if (!IsTuningFolder(path)) return path;
  return absl::StrCat(path, absl::EndsWith(path, "/") ? "" : "/", FileNameOf(gpu));
}

absl::StatusOr<cuda::TuningTable> CompiledTuningTable(absl::string_view gpu, absl::Span<const CompiledFile> tables) {
  const std::string name = FileNameOf(gpu);
  for (const CompiledFile& table : tables) {
    if (table.name == name) return ParseTable(absl::StrCat("tools/tuning/", name), table.text);
  }
  return cuda::TuningTable();
}

absl::StatusOr<cuda::TuningTable> ReadTuningTable(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kLargestTable));
  return ParseTable(path, text);
}

}  // namespace shale

#include "kernels/cuda/cublaslt/tuning_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "kernels/hash.h"

namespace shale::cuda {
namespace {

constexpr absl::string_view kTitle = "shale cublaslt algorithms 3";
constexpr absl::string_view kOn = "on ", kLibrary = ", cublaslt ", kArrow = " -> ";
// A table of all matmuls of a hundred models is smaller.
constexpr size_t kMaxTextBytes = size_t{1} << 24;
constexpr size_t kMaxNameBytes = 128;

std::string Quoted(absl::string_view line) { return absl::StrCat("\"", line.substr(0, 60), "\""); }

absl::Status Check(const TuningTable::Machine& machine) {
  const bool printable =
      std::all_of(machine.gpu.begin(), machine.gpu.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
  if (machine.gpu.empty() || machine.gpu.size() > kMaxNameBytes || !printable || machine.library_version <= 0 ||
      absl::StripAsciiWhitespace(machine.gpu) != machine.gpu) {
    return absl::InvalidArgumentError(absl::StrCat("wanted a GPU's printable name of 1 to ", kMaxNameBytes,
                                                   " bytes and a version of cuBLASLt, ", "found ", Quoted(machine.gpu),
                                                   " and ", machine.library_version));
  }
  return absl::OkStatus();
}

std::string Print(const TuningTable::Machine& machine) {
  return absl::StrCat(kOn, machine.gpu, kLibrary, machine.library_version);
}

absl::StatusOr<TuningTable::Machine> ParseMachine(absl::string_view line) {
  const size_t comma = line.rfind(kLibrary);
  TuningTable::Machine machine;
  if (comma != absl::string_view::npos && comma >= kOn.size() &&
      absl::SimpleAtoi(line.substr(comma + kLibrary.size()), &machine.library_version)) {
    machine.gpu = std::string(line.substr(kOn.size(), comma - kOn.size()));
    SHALE_RETURN_IF_ERROR(Check(machine));
    if (Print(machine) == line) return machine;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("wanted \"", kOn, "<GPU>", kLibrary, "<version>\", found ", Quoted(line)));
}

std::string Print(const MatMulAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) {
    absl::StrAppend(&text, text.empty() ? "" : " ", absl::Hex(word, absl::kZeroPad16));
  }
  return text;
}

absl::StatusOr<MatMulAlgorithm> ParseAlgorithm(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  MatMulAlgorithm algorithm = {};
  bool fits = words.size() == algorithm.size();
  for (size_t i = 0; fits && i < algorithm.size(); ++i) {
    fits = words[i].size() == 16 && absl::SimpleHexAtoi(words[i], &algorithm[i]);
  }
  if (fits && Print(algorithm) == text) return algorithm;
  return absl::InvalidArgumentError(
      absl::StrCat("wanted an algorithm of ", algorithm.size(), " words of 16 hex digits, found ", Quoted(text)));
}

}  // namespace

absl::Status TuningTable::Set(const Machine& machine, const MatMulKey& key, const MatMulAlgorithm& algorithm) {
  SHALE_RETURN_IF_ERROR(Check(machine));
  machines_[machine][key] = algorithm;
  return absl::OkStatus();
}

const MatMulAlgorithm* TuningTable::Find(const Machine& machine, const MatMulKey& key) const {
  const auto on = machines_.find(machine);
  if (on == machines_.end()) return nullptr;
  const auto found = on->second.find(key);
  return found == on->second.end() ? nullptr : &found->second;
}

int64_t TuningTable::size() const {
  int64_t size = 0;
  for (const auto& [machine, matmuls] : machines_) size += static_cast<int64_t>(matmuls.size());
  return size;
}

int64_t TuningTable::size(const Machine& machine) const {
  const auto on = machines_.find(machine);
  return on == machines_.end() ? 0 : static_cast<int64_t>(on->second.size());
}

std::string TuningTable::Print() const {
  std::string text = absl::StrCat(kTitle, "\n");
  for (const auto& [machine, matmuls] : machines_) {
    absl::StrAppend(&text, cuda::Print(machine), "\n");
    for (const auto& [key, algorithm] : matmuls) {
      absl::StrAppend(&text, key.ToString(), kArrow, cuda::Print(algorithm), "\n");
    }
  }
  return text;
}

std::string TuningTable::Digest() const { return absl::StrCat(absl::Hex(Fnv1a(Print()), absl::kZeroPad16)); }

absl::StatusOr<TuningTable> TuningTable::Parse(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning table: wanted at most ", kMaxTextBytes, " bytes, found ", text.size()));
  }
  TuningTable table;
  int64_t number = 0;
  bool titled = false;
  Machine machine;
  const auto parse_line = [&](absl::string_view line) -> absl::Status {
    if (!titled) {
      titled = line == kTitle;
      if (titled) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("wanted \"", kTitle, "\" first, found ", Quoted(line)));
    }
    if (absl::StartsWith(line, kOn)) {
      SHALE_ASSIGN_OR_RETURN(machine, ParseMachine(line));
      return absl::OkStatus();
    }
    const size_t arrow = line.find(kArrow);
    if (arrow == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("wanted \"", kOn, "...\" or \"<matmul>", kArrow, "<algorithm>\", found ", Quoted(line)));
    }
    if (machine.gpu.empty()) return absl::InvalidArgumentError("found a matmul before the line that names its machine");
    SHALE_ASSIGN_OR_RETURN(const MatMulKey key, MatMulKey::Parse(line.substr(0, arrow)));
    SHALE_ASSIGN_OR_RETURN(const MatMulAlgorithm algorithm, ParseAlgorithm(line.substr(arrow + kArrow.size())));
    if (table.Find(machine, key) != nullptr)
      return absl::InvalidArgumentError("this matmul already has an algorithm for this machine");
    return table.Set(machine, key, algorithm);
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const absl::Status status = parse_line(line);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("tuning table, line ", number, ": ", status.message()));
    }
  }
  if (!titled) return absl::InvalidArgumentError(absl::StrCat("tuning table: wanted \"", kTitle, "\", found no line"));
  return table;
}

}  // namespace shale::cuda

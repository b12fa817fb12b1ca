#include "tests/kernels/cuda/cudnn/workspace_table.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "kernels/ops/attention.h"

namespace shale::testing {
namespace {

constexpr const char* kCommittedTable = "tests/kernels/cuda/cudnn/attention_workspace.txt";

constexpr absl::string_view kTitle = "# cuDNN ";

std::string Capability(const WorkspaceRow& row) { return absl::StrCat(row.compute_major, ".", row.compute_minor); }

std::string Header(absl::string_view version, const std::vector<WorkspaceRow>& gpus) {
  std::string header = absl::StrCat(
      kTitle, version, " was asked for the workspace of attention (WorkspaceBytes), without a GPU, by\n",
      "#   bazel run -c opt //tests/kernels/cuda/cudnn:make_workspace_table > ", kCommittedTable, "\n",
      "# B sequences of S positions, H query heads, G key/value heads, D head width; then the bytes by "
      "compute capability.\n",
      absl::StrFormat("#%9s %3s %5s %3s %2s %3s %6s %6s", "direction", "B", "S", "H", "G", "D", "mask", "window"));
  for (const WorkspaceRow& gpu : gpus) absl::StrAppendFormat(&header, " %10s", Capability(gpu));
  return header + "\n";
}

constexpr absl::string_view kForward = "forward", kBackward = "backward", kUnordered = "unordered";

absl::string_view Direction(const WorkspaceRow& row) {
  return !row.backward ? kForward : row.deterministic ? kBackward : kUnordered;
}

std::string PrintShape(const WorkspaceRow& row) {
  const AttentionShape& s = row.shape;
  return absl::StrFormat("%10s %3d %5d %3d %2d %3d %6s %6d", Direction(row), s.batch, s.length, s.heads, s.groups,
                         s.width, s.causal ? "causal" : "none", s.window);
}

// Returns a row without a shape for each word "major.minor" of the header's last line.
std::vector<WorkspaceRow> ParseGpus(absl::string_view text) {
  for (int i = 0; i < 3; ++i) text.remove_prefix(std::min(text.size(), text.find('\n') + 1));
  std::vector<WorkspaceRow> gpus;
  for (absl::string_view word : absl::StrSplit(text.substr(0, text.find('\n')), ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> gpu = absl::StrSplit(word, absl::MaxSplits('.', 1));
    WorkspaceRow row;
    if (!absl::SimpleAtoi(gpu.first, &row.compute_major) || !absl::SimpleAtoi(gpu.second, &row.compute_minor)) continue;
    gpus.push_back(row);
  }
  return gpus;
}

// Parses `line` into a row for each GPU. Returns false if it is not what Print returns.
bool ParseLine(absl::string_view line, std::vector<WorkspaceRow>& gpus) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  WorkspaceRow row;
  AttentionShape& s = row.shape;
  int64_t* const numbers[] = {&s.batch, &s.length, &s.heads, &s.groups, &s.width, nullptr, &s.window};
  constexpr size_t kMask = 6;  // The word that is no number.
  const size_t shape_words = 1 + std::size(numbers);
  if (words.size() != shape_words + gpus.size()) return false;
  row.backward = words[0] != kForward;
  row.deterministic = words[0] != kUnordered;
  s.causal = words[kMask] == "causal";
  for (size_t i = 0; i < std::size(numbers); ++i) {
    if (1 + i != kMask && !absl::SimpleAtoi(words[1 + i], numbers[i])) return false;
  }
  std::string printed = PrintShape(row);
  for (size_t i = 0; i < gpus.size(); ++i) {
    gpus[i] = {.compute_major = gpus[i].compute_major,
               .compute_minor = gpus[i].compute_minor,
               .backward = row.backward,
               .deterministic = row.deterministic,
               .shape = s};
    if (!absl::SimpleAtoi(words[shape_words + i], &gpus[i].bytes) || gpus[i].bytes < 0) return false;
    absl::StrAppendFormat(&printed, " %10d", gpus[i].bytes);
  }
  return printed == line;
}

}  // namespace

std::string WorkspaceRow::Question() const {
  return absl::StrCat(Capability(*this), " ", Direction(*this), " B=", shape.batch, " S=", shape.length,
                      " H=", shape.heads, " G=", shape.groups, " D=", shape.width, " window=", shape.window,
                      shape.causal ? "" : ", not causal");
}

cuda::AttentionKey KeyOf(const WorkspaceRow& row, int64_t gap) {
  AttentionShape shape = row.shape;
  shape.gap = gap;
  const AttentionBackward op = SymbolicAttention(shape);
  cuda::AttentionKey key = row.backward ? cuda::AttentionKey::Of(op) : cuda::AttentionKey::Of(ForwardOf(op));
  key.deterministic = row.deterministic;
  return key;
}

std::string WorkspaceTable::Print() const {
  std::vector<WorkspaceRow> gpus;
  for (const WorkspaceRow& row : rows) {
    if (gpus.empty() || Capability(row) != Capability(gpus.back())) gpus.push_back(row);
  }
  std::string text = Header(version, gpus);
  const size_t shapes = rows.size() / std::max<size_t>(gpus.size(), 1);
  for (size_t i = 0; i < shapes; ++i) {
    text += PrintShape(rows[i]);
    for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
      absl::StrAppendFormat(&text, " %10d", rows[gpu * shapes + i].bytes);
    }
    text += "\n";
  }
  return text;
}

absl::StatusOr<WorkspaceTable> WorkspaceTable::Parse(absl::string_view text) {
  WorkspaceTable table;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kTitle)) table.version = std::string(rest.substr(0, rest.find(' ')));
  std::vector<WorkspaceRow> gpus = ParseGpus(text);
  const std::string header = Header(table.version, gpus);
  if (table.version.empty() || gpus.empty() || !absl::ConsumePrefix(&(rest = text), header)) {
    return absl::InvalidArgumentError(absl::StrCat("workspace table: wanted first\n", Header("<version>", gpus),
                                                   "found \"", text.substr(0, text.find('\n')), "\""));
  }
  std::vector<std::vector<WorkspaceRow>> by_gpu(gpus.size());
  int64_t number = std::count(header.begin(), header.end(), '\n');
  while (!rest.empty()) {
    ++number;
    const size_t end = rest.find('\n');
    const absl::string_view line = rest.substr(0, end);
    if (end == rest.npos || !ParseLine(line, gpus)) {
      return absl::InvalidArgumentError(
          absl::StrCat("workspace table, line ", number,
                       ": wanted forward, backward or unordered, B, S, H, G, D, causal or none, window and the bytes ",
                       "of ", gpus.size(), " GPUs in their columns, and an end of the line, found \"", line, "\""));
    }
    for (size_t i = 0; i < gpus.size(); ++i) by_gpu[i].push_back(gpus[i]);
    rest.remove_prefix(end + 1);
  }
  for (const std::vector<WorkspaceRow>& rows : by_gpu) {
    table.rows.insert(table.rows.end(), rows.begin(), rows.end());
  }
  return table;
}

absl::StatusOr<WorkspaceTable> ReadCommittedTable() {
  std::ifstream file(kCommittedTable, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(kCommittedTable, " cannot be read"));
  return WorkspaceTable::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace shale::testing

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

constexpr const char* kCommittedTable = "kernels/cuda/cudnn/attention_workspace.txt";

constexpr absl::string_view kTitle = "# cuDNN ";

std::string Header(absl::string_view version) {
  return absl::StrCat(kTitle, version,
                      " was asked for the workspace of attention (WorkspaceBytes), without a GPU, by\n",
                      "#   bazel run -c opt //tests/kernels/cuda/cudnn:make_workspace_table > ", kCommittedTable, "\n",
                      "# B sequences of S positions, H query heads, G key/value heads, D head width; a GPU by its "
                      "compute capability.\n",
                      absl::StrFormat("#%4s %9s %3s %5s %3s %2s %3s %6s %6s %12s\n", "GPU", "direction", "B", "S", "H",
                                      "G", "D", "mask", "window", "bytes"));
}

constexpr absl::string_view kForward = "forward", kBackward = "backward", kUnordered = "unordered";

absl::string_view Direction(const WorkspaceRow& row) {
  return !row.backward ? kForward : row.deterministic ? kBackward : kUnordered;
}

std::string Print(const WorkspaceRow& row) {
  const AttentionShape& s = row.shape;
  return absl::StrFormat("%5s %9s %3d %5d %3d %2d %3d %6s %6d %12d\n",
                         absl::StrCat(row.compute_major, ".", row.compute_minor), Direction(row), s.batch, s.length,
                         s.heads, s.groups, s.width, s.causal ? "causal" : "none", s.window, row.bytes);
}

// Parses `line`, which includes its end. Returns false if it is not what Print returns.
bool ParseRow(absl::string_view line, WorkspaceRow& row) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  AttentionShape& s = row.shape;
  int64_t* const numbers[] = {&s.batch, &s.length, &s.heads, &s.groups, &s.width, &s.window, &row.bytes};
  constexpr size_t kMask = 7;  // The word that is no number.
  if (words.size() != 3 + std::size(numbers)) return false;
  const std::pair<absl::string_view, absl::string_view> gpu = absl::StrSplit(words[0], absl::MaxSplits('.', 1));
  if (!absl::SimpleAtoi(gpu.first, &row.compute_major) || !absl::SimpleAtoi(gpu.second, &row.compute_minor)) {
    return false;
  }
  row.backward = words[1] != kForward;
  row.deterministic = words[1] != kUnordered;
  s.causal = words[kMask] == "causal";
  for (size_t i = 0; i < std::size(numbers); ++i) {
    const absl::string_view word = words[2 + i < kMask ? 2 + i : 3 + i];
    if (!absl::SimpleAtoi(word, numbers[i]) || *numbers[i] < 0) return false;
  }
  return Print(row) == line;
}

}  // namespace

std::string WorkspaceRow::Question() const {
  return absl::StrCat(compute_major, ".", compute_minor, " ", Direction(*this), " B=", shape.batch, " S=", shape.length,
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
  std::string text = Header(version);
  for (const WorkspaceRow& row : rows) text += testing::Print(row);
  return text;
}

absl::StatusOr<WorkspaceTable> WorkspaceTable::Parse(absl::string_view text) {
  WorkspaceTable table;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kTitle)) table.version = std::string(rest.substr(0, rest.find(' ')));
  const std::string header = Header(table.version);
  if (table.version.empty() || !absl::ConsumePrefix(&(rest = text), header)) {
    return absl::InvalidArgumentError(absl::StrCat("workspace table: wanted first\n", Header("<version>"), "found \"",
                                                   text.substr(0, text.find('\n')), "\""));
  }
  int64_t number = std::count(header.begin(), header.end(), '\n');
  while (!rest.empty()) {
    ++number;
    const absl::string_view line = rest.substr(0, rest.find('\n')), with_end = rest.substr(0, line.size() + 1);
    if (!ParseRow(with_end, table.rows.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("workspace table, line ", number,
                       ": wanted GPU, forward, backward or unordered, B, S, H, G, D, causal or none, window ",
                       "and bytes in their columns, and an end of the line, found \"", line, "\""));
    }
    rest.remove_prefix(with_end.size());
  }
  return table;
}

absl::StatusOr<WorkspaceTable> ReadCommittedTable() {
  std::ifstream file(kCommittedTable, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(kCommittedTable, " cannot be read"));
  return WorkspaceTable::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace shale::testing

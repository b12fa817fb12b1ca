// Compares the committed table of cuDNN's answers with what we plan. Needs neither the library nor a GPU.
#include "tests/kernels/cuda/cudnn/workspace_table.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/integers.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"
#include "tests/kernels/cuda/cudnn/workspace_questions.h"

namespace shale::testing {
namespace {

using cuda::AttentionKey;
using cuda::WorkspaceBytes;
using ::testing::HasSubstr;

WorkspaceTable Committed() {
  const absl::StatusOr<WorkspaceTable> table = ReadCommittedTable();
  EXPECT_TRUE(table.ok()) << table.status();
  return table.value_or(WorkspaceTable());
}

// Returns what attention_pieces.h says that a GPU of this compute capability needs.
int64_t SaidToNeed(int compute_major, const AttentionKey& key) {
  const int64_t S = key.length, BH = key.batch * key.heads;
  if (!key.backward) return compute_major == 9 ? 256 : 0;
  const int64_t row_sums = 4 * BH * S, per_query_head = key.groups < key.heads ? 4 * BH * S * key.width : 0;
  if (!key.deterministic) {
    const int64_t d_q = 4 * BH * RoundUp(S, 8) * key.width;
    if (compute_major == 9) return row_sums + per_query_head + 256;
    if (compute_major == 10 && S > 128) return row_sums + per_query_head + (per_query_head > 0 ? 128 : 0);
    return row_sums + per_query_head + d_q + 128;
  }
  if (compute_major == 9) return row_sums + per_query_head + 2 * BH * RoundUp(S, 64) * RoundUp(S, 128) + 256;
  if (compute_major == 10) return row_sums + 2 * per_query_head + (per_query_head > 0 ? 128 : 0);
  return row_sums + per_query_head + 2 * BH * RoundUp(S, 64) * RoundUp(S, 64) + 128;
}

TEST(AttentionWorkspaceTest, IsEnoughForEveryGpuAndExactOnHopper) {
  for (const WorkspaceRow& row : Committed().rows) {
    const AttentionKey key = KeyOf(row);
    EXPECT_GE(WorkspaceBytes(key), row.bytes) << row.Question();
    EXPECT_EQ(SaidToNeed(row.compute_major, key), row.bytes) << row.Question();
    const bool is_short = key.backward && key.groups < key.heads && key.length <= 128;
    EXPECT_TRUE(WorkspaceBytes(key) == row.bytes || row.compute_major != 9 || is_short || !key.deterministic)
        << row.Question();
  }
}

TEST(AttentionWorkspaceTest, TheTableAnswersEveryQuestionInTheirOrder) {
  const absl::StatusOr<std::vector<WorkspaceRow>> questions = WorkspaceQuestions();
  ASSERT_TRUE(questions.ok()) << questions.status();
  const std::vector<WorkspaceRow> rows = Committed().rows;
  for (size_t i = 0; i < std::min(rows.size(), questions->size()); ++i) {
    WorkspaceRow row = rows[i];
    row.bytes = 0;
    ASSERT_EQ(row, (*questions)[i]) << "row " << i << ", " << row.Question() << " instead of "
                                    << (*questions)[i].Question() << ": make the table again, as its first lines say";
  }
  EXPECT_EQ(rows.size(), questions->size()) << "make the table again, as its first lines say";
}

TEST(AttentionWorkspaceTest, TheTableHasEveryGpuDirectionWidthRatioOfHeadsAndMask) {
  std::set<std::tuple<int, int, bool, bool, int64_t, bool, bool>> kinds;
  int64_t longest = 0;
  for (const WorkspaceRow& row : Committed().rows) {
    const AttentionShape& s = row.shape;
    kinds.emplace(row.compute_major, row.compute_minor, row.backward, row.deterministic, s.width, s.groups < s.heads,
                  s.causal);
    longest = std::max(longest, s.length);
  }
  std::set<std::pair<int, int>> capabilities;
  for (const DescribedGpu& gpu : kDescribedGpus) capabilities.emplace(gpu.major, gpu.minor);
  EXPECT_EQ(kinds.size(), capabilities.size() * 3 * 3 * 2 * 2);
  EXPECT_EQ(longest, 32768);
}

// Returns a table of two shapes on two GPUs.
WorkspaceTable Small() {
  const AttentionShape windowed = {.batch = 2, .length = 192, .heads = 6, .groups = 2, .width = 64, .window = 17};
  const AttentionShape long_one = {.length = 32768, .causal = false};
  return {.version = "9.19.0",
          .rows = {{.compute_major = 9, .backward = true, .shape = windowed, .bytes = 1780992},
                   {.compute_major = 9, .shape = long_one, .bytes = 256},
                   {.compute_major = 10, .compute_minor = 3, .backward = true, .shape = windowed, .bytes = 1780864},
                   {.compute_major = 10, .compute_minor = 3, .shape = long_one, .bytes = 0}}};
}

TEST(WorkspaceTableTest, ParseTakesWhatPrintGives) {
  const WorkspaceTable small = Small();
  const absl::StatusOr<WorkspaceTable> parsed = WorkspaceTable::Parse(small.Print());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->version, "9.19.0");
  EXPECT_EQ(parsed->rows, small.rows);
  EXPECT_THAT(small.Print(), HasSubstr("  mask window        9.0       10.3\n"));
  EXPECT_THAT(small.Print(), HasSubstr("\n  backward   2   192   6  2  64 causal     17    1780992    1780864\n"));
  EXPECT_THAT(small.Print(), HasSubstr("\n   forward   1 32768   1  1  64   none      0        256          0\n"));
}

TEST(WorkspaceTableTest, ParseTakesNothingElseAndNamesTheLine) {
  const std::string text = Small().Print();
  const auto said = [](const std::string& text) {
    const absl::Status status = WorkspaceTable::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  const auto with = [&](absl::string_view what, absl::string_view instead) {
    EXPECT_TRUE(absl::StrContains(text, what)) << what;
    return absl::StrReplaceAll(text, {{what, instead}});
  };
  for (const auto& [what, instead] : std::vector<std::pair<std::string, std::string>>{
           {"backward  ", "downward  "},        // No direction.
           {"causal     17", "either     17"},  // No mask.
           {"    1780992", "   -1780992"},      // Negative bytes.
           {"    1780992", "    178O992"},      // A letter.
           {"    1780992", "           "},      // A column is missing.
           {"    1780992", "    1780992 0"},    // A column too many.
           {" 1780992", "1780992"},             // Not in its column.
           {"    1780992", "99999999999999999999"},
           {"  192 ", " 19.2 "},
       }) {
    EXPECT_THAT(said(with(what, instead)), HasSubstr("line 5: wanted forward, ")) << what;
  }
  EXPECT_THAT(said(text.substr(0, text.size() - 1)), HasSubstr("line 6: wanted forward, "));  // Cut short.
  EXPECT_THAT(said(text + "\n"), HasSubstr("line 7: "));
  EXPECT_THAT(said(""), HasSubstr("wanted first\n# cuDNN <version>"));
  EXPECT_THAT(said(with("# cuDNN 9.19.0", "# cuDNN ")), HasSubstr("wanted first\n# cuDNN <version>"));
  EXPECT_THAT(said(with("direction", "way      ")), HasSubstr("wanted first\n# cuDNN <version>"));
  EXPECT_THAT(said(with("       9.0       10.3", "")), HasSubstr("wanted first\n# cuDNN <version>"));
}

}  // namespace
}  // namespace shale::testing

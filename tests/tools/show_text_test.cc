// Tests what is said of documents that become sequences.
#include "tools/show_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/data/documents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

std::vector<std::string> Shown(const DocumentsReport& report) {
  std::vector<std::string> lines;
  ShowDocuments("a.jsonl", report, [&](absl::string_view line) { lines.push_back(absl::StrCat(line)); });
  return lines;
}

// Regression: of documents that were left out it said "74 documents in 4 sequences; 50 longer than a sequence".
TEST(ShowDocuments, SaysWhatBecameOfThoseThatAreTooLong) {
  DocumentsReport report = {.documents = 74,
                            .kept_documents = 24,
                            .targets = 5000,
                            .long_documents = 50,
                            .longer = LongDocuments::kDrop,
                            .lost_targets = 4000,
                            .longest = 812,
                            .samples = 4,
                            .padding = 0.02};
  EXPECT_THAT(Shown(report), ::testing::ElementsAre(
                                 "a.jsonl: 24 of 74 documents in 4 sequences, padding 2.0 %",
                                 "a.jsonl: 50 documents are longer than a sequence and left out, with 80.0 % of all "
                                 "tokens (data.long_documents DROP); batch.sequence_length 812 would hold the "
                                 "longest, TRUNCATE keeps beginnings, and SPLIT all parts"));
  report.kept_documents = 74;
  report.longer = LongDocuments::kTruncate;
  report.lost_targets = 500;
  EXPECT_THAT(Shown(report), ::testing::ElementsAre(
                                 "a.jsonl: 74 documents in 4 sequences, padding 2.0 %",
                                 "a.jsonl: 50 documents are longer than a sequence and cut where the sequence ends, "
                                 "which leaves out 10.0 % of all tokens (data.long_documents TRUNCATE); "
                                 "batch.sequence_length 812 would hold the longest, and SPLIT keeps all parts"));
  report.longer = LongDocuments::kSplit;
  report.long_documents = 1;
  report.long_parts = 3;
  EXPECT_THAT(Shown(report)[1],
              "a.jsonl: 1 document is longer than a sequence and split into 3 parts, none of which sees another "
              "(data.long_documents SPLIT); batch.sequence_length 812 would hold the longest");
}

TEST(ShowDocuments, SaysHowManyAreLeftOutBecauseNothingInThemCounts) {
  EXPECT_THAT(Shown({.documents = 3, .kept_documents = 1, .targets = 40, .without_counts = 2, .samples = 1}),
              ::testing::ElementsAre("a.jsonl: 1 of 3 documents in 1 sequence, padding 0 %",
                                     "a.jsonl: of documents and their parts, 2 have no token that counts in the loss "
                                     "and are left out; with data.loss_on ALL every token counts"));
}

}  // namespace
}  // namespace shale

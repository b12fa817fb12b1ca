// Tests documents: how they are found, packed by best fit, and read as samples.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/files/data/documents.h"
#include "engine/files/data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TokenSource Tokens(std::vector<int32_t> tokens) { return TokenSource::FromTokens(std::move(tokens)).value(); }

std::vector<DocumentPart> Find(const TokenSource& source, const DocumentMark& mark, int64_t most = 100,
                               LongDocuments longer = LongDocuments::kSplit) {
  const auto found = FindDocuments(source, mark, most, longer);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() ? found->parts : std::vector<DocumentPart>();
}

TEST(FindDocuments, AnEndTokenIsATargetAndNeverAnInput) {
  // The third document has no target of its own but its end, the fourth is empty, and the last has no end.
  const TokenSource source = Tokens({1, 2, 9, 3, 4, 5, 9, 6, 9, 9, 7, 8});
  EXPECT_THAT(Find(source, {.end_token = 9}),
              ElementsAre(DocumentPart{0, 2}, DocumentPart{3, 3}, DocumentPart{7, 1}, DocumentPart{10, 1}));
}

TEST(FindDocuments, ABeginTokenIsTheFirstInputAndTheLastTargetOfTheDocumentBefore) {
  EXPECT_THAT(Find(Tokens({9, 1, 2, 9, 3, 9, 9, 4}), {.begin_token = 9}),
              ElementsAre(DocumentPart{0, 3}, DocumentPart{3, 2}, DocumentPart{5, 1}, DocumentPart{6, 1}));
}

TEST(FindDocuments, LongDocumentsAreCutAndLoseNoTarget) {
  EXPECT_THAT(Find(Tokens({1, 2, 3, 4, 5, 6, 9, 7, 8}), {.end_token = 9}, 4),
              ElementsAre(DocumentPart{0, 4}, DocumentPart{4, 2}, DocumentPart{7, 1}));
}

TEST(FindDocuments, LongDocumentsAreCountedAndTruncatedOrLeftOutIfTold) {
  const TokenSource source = Tokens({1, 2, 3, 4, 5, 6, 9, 7, 8, 9, 9, 1, 1, 1, 1, 9});
  EXPECT_THAT(Find(source, {.end_token = 9}, 4, LongDocuments::kTruncate),
              ElementsAre(DocumentPart{0, 4}, DocumentPart{7, 2}, DocumentPart{11, 4}));
  EXPECT_THAT(Find(source, {.end_token = 9}, 4, LongDocuments::kDrop),
              ElementsAre(DocumentPart{7, 2}, DocumentPart{11, 4}));
  for (const LongDocuments longer : {LongDocuments::kSplit, LongDocuments::kTruncate, LongDocuments::kDrop}) {
    const DocumentsReport report = FindDocuments(source, {.end_token = 9}, 4, longer)->report;
    EXPECT_EQ(report.documents, 3);
    EXPECT_EQ(report.long_documents, 1);
    // Regression: documents that were left out counted as if a sequence held them.
    EXPECT_EQ(report.kept_documents, longer == LongDocuments::kDrop ? 2 : 3);
    EXPECT_EQ(report.longer, longer);
    EXPECT_EQ(report.long_parts, longer == LongDocuments::kSplit ? 2 : longer == LongDocuments::kTruncate ? 1 : 0);
    EXPECT_EQ(report.targets, 12);
    EXPECT_EQ(report.lost_targets, longer == LongDocuments::kSplit ? 0 : longer == LongDocuments::kTruncate ? 2 : 6);
    EXPECT_EQ(report.longest, 6);
  }
  EXPECT_THAT(std::string(FindDocuments(source, {.end_token = 9}, 1, LongDocuments::kDrop).status().message()),
              HasSubstr("every document has more than 1 targets, and data.long_documents is DROP; raise "
                        "batch.sequence_length, or set SPLIT or TRUNCATE"));
}

TEST(FindDocuments, FilesAreDocuments) {
  TempFolder folder;
  folder.Write("a", "abc");
  folder.Write("b", "de\n");
  folder.Write("c", "f");
  const absl::StatusOr<TokenSource> source = TokenSource::Open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  // "abc\nde\n\nf": the newline behind a file is its last target.
  EXPECT_THAT(*source->DocumentBegins(), ElementsAre(4, 8));
  EXPECT_FALSE(source->knows_documents());
  EXPECT_THAT(Find(*source, {}), ElementsAre(DocumentPart{0, 3}, DocumentPart{4, 3}));
  EXPECT_THAT(Find(*source, {.end_token = '\n'}), ElementsAre(DocumentPart{0, 3}, DocumentPart{4, 2}));
  EXPECT_THAT(*source->Slice(2, 7).DocumentBegins(), ElementsAre(2));
  EXPECT_EQ(source->document_begin_token(), -1);
}

TEST(FindDocuments, TheFormatOfLlmcHasABeginToken) {
  TempFolder folder;
  folder.Write("a.bin", LlmcBytes<uint16_t>({50256, 1, 2, 50256, 3, 4}));
  const absl::StatusOr<TokenSource> source = TokenSource::Open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->document_begin_token(), 50256);
  EXPECT_THAT(Find(*source, {.begin_token = 50256}), ElementsAre(DocumentPart{0, 3}, DocumentPart{3, 2}));
}

TEST(FindDocuments, RefusesDataWithoutDocuments) {
  const auto message = [](const TokenSource& source, const DocumentMark& mark) {
    return std::string(FindDocuments(source, mark, 10, LongDocuments::kSplit).status().message());
  };
  EXPECT_THAT(message(Tokens({1, 2, 3}), {}), HasSubstr("nothing tells documents apart in one file"));
  EXPECT_THAT(message(Tokens({1, 2, 3}), {.end_token = 9}),
              HasSubstr("documents end with token 9, but no such token was found; give the token that this data has"));
  EXPECT_THAT(message(Tokens({9, 9, 9}), {.end_token = 9}), HasSubstr("no document has two tokens"));
}

TEST(BestFit, TakesTheBinWithTheLeastRoomThatHolds) {
  // Largest first: 7, 6, 4, 3, 3, 1 into bins of 10: {7, 3}, {6, 4}, {3, 1}.
  EXPECT_THAT(BestFit(std::vector<int32_t>{3, 7, 1, 6, 4, 3}, 10), ElementsAre(0, 0, 1, 2, 2, 1));
  EXPECT_THAT(BestFit(std::vector<int32_t>{5, 5, 5}, 5), ElementsAre(0, 1, 2));
  EXPECT_THAT(BestFit(std::vector<int32_t>{1, 1, 1}, 2), ElementsAre(0, 0, 1));
}

TEST(BestFit, OverfillsNoBinAndLeavesLittleRoom) {
  std::mt19937_64 random(1);
  for (const int32_t capacity : {1, 2, 17, 100}) {
    std::vector<int32_t> sizes(1000);
    for (int32_t& size : sizes) size = static_cast<int32_t>(1 + random() % capacity);
    const std::vector<int64_t> bins = BestFit(sizes, capacity);
    std::vector<int64_t> filled(*std::max_element(bins.begin(), bins.end()) + 1);
    int64_t next = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      filled[bins[i]] += sizes[i];
      EXPECT_LE(bins[i], next);  // Numbered in the order of their first items.
      next = std::max(next, bins[i] + 1);
    }
    EXPECT_LE(*std::max_element(filled.begin(), filled.end()), capacity);
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    // 11/9 of the fewest bins, and 6/9 of one more (Dosa, 2007).
    EXPECT_LE(9 * std::ssize(filled), 11 * (total + capacity - 1) / capacity + 6) << capacity;
  }
}

struct Sample {
  std::vector<int32_t> inputs, targets, position_ids;
};

std::vector<Sample> ReadAllSamples(DocumentSamples& samples) {
  std::vector<Sample> all;
  for (int64_t i = 0; i < samples.description().samples; ++i) {
    const auto length = static_cast<size_t>(samples.description().sequence_length);
    Sample sample{std::vector<int32_t>(length, -7), std::vector<int32_t>(length, -7), {}};
    if (samples.description().has_position_ids) sample.position_ids.assign(length, -7);
    const absl::Status status = samples.Read(i, {.inputs = absl::MakeSpan(sample.inputs),
                                                 .targets = absl::MakeSpan(sample.targets),
                                                 .position_ids = absl::MakeSpan(sample.position_ids)});
    EXPECT_TRUE(status.ok()) << status;
    all.push_back(std::move(sample));
  }
  return all;
}

TEST(DocumentSamples, PackHoldsSeveralDocumentsAndPadOne) {
  const TokenSource source = Tokens({1, 2, 3, 9, 4, 9, 5, 6, 9});
  auto packed = DocumentSamples::Create(source, Packing::kPack, {.end_token = 9}, 5);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ((*packed)->targets(), 6);
  EXPECT_EQ((*packed)->report().samples, 2);
  EXPECT_DOUBLE_EQ((*packed)->report().padding, 0.4);
  std::vector<Sample> samples = ReadAllSamples(**packed);
  ASSERT_EQ(samples.size(), 2);
  EXPECT_THAT(samples[0].inputs, ElementsAre(1, 2, 3, 5, 6));
  EXPECT_THAT(samples[0].targets, ElementsAre(2, 3, 9, 6, 9));
  EXPECT_THAT(samples[0].position_ids, ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(samples[1].inputs, ElementsAre(4, 0, 0, 0, 0));
  EXPECT_THAT(samples[1].targets, ElementsAre(9, -1, -1, -1, -1));
  EXPECT_THAT(samples[1].position_ids, ElementsAre(0, 0, 0, 0, 0));

  auto padded = DocumentSamples::Create(source, Packing::kPad, {.end_token = 9}, 5);
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_FALSE((*padded)->description().has_position_ids);
  samples = ReadAllSamples(**padded);
  ASSERT_EQ(samples.size(), 3);
  EXPECT_THAT(samples[1].inputs, ElementsAre(4, 0, 0, 0, 0));
  EXPECT_THAT(samples[2].targets, ElementsAre(6, 9, -1, -1, -1));
}

// Every target of the data with its document, whatever the packing.
TEST(DocumentSamples, HoldEveryTargetOnce) {
  std::mt19937_64 random(3);
  std::vector<int32_t> tokens(5000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 8 == 0 ? 0 : 1 + random() % 1000000);
  tokens.back() = 0;
  std::vector<std::pair<int32_t, int32_t>> wanted;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i] != 0) wanted.emplace_back(tokens[i], tokens[i + 1]);
  }
  std::sort(wanted.begin(), wanted.end());
  for (const Packing packing : {Packing::kPack, Packing::kPad}) {
    auto samples = DocumentSamples::Create(Tokens(tokens), packing, {.end_token = 0}, 13);
    ASSERT_TRUE(samples.ok()) << samples.status();
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const Sample& sample : ReadAllSamples(**samples)) {
      for (size_t i = 0; i < sample.inputs.size(); ++i) {
        if (sample.targets[i] >= 0) found.emplace_back(sample.inputs[i], sample.targets[i]);
      }
    }
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, wanted);
    EXPECT_EQ((*samples)->targets(), std::ssize(wanted));
  }
}

}  // namespace
}  // namespace shale

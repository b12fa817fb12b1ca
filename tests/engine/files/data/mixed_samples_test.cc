#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/files/data/sample_sources.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Samples of one position, whose input is the number of the sample.
class Numbers : public DataSource {
 public:
  explicit Numbers(int64_t samples) : DataSource({.name = "numbers", .samples = samples}) {}
  absl::Status Read(int64_t sample, const SampleParts& out) override {
    out.inputs[0] = static_cast<int32_t>(sample);
    return absl::OkStatus();
  }
};

struct Part {
  int64_t samples = 0;
  int64_t share = 0;
};

MixedSamples Mixture(const std::vector<Part>& parts, DataOrder order = DataOrder::kShuffled, uint64_t seed = 1) {
  std::vector<MixedPart> mixed;
  for (const Part& part : parts) {
    mixed.push_back({.source = std::make_shared<Numbers>(part.samples), .share = part.share});
  }
  return MixedSamples("mixture", std::move(mixed), order, seed);
}

TEST(MixedSamples, AnyWindowHasTheSharesAndSpreadsThem) {
  const std::vector<Part> parts = {{7, 501}, {1000000, 298}, {40, 200}, {3, 1}};
  const MixedSamples mixture = Mixture(parts);
  EXPECT_EQ(mixture.description().samples, kEndlessSamples);
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{999}, int64_t{123456789}, kEndlessSamples - 1000}) {
    std::vector<int64_t> counts(parts.size());
    for (int64_t i = 0; i < kMixWindow; ++i) {
      ++counts[mixture.At(begin + i).part];
      for (size_t part = 0; part < parts.size(); ++part) {
        // Each sample stands within a place of where even spacing has it, for each of the other parts.
        const double even = static_cast<double>((i + 1) * parts[part].share) / kMixWindow;
        EXPECT_NEAR(static_cast<double>(counts[part]), even, static_cast<double>(parts.size())) << begin << " " << i;
      }
    }
    for (size_t part = 0; part < parts.size(); ++part) EXPECT_EQ(counts[part], parts[part].share) << begin;
  }
}

TEST(MixedSamples, EachPartIsReadInEpochsOfItsOwn) {
  const std::vector<Part> parts = {{700, 600}, {90, 399}, {1, 1}};
  for (const DataOrder order : {DataOrder::kShuffled, DataOrder::kSequential}) {
    const MixedSamples mixture = Mixture(parts, order);
    std::vector<std::vector<int64_t>> drawn(parts.size());
    for (int64_t i = 0; i < 5000; ++i) {
      const MixedSamples::SampleOfPart place = mixture.At(i);
      drawn[place.part].push_back(place.sample);
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t size = parts[part].samples;
      std::vector<int64_t> all(size), first;
      std::iota(all.begin(), all.end(), 0);
      for (int64_t begin = 0; begin + size <= std::ssize(drawn[part]); begin += size) {
        std::vector<int64_t> epoch(drawn[part].begin() + begin, drawn[part].begin() + begin + size);
        if (order == DataOrder::kSequential) {
          EXPECT_EQ(epoch, all);
        } else if (size > 1) {
          EXPECT_NE(epoch, first) << "epochs are shuffled anew";
          first = epoch;
        }
        std::sort(epoch.begin(), epoch.end());
        EXPECT_EQ(epoch, all);
      }
    }
  }
}

TEST(MixedSamples, ReadsThePartAndDescribesItself) {
  MixedSamples mixture = Mixture({{50, 750}, {20, 250}}, DataOrder::kShuffled, 3);
  EXPECT_EQ(mixture.Describe(), "750 from 50, 250 from 20");
  const MixedSamples other = Mixture({{50, 750}, {20, 250}}, DataOrder::kShuffled, 4);
  int64_t different = 0;
  for (int64_t i = 0; i < 200; ++i) {
    int32_t input = -1;
    ASSERT_TRUE(mixture.Read(i, {.inputs = absl::MakeSpan(&input, 1)}).ok());
    EXPECT_EQ(input, mixture.At(i).sample);
    EXPECT_EQ(mixture.At(i).part, other.At(i).part);
    different += mixture.At(i).sample != other.At(i).sample ? 1 : 0;
  }
  EXPECT_GT(different, 100) << "the seed orders the samples";
}

}  // namespace
}  // namespace shale

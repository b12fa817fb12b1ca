#include "kernels/cuda/cudnn/attention_rates.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace shale::cuda {
namespace {

AttentionRates RatesOn(const ComputeCapability& gpu, const std::string& rows) {
  const absl::StatusOr<AttentionRates> rates = AttentionRates::Parse("shale attention rates 1\n" + rows);
  EXPECT_TRUE(rates.ok()) << rates.status();
  return rates.ok() ? rates->On(gpu) : AttentionRates();
}

AttentionKey Causal(bool backward, int64_t width, int64_t length) {
  return {.backward = backward, .batch = 2, .length = length, .heads = 4, .groups = 2, .width = width};
}

TEST(AttentionRatesTest, TheFasterOfTheNearestShapeWhereBothWereMeasured) {
  const AttentionRates rates = RatesOn({9, 0}, R"(
      9.0 backward D=64 S=1024 causal: own 150 cudnn 156  # a card, a date
      9.0 backward D=64 S=4096 causal: own 170 cudnn 152
      9.0 backward D=128 S=4096 causal: cudnn 250
      9.0 forward D=64 S=4096 causal: own 400 cudnn 400
      8.0 forward D=64 S=4096 causal: own 500 cudnn 100)");
  EXPECT_EQ(rates.size(), 4);
  for (const int64_t length : {512, 1024, 2000, 2048}) {
    EXPECT_FALSE(rates.OwnIsFaster(Causal(true, 64, length))) << length;
  }
  for (const int64_t length : {2052, 4096, 8192}) EXPECT_TRUE(rates.OwnIsFaster(Causal(true, 64, length))) << length;
  // Too far from what was measured, measured for cuDNN alone, not measured, and equal.
  EXPECT_FALSE(rates.OwnIsFaster(Causal(true, 64, 8196)));
  EXPECT_FALSE(rates.OwnIsFaster(Causal(true, 128, 4096)));
  EXPECT_FALSE(rates.OwnIsFaster(Causal(true, 96, 4096)));
  EXPECT_FALSE(rates.OwnIsFaster(Causal(false, 64, 4096)));
  AttentionKey all = Causal(true, 64, 4096), window = all;
  all.causal = false;
  window.window = 1024;
  EXPECT_FALSE(rates.OwnIsFaster(all));
  EXPECT_FALSE(rates.OwnIsFaster(window));
  EXPECT_EQ(rates.On({8, 0}).size(), 0);
  EXPECT_EQ(rates.On({}).size(), 0);
}

TEST(AttentionRatesTest, WindowsOfLikeSizesAndMasksOfTheirOwn) {
  const AttentionRates rates = RatesOn({12, 0}, R"(
      12.0 forward D=128 S=4096 window=512: own 2 cudnn 1
      12.0 forward D=128 S=4096 window=1024: own 1 cudnn 2
      12.0 forward D=128 S=4096 all: own 2e1 cudnn 1.5)");
  AttentionKey key = Causal(false, 128, 4096);
  for (const auto& [window, faster] :
       std::vector<std::pair<int64_t, bool>>{{255, false}, {256, true}, {700, true}, {800, false}, {2048, false}}) {
    key.window = window;
    EXPECT_EQ(rates.OwnIsFaster(key), faster) << window;
  }
  key.window = 0;
  key.causal = false;
  EXPECT_TRUE(rates.OwnIsFaster(key));
}

// With runtime.deterministic_attention=false cuDNN's kernel that adds in any order is what ours are compared with.
TEST(AttentionRatesTest, GradientsThatRepeatTheirBitsComeFirst) {
  const AttentionRates rates = RatesOn({9, 0}, R"(
      9.0 backward D=64 S=4096 causal: own 170 cudnn 152 free 307
      9.0 backward D=128 S=4096 causal: own 250 cudnn 240 free 250
      9.0 backward D=96 S=4096 causal: own 250 cudnn 240)");
  for (const auto& [width, any_order] : std::vector<std::pair<int64_t, bool>>{{64, false}, {128, true}, {96, false}}) {
    AttentionKey key = Causal(true, width, 4096);
    EXPECT_TRUE(rates.OwnIsFaster(key)) << width;
    key.deterministic = false;
    EXPECT_EQ(rates.OwnIsFaster(key), any_order) << width;
  }
}

TEST(AttentionRatesTest, WhatIsNoTableIsRefusedByItsLine) {
  EXPECT_FALSE(AttentionRates::Parse("").ok());
  const std::string good = "9.0 forward D=64 S=4096 causal: own 170";
  for (const std::string bad :
       {"9 forward D=64 S=4096 causal: own 170", "9.0 forwards D=64 S=4096 causal: own 170",
        "9.0 forward D=0 S=4096 causal: own 170", "9.0 forward D=64 S=x causal: own 170",
        "9.0 forward D=64 S=4096 window=0: own 170", "9.0 forward D=64 S=4096 causal: own",
        "9.0 forward D=64 S=4096 causal: own 170 own 171", "9.0 forward D=64 S=4096 causal: free 170",
        "9.0 forward D=64 S=4096 causal: own -1", "9.0 forward D=64 S=4096 causal: own inf",
        "9.0 forward D=64 S=4096 causal:", "9.0 forward D=64 S=4096: own 170", good.c_str()}) {
    const absl::Status status =
        AttentionRates::Parse("shale attention rates 1\n# nothing\n" + good + "\n" + bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(std::string(status.message()).substr(0, 8), "line 4: ") << status;
  }
}

}  // namespace
}  // namespace shale::cuda

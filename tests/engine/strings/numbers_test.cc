#include <cmath>
#include <limits>

#include "engine/strings/printing.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(WithCommas, GroupsByThousands) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-999), "-999");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Plural, CountsNouns) {
  EXPECT_EQ(Plural(1, "batch"), "1 batch");
  EXPECT_EQ(Plural(2000, "batch"), "2,000 batches");
  EXPECT_EQ(Plural(2, "rank"), "2 ranks");
  EXPECT_EQ(Plural(0, "rank"), "0 ranks");
}

TEST(Percent, HasOneDecimal) {
  EXPECT_EQ(Percent(1, 8), "12.5 %");
  EXPECT_EQ(Percent(1, 0), "0 %");
  EXPECT_EQ(Percent(0, 1), "0 %");
}

TEST(LossText, GroupsTheDigitsOfThePerplexity) {
  EXPECT_EQ(LossText(0), "loss 0.0000  perplexity 1.00");
  EXPECT_EQ(LossText(std::log(999.99)), "loss 6.9077  perplexity 999.99");
  EXPECT_EQ(LossText(std::log(1163.96)), "loss 7.0596  perplexity 1,163.96");
  EXPECT_EQ(LossText(std::log(1234567.0)), "loss 14.0262  perplexity 1,234,567.00");
  EXPECT_EQ(LossText(1e4), "loss 10000.0000  perplexity inf");
}

TEST(FormatBytes, HasThreeSignificantDigits) {
  constexpr int64_t kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1,023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(1260), "1.23 KiB");
  EXPECT_EQ(FormatBytes(10 * kKi - 1), "10.0 KiB");
  EXPECT_EQ(FormatBytes(100 * kKi - 1), "100 KiB");
  EXPECT_EQ(FormatBytes(512 * kMi), "512 MiB");
  EXPECT_EQ(FormatBytes(1023 * kMi), "1,023 MiB");
  EXPECT_EQ(FormatBytes(kGi - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(24 * kGi), "24.0 GiB");
  EXPECT_EQ(FormatBytes(31 * kGi + kGi / 5), "31.2 GiB");
  EXPECT_EQ(FormatBytes(2 * kTi), "2.0 TiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(FormatBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-8.0 EiB");
}

TEST(FormatFlops, HasThreeSignificantDigits) {
  EXPECT_EQ(FormatFlops(0), "0 FLOP");
  EXPECT_EQ(FormatFlops(999.4), "999 FLOP");
  EXPECT_EQ(FormatFlops(1e3), "1.00 kFLOP");
  EXPECT_EQ(FormatFlops(45.67e12), "45.7 TFLOP");
  EXPECT_EQ(FormatFlops(999.7e12), "1.00 PFLOP");
}

TEST(FormatDuration, ShowsTheTwoLargestUnits) {
  EXPECT_EQ(FormatDuration(-1), "0s");
  EXPECT_EQ(FormatDuration(0.2), "0s");
  EXPECT_EQ(FormatDuration(59.4), "59s");
  EXPECT_EQ(FormatDuration(59.6), "1m 00s");
  EXPECT_EQ(FormatDuration(92), "1m 32s");
  EXPECT_EQ(FormatDuration(7500), "2h 05m");
  EXPECT_EQ(FormatDuration(3 * 86400 + 4 * 3600), "3d 04h");
}

}  // namespace
}  // namespace shale

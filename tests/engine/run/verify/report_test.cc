#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/api/verify.h"

namespace shale {
namespace {

TEST(VerifyReport, IsATableWithItsFailuresBelow) {
  VerifyReport report = {
      .rows = {{.check = "gradients", .against = "differences", .difference = 2e-5, .tolerance = 0.01},
               {.check = "data", .outcome = VerifyOutcome::kNotRun, .remark = "only in order"}},
      .shrunk = {"batch.micro_batch is 1 instead of 4"},
      .seconds = 65};
  EXPECT_TRUE(report.holds());
  const std::string head =
      "  check                            against                         difference   tolerance  result\n";
  const std::string rows =
      "  gradients                        differences                       2.00e-05    1.00e-02  ok\n"
      "  data                                                                      -           -  not run\n";
  EXPECT_EQ(report.Text(), absl::StrCat(head, rows,
                                        "smaller than the job: batch.micro_batch is 1 instead of 4\n"
                                        "not run: data: only in order\n"
                                        "all checks hold: 1 hold, 0 fail, 1 not run, in 1m 05s\n"));
  report.rows.push_back(
      {.check = "peak", .outcome = VerifyOutcome::kFails, .difference = 64, .remark = "MatMul takes more"});
  EXPECT_FALSE(report.holds());
  EXPECT_EQ(VerifyLine(report.rows[2]),
            "  peak                                                               6.40e+01           0  FAILS");
  EXPECT_EQ(report.Remarks(),
            "smaller than the job: batch.micro_batch is 1 instead of 4\n"
            "not run: data: only in order\n"
            "FAILS: peak: MatMul takes more\n"
            "SOMETHING DIFFERS: 1 hold, 1 fail, 1 not run, in 1m 05s\n");
}

}  // namespace
}  // namespace shale

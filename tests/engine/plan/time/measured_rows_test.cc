// Predicts steps that were measured on an H200 (tools/bench/results/2026-11-27-h200.md).
#include "tests/engine/plan/time/measured_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/time/profile.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Returns the works as the file of the profile has them: with six digits, on two lines each.
std::string WorksText(const proto::MachineProfile& profile) {
  const auto whole = [](std::string* text, double size) { absl::StrAppendFormat(text, "%.0f", size); };
  std::string text;
  for (const proto::MeasuredWork& work : profile.works()) {
    absl::StrAppendFormat(&text, "works { kind: \"%s\" sizes: [%s] ranks_on_host: 1\n", work.kind(),
                          absl::StrJoin(work.sizes(), ", ", whole));
    absl::StrAppendFormat(&text, "        flops: %.6g bytes: %.6g seconds: %.6g spread: %.2g count: %d\n", work.flops(),
                          work.bytes(), work.seconds(), work.spread(), work.count());
    absl::StrAppendFormat(&text, "        origin { source: MEASURED date: \"%s\" } }\n", work.origin().date());
  }
  return text;
}

class MeasuredRows : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<proto::MachineProfile> profile = ReadProfile("h200x8");
    ASSERT_TRUE(profile.ok()) << profile.status();
    profile_ = new proto::MachineProfile(*profile);
    steps_ = new std::vector<RowStep>;
    for (const MeasuredRow& row : H200Rows()) {
      absl::StatusOr<RowStep> step = PlanRow(row, *profile);
      ASSERT_TRUE(step.ok()) << step.status();
      steps_->push_back(*std::move(step));
    }
  }
  // Returns by how much the predicted speed differs from the measured one, as a share, and prints both.
  static double ErrorOf(const RowStep& step, const proto::MachineProfile& profile) {
    const Prediction p = Predict(step.program, step.facts, profile);
    const double error = p.tokens_per_second / step.row.tokens_per_second - 1;
    std::printf("%-18s measured %7.0f tokens/s, predicted %7.0f (%+.1f %%), MFU %.1f %%, %.0f %% measured\n",
                step.row.job.c_str(), step.row.tokens_per_second, p.tokens_per_second, 100 * error, 100 * p.mfu,
                100 * p.known[0]);
    return error;
  }
  static std::vector<const RowStep*> AllBut(const RowStep* left_out) {
    std::vector<const RowStep*> steps;
    for (const RowStep& step : *steps_) {
      if (&step != left_out) steps.push_back(&step);
    }
    return steps;
  }

  static proto::MachineProfile* profile_;
  static std::vector<RowStep>* steps_;
};
proto::MachineProfile* MeasuredRows::profile_ = nullptr;
std::vector<RowStep>* MeasuredRows::steps_ = nullptr;

TEST_F(MeasuredRows, TheCommittedProfilePredictsThemWithinFivePercent) {
  for (const RowStep& step : *steps_) EXPECT_LE(std::abs(ErrorOf(step, *profile_)), 0.05) << step.row.job;
}

TEST_F(MeasuredRows, EachIsPredictedFromTheOthersWithinTenPercent) {
  for (const RowStep& step : *steps_) {
    EXPECT_LE(std::abs(ErrorOf(step, WithWorksOf(*profile_, AllBut(&step)))), 0.1) << step.row.job;
  }
}

TEST_F(MeasuredRows, TheCommittedWorksAreTheirs) {
  const proto::MachineProfile made = WithWorksOf(*profile_, AllBut(nullptr));
  bool equal = made.works_size() == profile_->works_size();
  for (int i = 0; equal && i < made.works_size(); ++i) {
    const proto::MeasuredWork &a = made.works(i), &b = profile_->works(i);
    equal = a.kind() == b.kind() &&
            std::equal(a.sizes().begin(), a.sizes().end(), b.sizes().begin(), b.sizes().end()) &&
            std::abs(a.seconds() / b.seconds() - 1) < 1e-4;
  }
  if (equal) return;
  const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/works.textproto");
  std::ofstream(path) << WorksText(made);
  ADD_FAILURE() << "if the change is meant, replace the works of tools/machines/h200x8.textproto by " << path;
}

}  // namespace
}  // namespace shale

#include <cmath>

#include "engine/run/train/run_watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepReport Step(int64_t step, double norm) {
  StepReport report{
      .step = step, .step_tokens = 10, .processed_tokens = 20, .loss = std::log(256), .gradient_norm = norm};
  report.mfu = 0.5;
  return report;
}

StepReport WithoutTargets(int64_t step) {
  StepReport report = Step(step, 0);
  report.step_tokens = 0;
  report.loss = 0;
  report.updated = false;
  return report;
}

TEST(StepWarningsTest, AGradientOfExactlyZeroIsSaidOnceAndFailsTheRun) {
  StepWarnings warnings(256, true);
  EXPECT_THAT(warnings.Add(Step(1, 1)), IsEmpty());
  for (int64_t step = 2; step <= 10; ++step) EXPECT_THAT(warnings.Add(Step(step, 0)), IsEmpty());
  EXPECT_TRUE(warnings.AtEnd(100).ok());
  EXPECT_THAT(warnings.Add(Step(11, 0)),
              ElementsAre(HasSubstr("the gradient has been exactly 0 in 10 steps up to step 11, so the weights learn "
                                    "nothing; the loss 5.5452 is ln 256")));
  EXPECT_THAT(warnings.Add(Step(12, 0)), IsEmpty());
  EXPECT_EQ(warnings.AtEnd(120).code(), absl::StatusCode::kFailedPrecondition);
  // It learns again.
  EXPECT_THAT(warnings.Add(Step(13, 1e-30)), IsEmpty());
  EXPECT_TRUE(warnings.AtEnd(130).ok());
}

TEST(StepWarningsTest, ARunInWhichNoTargetCountsFails) {
  StepWarnings warnings(256, false);
  EXPECT_TRUE(warnings.AtEnd(0).ok());  // It has had no step.
  for (int64_t step = 1; step <= 9; ++step) EXPECT_THAT(warnings.Add(WithoutTargets(step)), IsEmpty());
  EXPECT_TRUE(warnings.AtEnd(5).ok());  // The targets of the steps before a checkpoint counted.
  EXPECT_THAT(std::string(warnings.AtEnd(0).message()),
              HasSubstr("no target has counted in any of 9 steps, so nothing was trained"));
  EXPECT_THAT(warnings.Add(WithoutTargets(10)), ElementsAre(HasSubstr("no target has counted in 10 steps")));
  EXPECT_FALSE(warnings.AtEnd(5).ok());
  EXPECT_THAT(warnings.Add(Step(11, 1)), IsEmpty());
  EXPECT_TRUE(warnings.AtEnd(10).ok());
}

TEST(StepWarningsTest, AnMfuThatIsNotKnownIsSaidOnce) {
  StepWarnings warnings(256, true);
  StepReport report = Step(1, 1);
  EXPECT_THAT(warnings.Add(report), IsEmpty());
  report.mfu = 0;
  EXPECT_THAT(warnings.Add(report), ElementsAre(HasSubstr("mfu is not known")));
  EXPECT_THAT(warnings.Add(report), IsEmpty());
}

class DeadRunTest : public ResumeTest {};

// Regression: a learning rate that killed the model left it with a loss of ln V and a norm of 0.00, and exit code 0.
TEST_F(DeadRunTest, ARunWithoutGradientFailsAfterItIsSaved) {
  const Job job = MakeJob({"lr_schedule.steps=12", "checkpoint.every_steps=0"});
  const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path("dead")});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  // Without scales of its last norm and with a bias of 0 the model's logits are 0, whatever it reads.
  const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport&) {
    for (const Parameter& parameter : (*trainer)->state().parameters()) {
      const std::vector<float> zeros(parameter.elements(), 0);
      SHALE_RETURN_IF_ERROR((*trainer)->state().WriteParameter(parameter.name, zeros));
    }
    return absl::OkStatus();
  }});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("every token is equally likely"));
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("dead", 12)).ok());
}

}  // namespace
}  // namespace shale

// Verify names what is wrong: an op, a loss, a source of data, a collective.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/api/data_source.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/norm.h"
#include "tests/engine/run/train/own_data.h"
#include "tests/engine/run/verify/verify_jobs.h"
#include "tests/engine/run/verify/wrong_backend.h"
#include "tools/examples/diffusion_mlp.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Job DecoderJob(std::vector<std::string> overrides) {
  overrides.push_back("runtime.ops=REFERENCE");
  return MakeJob(kDecoder, overrides);
}

// The checks of gradients take most of the time. A test that is not about them leaves time for one parameter only.
constexpr double kForGradients = 60, kForOthers = 1e-6;

std::vector<std::string> FailuresOn(const Backend& backend, const Job& job, DataSource& data, double seconds) {
  return Failures(MustVerify(job, {.backend = &backend, .data = &data, .seconds = seconds}));
}

std::vector<std::string> FailuresOf(Mistake mistake, double seconds, const std::vector<std::string>& overrides = {}) {
  const WrongBackend backend(std::move(mistake));
  MadeUpData data(Describe(/*weighted=*/false));
  return FailuresOn(backend, DecoderJob(overrides), data, seconds);
}

TEST(Mistakes, NoMistakeFails) {
  EXPECT_THAT(FailuresOf([](Op&) {}, kForGradients, {"sharding.ranks=2"}), ElementsAre());
}

TEST(Mistakes, ABackwardThatForgetsTheResidual) {
  const std::vector<std::string> failures = FailuresOf(
      [](Op& op) {
        if (auto* norm = op.As<RmsNormBackward>()) norm->d_residual = {};
      },
      kForGradients);
  ASSERT_THAT(failures, ElementsAre(StartsWith("gradients in fp32: ")));
  // The last block's output is right. The norm in its middle is the first that has a residual.
  EXPECT_THAT(failures[0], AllOf(HasSubstr("blocks.1.attention.output.weight"), HasSubstr("embedding.weight"),
                                 HasSubstr("backward goes wrong first at blocks.1.attention.output.weight; to blame is "
                                           "RmsNormBackward of blocks.1")));
  EXPECT_THAT(failures[0], Not(HasSubstr("blocks.1.ffn")));
}

TEST(Mistakes, ABackwardThatReadsAnotherTensor) {
  const WrongBackend backend([](Op& op) {
    if (auto* gelu = op.As<GeluBackward>()) gelu->x_TF = gelu->d_y_TF;
  });
  examples::NoisyPoints points(3, 10);
  const Job job = MakeJob("", {"data.order=SEQUENTIAL", "runtime.ops=REFERENCE"});
  const CustomModel model = examples::DiffusionMlp({.width = 12, .hidden = 16, .blocks = 2});
  const std::vector<std::string> failures =
      Failures(MustVerify(job, {.backend = &backend, .model = model, .data = &points}));
  EXPECT_THAT(failures, Contains(AllOf(StartsWith("gradients in fp32: "), HasSubstr("backward goes wrong first at "),
                                       HasSubstr("GeluBackward of blocks.1"))));
}

TEST(Mistakes, AGradientThatForgetsMicroBatches) {
  const std::vector<std::string> failures = FailuresOf(
      [](Op& op) {
        if (auto* norm = op.As<RmsNormBackward>()) norm->accumulate = false;
      },
      kForOthers, {"sharding={strategy: DDP accumulation: NO_SYNC}"});
  EXPECT_THAT(failures, Contains(AllOf(HasSubstr("micro-batches: "), HasSubstr("norm.weight differs most"),
                                       HasSubstr("micro-batches are not added up"))));
}

TEST(Mistakes, AnOpThatRemembers) {
  // Its results change from call to call, so what runs again differs, and what is resumed as well.
  std::atomic<int> calls = 0;
  const std::vector<std::string> failures = FailuresOf(
      [&](Op& op) {
        if (auto* norm = op.As<RmsNormForward>()) norm->epsilon = 1e-6f * static_cast<float>(++calls);
      },
      kForOthers);
  EXPECT_THAT(failures, Contains(AllOf(StartsWith("recompute BLOCK: the loss of step 1 is "),
                                       HasSubstr("does not compute the same bits"))));
  EXPECT_THAT(failures, Contains(AllOf(StartsWith("save and resume: "), HasSubstr("is in no checkpoint"))));
}

TEST(Mistakes, AnOpThatMixesSequences) {
  const std::vector<std::string> failures = FailuresOf(
      [](Op& op) {
        if (auto* norm = op.As<RmsNormForward>()) norm->epsilon = 1e-2f * static_cast<float>(norm->x.shape[0]);
      },
      kForOthers, {"sharding.ranks=2"});
  EXPECT_THAT(failures,
              Contains(AllOf(HasSubstr(" micro-batches: "), HasSubstr("depends on the sequences beside it"))));
  EXPECT_THAT(failures, Not(Contains(StartsWith("2 ranks"))));
}

TEST(Mistakes, ALossThatForgetsItsWeights) {
  const WrongBackend backend([](Op& op) {
    if (auto* loss = op.As<CrossEntropy>()) loss->weights_T = {};
  });
  for (const char* kind : {"OVER_TOKENS", "OVER_WEIGHTS"}) {
    MadeUpData data(Describe(/*weighted=*/true));
    const std::vector<std::string> failures =
        FailuresOn(backend, DecoderJob({absl::StrCat("data.target_weights=", kind)}), data, kForOthers);
    EXPECT_THAT(failures, ElementsAre(AllOf(StartsWith("target weights: the loss forgets the weights of targets"),
                                            HasSubstr("Look at CrossEntropy in unit head"))))
        << kind;
  }
}

TEST(Mistakes, ASourceThatIsNotAFunctionOfThePosition) {
  int reads = 0;
  MadeUpData data(Describe(/*weighted=*/false), [&](int64_t number, PulledSample& sample) {
    if (number == 3) sample.inputs[4] = ++reads % kIds;
    return absl::OkStatus();
  });
  const std::unique_ptr<Backend> backend = CreateReferenceBackend();
  const std::vector<std::string> failures =
      FailuresOn(*backend, DecoderJob({"data.order=SEQUENTIAL"}), data, kForOthers);
  EXPECT_THAT(failures, ElementsAre(AllOf(
                            StartsWith("data: the source is not a function of the position: position 3 of the data: "
                                       "input 4 of the sample was 1 when it was read first, and 2"),
                            HasSubstr("give the data as a stream"))));
}

TEST(Mistakes, ASourceThatCannotBeReadAgain) {
  int64_t last = -1;
  MadeUpData data(Describe(/*weighted=*/false), [&](int64_t number, PulledSample&) -> absl::Status {
    if (number < last) return absl::FailedPreconditionError("only forwards");
    last = number;
    return absl::OkStatus();
  });
  const std::unique_ptr<Backend> backend = CreateReferenceBackend();
  EXPECT_THAT(FailuresOn(*backend, DecoderJob({"data.order=SEQUENTIAL"}), data, kForOthers),
              ElementsAre(AllOf(StartsWith("data: the source is not a function"), HasSubstr("only forwards"))));
}

TEST(Mistakes, AStepThatFailsIsARowThatFails) {
  std::atomic<bool> fails = false;
  const WrongBackend backend([&](Op& op) {
    if (auto* norm = op.As<RmsNormForward>(); norm != nullptr && fails) norm->epsilon = std::nanf("");
  });
  MadeUpData data(Describe(/*weighted=*/false));
  VerifyOptions options = {.backend = &backend, .data = &data, .seconds = kForOthers};
  options.on_row = [&](const VerifyRow& row) { fails = row.check == "recompute FFN"; };
  const std::vector<std::string> failures = Failures(MustVerify(DecoderJob({}), options));
  EXPECT_THAT(failures, ElementsAre(StartsWith("recompute SUBLAYERS: step 1: the loss or the gradient is not finite")));
}

}  // namespace
}  // namespace shale::testing

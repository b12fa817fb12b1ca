// Tests admission through the C interface: verdicts, ways out that a program gives back as they are, and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/plan.pb.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kAnyDevice[] = R"(
model { decoder { width: 16 layers: 4 heads: 2 vocabulary: 50 } }
batch { global_batch: 8 micro_batch: 2 sequence_length: 32 }
lr_schedule { steps: 1 }
)";
constexpr char kKnownMlp[] = "model { mlp { embedding: 4 hidden: 8 layers: 1 vocabulary: 29 } }\n";

class AdmissionTest : public CTest {
 protected:
  // Returns the admission of a job, or 0 with the message in error_.
  shale_admission Admit(const std::string& job, const shale_admission_options& options,
                        const std::vector<const char*>& overrides = {}) {
    shale_admission admission = 0;
    shale_admit(job.data(), job.size(), overrides.data(), overrides.size(), &options, &admission, &error_);
    return admission;
  }
  shale_admission_summary SummaryOf(shale_admission admission) {
    shale_admission_summary summary = SHALE_INIT(shale_admission_summary);
    EXPECT_EQ(shale_admission_get_summary(admission, &summary, &error_), SHALE_OK) << error_.message;
    return summary;
  }
  std::string TextOf(shale_admission admission, int32_t form) {
    size_t needed = 0;
    EXPECT_EQ(shale_admission_text(admission, form, nullptr, 0, &needed, &error_), SHALE_OK) << error_.message;
    std::string text(needed, '\0');
    EXPECT_EQ(shale_admission_text(admission, form, text.data(), needed, nullptr, &error_), SHALE_OK);
    text.pop_back();
    return text;
  }
  proto::Plan MessageOf(shale_admission admission) {
    proto::Plan plan;
    EXPECT_TRUE(plan.ParseFromString(TextOf(admission, SHALE_ADMISSION_PROTO)));
    return plan;
  }

  const std::string job_ = absl::StrCat(kSmallJob, kKnownMlp);
  shale_admission_options options_ = SHALE_INIT(shale_admission_options);
};

TEST_F(AdmissionTest, AJobFitsExactlyIfItsPlanDoes) {
  // With one micro-batch, AUTO would take another accumulation that needs less.
  const std::string text = absl::StrReplaceAll(job_, {{"ranks: 2", "ranks: 2 accumulation: SHARDED"}});
  const shale_job job = Parse(text);
  shale_plan plan = 0;
  ASSERT_EQ(shale_plan_create(job, nullptr, &plan, &error_), SHALE_OK) << error_.message;
  shale_plan_summary planned = SHALE_INIT(shale_plan_summary);
  ASSERT_EQ(shale_plan_get_summary(plan, &planned, &error_), SHALE_OK) << error_.message;
  for (const int64_t missing : {0, 1}) {
    options_.budget_bytes = planned.arena_bytes - missing;
    shale_admission by_handle = 0;
    EXPECT_EQ(shale_admit_job(job, nullptr, &options_, &by_handle, &error_), SHALE_OK) << error_.message;
    for (const shale_admission admission : {Admit(text, options_), by_handle}) {
      ASSERT_NE(admission, 0) << error_.message;
      const shale_admission_summary summary = SummaryOf(admission);
      EXPECT_EQ(summary.verdict, missing == 0 ? SHALE_FITS : SHALE_DOES_NOT_FIT);
      EXPECT_EQ(summary.arena_bytes, planned.arena_bytes);
      const proto::Plan message = MessageOf(admission);
      EXPECT_EQ(message.verdict(), summary.verdict);
      EXPECT_EQ(message.text(), TextOf(admission, SHALE_ADMISSION_TEXT));
      EXPECT_EQ(message.refusal().ways_out_size(), summary.ways_out);
      EXPECT_THAT(TextOf(admission, SHALE_ADMISSION_JSON),
                  HasSubstr(missing == 0 ? "\"verdict\": \"FITS\"" : "\"verdict\": \"DOES_NOT_FIT\""));
      EXPECT_EQ(shale_admission_free(admission, &error_), SHALE_OK);
    }
  }
  shale_plan_free(plan, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(AdmissionTest, AWayOutIsGivenBackAsItIs) {
  const std::string job(kAnyDevice);
  const shale_admission fits = Admit(job, options_);
  ASSERT_NE(fits, 0) << error_.message;
  ASSERT_EQ(SummaryOf(fits).verdict, SHALE_FITS) << TextOf(fits, SHALE_ADMISSION_TEXT);
  options_.budget_bytes = SummaryOf(fits).arena_bytes * 9 / 10;
  const shale_admission refused = Admit(job, options_);
  ASSERT_NE(refused, 0) << error_.message;
  const shale_admission_summary summary = SummaryOf(refused);
  ASSERT_EQ(summary.verdict, SHALE_DOES_NOT_FIT);
  ASSERT_GT(summary.ways_out, 0) << TextOf(refused, SHALE_ADMISSION_TEXT);
  for (int64_t i = 0; i < summary.ways_out; ++i) {
    shale_way_out way = SHALE_INIT(shale_way_out);
    ASSERT_EQ(shale_admission_get_way_out(refused, i, &way, &error_), SHALE_OK) << error_.message;
    shale_admission changed = 0;
    ASSERT_EQ(shale_admit(job.data(), job.size(), way.overrides, way.override_count, &options_, &changed, &error_),
              SHALE_OK)
        << error_.message;
    EXPECT_EQ(SummaryOf(changed).verdict, SHALE_FITS) << way.overrides[0];
    EXPECT_EQ(SummaryOf(changed).arena_bytes, way.arena_bytes) << way.overrides[0];
    EXPECT_EQ(SummaryOf(changed).host_bytes, way.host_bytes) << way.overrides[0];
    shale_admission_free(changed, nullptr);
  }
  shale_way_out way = SHALE_INIT(shale_way_out);
  EXPECT_EQ(shale_admission_get_way_out(fits, 0, &way, &error_), SHALE_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "found way out 0; there are 0");
  shale_admission_free(fits, nullptr);
  shale_admission_free(refused, nullptr);
}

TEST_F(AdmissionTest, AnInvalidJobHasAVerdict) {
  const shale_admission admission = Admit(absl::StrCat(job_, "bach { }\n"), options_);
  ASSERT_NE(admission, 0) << error_.message;
  EXPECT_EQ(SummaryOf(admission).verdict, SHALE_INVALID);
  EXPECT_EQ(SummaryOf(admission).arena_bytes, 0);
  EXPECT_GT(MessageOf(admission).errors_size(), 0);
  EXPECT_THAT(TextOf(admission, SHALE_ADMISSION_TEXT), HasSubstr("bach"));
  size_t needed = 0;
  EXPECT_EQ(shale_admission_text(admission, 3, nullptr, 0, &needed, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "form is 3; allowed: SHALE_ADMISSION_TEXT and those after it");
  shale_admission_free(admission, nullptr);
}

TEST_F(AdmissionTest, AModelOfTheProgram) {
  const shale_job job = Parse(kSmallJob, SHALE_MODEL_FROM_PROGRAM);
  const shale_model mlp = Mlp();
  shale_admission own = 0;
  options_.vocabulary = 29;
  ASSERT_EQ(shale_admit_job(job, &mlp, &options_, &own, &error_), SHALE_OK) << error_.message;
  const shale_admission described = Admit(job_, options_);
  EXPECT_EQ(SummaryOf(own).verdict, SHALE_FITS) << TextOf(own, SHALE_ADMISSION_TEXT);
  EXPECT_EQ(SummaryOf(own).arena_bytes, SummaryOf(described).arena_bytes);
  shale_admission_free(own, nullptr);
  shale_admission_free(described, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(AdmissionTest, NoJobTakesMoreThanItsLimits) {
  const auto code = [&](const shale_admission_options& options) {
    shale_admission admission = 0;
    const shale_code result = shale_admit(job_.data(), job_.size(), nullptr, 0, &options, &admission, &error_);
    EXPECT_EQ(admission, 0);
    return result;
  };
  shale_admission_options limited = options_;
  limited.seconds = 1e-9;
  EXPECT_EQ(code(limited), SHALE_DEADLINE_EXCEEDED);
  EXPECT_THAT(error_.message, StartsWith("planning the job reached its time limit of 1ns"));
  limited = options_;
  limited.memory_bytes = 1;
  EXPECT_EQ(code(limited), SHALE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(error_.message, HasSubstr("of memory, more than the limit of 1 B"));
  limited = options_;
  limited.job_bytes = 10;
  EXPECT_EQ(code(limited), SHALE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(error_.message, HasSubstr("and at most 10 are read"));
  limited = options_;
  ASSERT_EQ(shale_stop_create(&limited.stop, &error_), SHALE_OK);
  ASSERT_EQ(shale_stop_request(limited.stop, &error_), SHALE_OK);
  EXPECT_EQ(code(limited), SHALE_CANCELLED);
  EXPECT_STREQ(error_.message, "planning was cancelled");
  shale_stop_free(limited.stop, nullptr);
  EXPECT_EQ(code(limited), SHALE_INVALID_ARGUMENT);
}

TEST_F(AdmissionTest, WrongOptionsAreRefused) {
  const auto message = [&](void (*spoil)(shale_admission_options&)) {
    shale_admission_options options = SHALE_INIT(shale_admission_options);
    spoil(options);
    EXPECT_EQ(Admit(job_, options), 0);
    return std::string(error_.message);
  };
  EXPECT_THAT(message([](shale_admission_options& o) { o.size = 0; }), StartsWith("options->size is 0"));
  EXPECT_EQ(message([](shale_admission_options& o) { o.device = 2; }), "device is 2; allowed: SHALE_CPU, SHALE_CUDA");
  EXPECT_THAT(message([](shale_admission_options& o) { o.hardware_threads = -1; }),
              StartsWith("hardware_threads is -1; allowed: 0 to "));
  EXPECT_THAT(message([](shale_admission_options& o) { o.most_ranks = -1; }), StartsWith("most_ranks is -1"));
  EXPECT_THAT(message([](shale_admission_options& o) { o.budget_bytes = -1; }), StartsWith("budget_bytes"));
  EXPECT_THAT(message([](shale_admission_options& o) { o.host_budget_bytes = INT64_MIN; }),
              StartsWith("host_budget_bytes"));
  EXPECT_THAT(message([](shale_admission_options& o) { o.vocabulary = INT64_MAX; }), StartsWith("vocabulary"));
  EXPECT_THAT(message([](shale_admission_options& o) { o.memory_bytes = -1; }), StartsWith("memory_bytes"));
  EXPECT_THAT(message([](shale_admission_options& o) { o.job_bytes = -1; }), StartsWith("job_bytes"));
  EXPECT_EQ(message([](shale_admission_options& o) { o.seconds = -INFINITY; }), "seconds is -inf; at least 0");
}

TEST_F(AdmissionTest, AMachineMayHaveDevicesThatTheProgramWasNotBuiltFor) {
  options_.device = SHALE_CUDA;
  const shale_admission admission = Admit(kAnyDevice, options_, {"runtime.device=CUDA"});
  ASSERT_NE(admission, 0) << error_.message;
  const shale_admission_summary summary = SummaryOf(admission);
  EXPECT_EQ(summary.verdict, SHALE_FITS);
  EXPECT_GT(summary.arena_bytes, int64_t{32} << 20) << "the workspace of matmuls";
}

}  // namespace
}  // namespace shale

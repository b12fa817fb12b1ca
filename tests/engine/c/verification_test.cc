// Tests the checks of jobs through the C interface: with a model and data of the program, with what fails, and when
// they are stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using OnCheck = std::function<void(const shale_check&)>;

// Options for which gradients take little time, and which leave their folder in `folder`.
shale_verify_options Options(const char* folder, const OnCheck& on_check) {
  shale_verify_options options = SHALE_INIT(shale_verify_options);
  options.seconds = 1e-6;
  options.temporary_folder = folder;
  options.on_check_user = const_cast<OnCheck*>(&on_check);
  options.on_check = [](void* user, const shale_check* check) { (*static_cast<OnCheck*>(user))(*check); };
  return options;
}

class VerificationTest : public CTest {
 protected:
  VerificationTest() { std::filesystem::create_directory(temporary_); }
  ~VerificationTest() override { EXPECT_TRUE(std::filesystem::is_empty(temporary_)); }

  const std::string temporary_ = Path("temporary");
};

TEST_F(VerificationTest, ChecksAModelAndDataOfTheProgram) {
  const shale_job job = Parse(kSmallJob, SHALE_MODEL_FROM_PROGRAM);
  ASSERT_NE(job, 0) << error_.message;
  const shale_model mlp = Mlp();
  const shale_data data = MadeUp();
  std::vector<std::string> told;
  const OnCheck on_check = [&](const shale_check& check) {
    EXPECT_EQ(check.size, sizeof(shale_check));
    told.push_back(absl::StrCat(check.name, " / ", check.against, ": ", check.outcome));
  };
  shale_verify_options options = Options(temporary_.c_str(), on_check);
  options.model = &mlp;
  options.data = &data;
  shale_verification verification = 0;
  ASSERT_EQ(shale_verify(job, &options, &verification, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(shale_job_free(job, &error_), SHALE_OK);

  shale_verification_summary summary = SHALE_INIT(shale_verification_summary);
  ASSERT_EQ(shale_verification_get_summary(verification, &summary, &error_), SHALE_OK) << error_.message;
  char text[16384];
  ASSERT_EQ(shale_verification_text(verification, text, sizeof(text), nullptr, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(summary.passed, 1) << text;
  EXPECT_EQ(summary.checks, std::ssize(told));
  EXPECT_EQ(summary.failed, 0);
  EXPECT_GT(summary.seconds, 0);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("all checks hold: ", summary.checks - summary.not_run, " hold, 0 fail")));
  EXPECT_THAT(told, Contains("2 ranks / one rank: 0"));
  EXPECT_THAT(told, Contains("data / read again, backwards: 0"));
  for (int64_t i = 0; i < summary.checks; ++i) {
    shale_check check = SHALE_INIT(shale_check);
    ASSERT_EQ(shale_verification_get_check(verification, i, &check, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(absl::StrCat(check.name, " / ", check.against, ": ", check.outcome), told[i]);
    EXPECT_LE(check.difference, check.tolerance);
    EXPECT_TRUE(check.outcome == SHALE_CHECK_HOLDS || std::string(check.remark) != "") << check.name;
  }
  shale_check check = SHALE_INIT(shale_check);
  EXPECT_EQ(shale_verification_get_check(verification, summary.checks, &check, &error_), SHALE_OUT_OF_RANGE);
  EXPECT_EQ(std::string(error_.message), absl::StrCat("found check ", summary.checks, "; there are ", summary.checks));
  EXPECT_EQ(shale_verification_get_check(verification, -1, &check, &error_), SHALE_OUT_OF_RANGE);
  EXPECT_EQ(shale_verification_free(verification, &error_), SHALE_OK);
  EXPECT_EQ(shale_verification_get_summary(verification, &summary, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "this handle of a verification was freed, or was never returned");
}

TEST_F(VerificationTest, AFailedCheckIsNoError) {
  const shale_job job = Parse(absl::StrCat(kSmallJob, kMlp));
  int64_t next = 0;  // The data are not a function of the number of the sample.
  shale_data data = MadeUp();
  data.user = &next;
  std::string failed;
  const OnCheck on_check = [&](const shale_check& check) {
    if (check.outcome == SHALE_CHECK_FAILS) absl::StrAppend(&failed, check.name, ": ", check.remark);
  };
  shale_verify_options options = Options(temporary_.c_str(), on_check);
  options.data = &data;
  shale_verification verification = 0;
  ASSERT_EQ(shale_verify(job, &options, &verification, &error_), SHALE_OK) << error_.message;
  EXPECT_THAT(failed, StartsWith("data: the source is not a function of the position"));
  shale_verification_summary summary = SHALE_INIT(shale_verification_summary);
  ASSERT_EQ(shale_verification_get_summary(verification, &summary, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(summary.passed, 0);
  EXPECT_EQ(summary.failed, 1);
  shale_verification_free(verification, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(VerificationTest, AnyThreadStopsIt) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  shale_stop stop = 0;
  ASSERT_EQ(shale_stop_create(&stop, &error_), SHALE_OK) << error_.message;
  int checks = 0;
  const OnCheck on_check = [&](const shale_check&) {
    if (++checks != 2) return;
    std::thread([&] {
      EXPECT_EQ(shale_stop_request(stop, nullptr), SHALE_OK);
      EXPECT_EQ(shale_stop_free(stop, nullptr), SHALE_OK);  // The call goes on to the next step.
    }).join();
  };
  shale_verify_options options = Options(temporary_.c_str(), on_check);
  options.stop = stop;
  shale_verification verification = 0;
  EXPECT_EQ(shale_verify(job, &options, &verification, &error_), SHALE_CANCELLED);
  EXPECT_STREQ(error_.message, "the verification was cancelled");
  EXPECT_EQ(verification, 0);
  EXPECT_EQ(checks, 2);
  // The stop does not exist any more.
  EXPECT_EQ(shale_verify(job, &options, &verification, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "this handle of a stop was freed, or was never returned");
  shale_job_free(job, nullptr);
}

TEST_F(VerificationTest, WrongOptionsAreRefused) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  const OnCheck on_check = [](const shale_check& check) { ADD_FAILURE() << check.name; };
  const auto message = [&](void (*spoil)(shale_verify_options&), shale_code code = SHALE_INVALID_ARGUMENT) {
    shale_verify_options options = Options(temporary_.c_str(), on_check);
    spoil(options);
    shale_verification verification = 0;
    EXPECT_EQ(shale_verify(job, &options, &verification, &error_), code);
    return std::string(error_.message);
  };
  EXPECT_THAT(message([](shale_verify_options& o) { o.size = 8; }), StartsWith("options->size is 8"));
  EXPECT_EQ(message([](shale_verify_options& o) { o.seconds = -1; }), "seconds is -1; at least 0");
  EXPECT_EQ(message([](shale_verify_options& o) { o.seconds = NAN; }), "seconds is nan; at least 0");
  EXPECT_THAT(message([](shale_verify_options& o) { o.stop = 5; }), HasSubstr("is not the handle of a stop"));
  EXPECT_THAT(message([](shale_verify_options& o) { o.temporary_folder = "/nowhere"; }, SHALE_FAILED_PRECONDITION),
              HasSubstr("cannot make a folder in /nowhere"));
  EXPECT_THAT(message([](shale_verify_options& o) {
                static const shale_model mlp = Mlp();  // The job has a model.
                o.model = &mlp;
              }),
              HasSubstr("model"));
  shale_job_free(job, nullptr);
}

}  // namespace
}  // namespace shale

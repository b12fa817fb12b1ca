// Tests that every misuse of the C interface is an error with a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(CTest, NullIsAnError) {
  EXPECT_EQ(shale_job_load(nullptr, nullptr, 0, 0, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "path is NULL");
  EXPECT_EQ(error_.code, SHALE_INVALID_ARGUMENT);
  shale_job job = 0;
  EXPECT_EQ(shale_job_parse("", nullptr, nullptr, 1, 0, &job, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "overrides is NULL");
  const char* const overrides[] = {nullptr};
  EXPECT_EQ(shale_job_parse("", nullptr, overrides, 1, 0, &job, nullptr), SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_job_parse("", nullptr, nullptr, 0, 7, &job, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "flags is 7; allowed: 0, SHALE_MODEL_FROM_PROGRAM");
  EXPECT_EQ(shale_trainer_create(0, nullptr, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_generator_generate(0, nullptr, 0, 0, nullptr, nullptr, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_export_parameters(nullptr, 0, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_export_adapter("folder", 0, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "out is NULL");
  EXPECT_EQ(shale_export_adapter(nullptr, 0, "out", &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "folder is NULL");
  EXPECT_EQ(shale_stop_create(nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "stop is NULL");
  shale_verification verification = 0;
  EXPECT_EQ(shale_verify(0, nullptr, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "verification is NULL");
  EXPECT_EQ(shale_verify(0, nullptr, &verification, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "0 is not the handle of a job");
  shale_admission admission = 0;
  EXPECT_EQ(shale_admit(nullptr, 1, nullptr, 0, nullptr, &admission, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "job is NULL");
  EXPECT_EQ(shale_admit("", 0, nullptr, 0, nullptr, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "admission is NULL");
  EXPECT_EQ(shale_admit_job(0, nullptr, nullptr, &admission, &error_), SHALE_INVALID_ARGUMENT);
  // Freeing nothing is fine.
  EXPECT_EQ(shale_job_free(0, &error_), SHALE_OK);
  EXPECT_EQ(shale_trainer_free(0, nullptr), SHALE_OK);
}

TEST_F(CTest, HandlesEndWhenTheyAreFreed) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  ASSERT_NE(job, 0) << error_.message;
  size_t needed = 0;
  EXPECT_EQ(shale_trainer_request_stop(job, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("is not the handle of a trainer, but of another kind"));
  EXPECT_EQ(shale_job_text(0, nullptr, 0, &needed, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "0 is not the handle of a job");
  EXPECT_EQ(shale_job_free(job, &error_), SHALE_OK);
  EXPECT_EQ(shale_job_free(job, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "this handle of a job was freed, or was never returned");
  // The next job takes the same place, and the old handle stays invalid.
  const shale_job next = Parse(kSmallJob + OnText() + kMlp);
  EXPECT_NE(next, job);
  EXPECT_EQ(shale_job_text(job, nullptr, 0, &needed, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_job_free(next, &error_), SHALE_OK);
}

TEST_F(CTest, StructsOfOtherSizes) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  shale_trainer trainer = 0;
  shale_trainer_options none = {};
  EXPECT_EQ(shale_trainer_create(job, &none, &trainer, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, StartsWith("options->size is 0; begin with SHALE_INIT"));
  // A later version of the struct, whose new member is 0 or not.
  struct Later {
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    int64_t added = 0;
  } later;
  later.options.size = sizeof(Later);
  EXPECT_EQ(shale_trainer_create(job, &later.options, &trainer, &error_), SHALE_OK) << error_.message;
  shale_trainer second = 0;
  later.added = 1;
  EXPECT_EQ(shale_trainer_create(job, &later.options, &second, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, StartsWith(absl::StrCat("options sets a member that version ", SHALE_API_VERSION,
                                                      " of this library does not")));
  shale_step_report report = {};
  EXPECT_EQ(shale_trainer_step(trainer, &report, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, StartsWith("report->size is 0"));
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  EXPECT_EQ(shale_trainer_get_state(trainer, &state, &error_), SHALE_OK);
  EXPECT_EQ(state.steps_done, 0);  // The call did no step.
  // A struct for errors without a size takes no message, and the code is still returned.
  shale_error small = {};
  EXPECT_EQ(shale_trainer_evaluate(trainer, 0, nullptr, &small), SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(small.message, "");
  shale_trainer_free(trainer, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(CTest, TextNeedsRoom) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  size_t needed = 0;
  ASSERT_EQ(shale_job_text(job, nullptr, 0, &needed, &error_), SHALE_OK);
  std::vector<char> text(needed);
  EXPECT_EQ(shale_job_text(job, text.data(), needed - 1, nullptr, &error_), SHALE_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, absl::StrCat("the buffer has ", needed - 1, " bytes; needed are ", needed).c_str());
  EXPECT_EQ(shale_job_text(job, text.data(), needed, nullptr, &error_), SHALE_OK);
  EXPECT_EQ(shale_job_text(job, nullptr, 0, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  // The text is a job again, with the same text.
  const shale_job again = Parse(text.data());
  ASSERT_NE(again, 0) << error_.message;
  std::vector<char> second(needed);
  EXPECT_EQ(shale_job_text(again, second.data(), needed, nullptr, &error_), SHALE_OK);
  EXPECT_EQ(second, text);
  shale_job_free(job, nullptr);
  shale_job_free(again, nullptr);
}

TEST_F(CTest, LongMessagesAreCutAtACharacter) {
  // 20 errors of this job are longer than a message.
  std::string text(kSmallJob);
  for (int i = 0; i < 20; ++i)
    absl::StrAppend(&text, "name: \"", std::string(500, 'x'), "\xE2\x82\xAC\" no_field: 1\n");
  shale_job job = 0;
  EXPECT_EQ(shale_job_parse(text.c_str(), std::string(600, 'y').c_str(), nullptr, 0, 0, &job, &error_),
            SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error_.message).size(), sizeof(error_.message) - 1);
}

// A callback that uses the trainer which waits for it.
struct Loop {
  shale_trainer trainer = 0;
  shale_code code = SHALE_OK, stop = SHALE_INTERNAL, free = SHALE_OK;
};

TEST_F(CTest, OneCallAtATime) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  Loop loop = {.trainer = Create(job, SHALE_INIT(shale_trainer_options))};
  ASSERT_NE(loop.trainer, 0) << error_.message;
  const auto on_step = [](void* user, const shale_step_report*) -> int32_t {
    Loop& loop = *static_cast<Loop*>(user);
    loop.code = shale_trainer_step(loop.trainer, nullptr, nullptr);
    loop.free = shale_trainer_free(loop.trainer, nullptr);
    std::thread([&loop] { loop.stop = shale_trainer_request_stop(loop.trainer, nullptr); }).join();
    return 0;
  };
  EXPECT_EQ(shale_trainer_run(loop.trainer, on_step, &loop, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(loop.code, SHALE_UNAVAILABLE);
  EXPECT_EQ(loop.free, SHALE_UNAVAILABLE);
  EXPECT_EQ(loop.stop, SHALE_OK);
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  shale_trainer_get_state(loop.trainer, &state, nullptr);
  EXPECT_EQ(state.steps_done, 1);
  EXPECT_EQ(shale_trainer_free(loop.trainer, nullptr), SHALE_OK);
  shale_job_free(job, nullptr);
}

TEST_F(CTest, ThreadsThatShareATrainerGetErrorsAtMost) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  const shale_trainer trainer = Create(job, SHALE_INIT(shale_trainer_options));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      shale_step_report report = SHALE_INIT(shale_step_report);
      while (true) {
        const shale_code code = shale_trainer_step(trainer, &report, nullptr);
        if (code == SHALE_FAILED_PRECONDITION) return;
        EXPECT_TRUE(code == SHALE_OK || code == SHALE_UNAVAILABLE) << code;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  shale_trainer_get_state(trainer, &state, nullptr);
  EXPECT_EQ(state.steps_done, 6);
  shale_trainer_free(trainer, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(CTest, WrongDataAreRefused) {
  const shale_job job = Parse(absl::StrCat(kSmallJob, kMlp));
  const auto message = [&](void (*spoil)(shale_data&)) {
    shale_data data = MadeUp();
    spoil(data);
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    options.data = &data;
    EXPECT_EQ(Create(job, options), 0);
    return std::string(error_.message);
  };
  EXPECT_EQ(message([](shale_data& data) { data.name = nullptr; }), "data->name is NULL");
  EXPECT_EQ(message([](shale_data& data) { data.read = nullptr; }), "data->read is NULL");
  EXPECT_THAT(message([](shale_data& data) { data.samples = -1; }), StartsWith("data->samples is -1; allowed: 0 to"));
  EXPECT_THAT(message([](shale_data& data) { data.features = INT64_MAX; }), StartsWith("data->features is "));
  EXPECT_THAT(message([](shale_data& data) { data.sequence_length = 9; }), HasSubstr("sequence_length"));
  EXPECT_THAT(message([](shale_data& data) { data.in_order = 1; }), HasSubstr("SEQUENTIAL"));
  shale_job_free(job, nullptr);
}

TEST_F(CTest, ABuilderLivesAsLongAsItsFunction) {
  const shale_job open = Parse(kSmallJob + OnText(), SHALE_MODEL_FROM_PROGRAM);
  shale_builder kept = 0;
  shale_model model = Mlp();
  model.user = &kept;
  model.build = [](void* user, shale_builder b, const shale_graph_options* options, shale_error* error) {
    *static_cast<shale_builder*>(user) = b;
    return BuildMlp(user, b, options, error);
  };
  shale_plan plan = 0;
  ASSERT_EQ(shale_plan_create(open, &model, &plan, &error_), SHALE_OK) << error_.message;
  EXPECT_NE(kept, 0);
  EXPECT_EQ(shale_builder_add_group(kept, "late"), SHALE_NONE);
  EXPECT_EQ(shale_builder_unit_input(kept), SHALE_NONE);
  shale_builder_end_last_unit(kept);
  shale_plan_free(plan, nullptr);
  shale_job_free(open, nullptr);
}

}  // namespace
}  // namespace shale

// Tests data and models that a program brings through the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(CTest, OwnDataInAnyOrderAndInOrder) {
  const std::string text = absl::StrCat(kSmallJob, kMlp, "data { order: SEQUENTIAL }\n");
  const shale_job job = Parse(text);
  shale_data data = MadeUp();
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.data = &data;
  shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;
  const std::vector<double> losses = Losses(trainer);
  shale_trainer_free(trainer, nullptr);
  ASSERT_THAT(losses, SizeIs(6));

  // In order, with a state: the same samples, also after a stop.
  int64_t next = 0;
  data.user = &next;
  data.in_order = 1;
  data.save = [](void* user, char* state, size_t capacity, size_t* used, shale_error*) -> shale_code {
    *used = absl::StrCat("at ", *static_cast<int64_t*>(user)).copy(state, capacity);
    return SHALE_OK;
  };
  data.restore = [](void* user, const char* state, size_t bytes, shale_error*) -> shale_code {
    *static_cast<int64_t*>(user) = std::stoll(std::string(state + 3, bytes - 3));
    return SHALE_OK;
  };
  const std::string checkpoints = Path("checkpoints");
  options.checkpoint_folder = checkpoints.c_str();
  options.resume = SHALE_RESUME_LATEST_OR_START;
  std::vector<double> in_order;
  for (const int steps : {2, 4}) {
    next = 0;
    trainer = Create(job, options);
    ASSERT_NE(trainer, 0) << error_.message;
    shale_step_report report = SHALE_INIT(shale_step_report);
    for (int i = 0; i < steps; ++i) {
      ASSERT_EQ(shale_trainer_step(trainer, &report, &error_), SHALE_OK) << error_.message;
      in_order.push_back(report.loss);
    }
    ASSERT_EQ(shale_trainer_save(trainer, nullptr, 0, nullptr, &error_), SHALE_OK) << error_.message;
    shale_trainer_free(trainer, nullptr);
  }
  EXPECT_EQ(in_order, losses);
  shale_job_free(job, nullptr);
}

// Builds a model with one layer of attention, which is causal if `user` is null.
shale_code BuildAttention(void* user, shale_builder b, const shale_graph_options* options, shale_error*) {
  const int64_t table_shape[] = {options->vocabulary, 12}, head_shape[] = {options->vocabulary, 4};
  const int32_t group = shale_builder_add_group(b, "all");
  const int32_t table = shale_builder_add_parameter(b, group, "table", table_shape, 2, SHALE_NORMAL, 1);
  const int32_t head = shale_builder_add_parameter(b, group, "head", head_shape, 2, SHALE_NORMAL, 1);
  shale_builder_begin_unit(b, "all", SHALE_NONE);
  const int32_t embedded = shale_layer_embedding(b, table, SHALE_NONE);
  int32_t heads[3];  // [B, S, 2, 2]
  for (int i = 0; i < 3; ++i) {
    const int32_t columns = shale_layer_slice(b, embedded, 1, 4 * i, 4);
    heads[i] = shale_layer_split_first(b, shale_layer_split_last(b, columns, 2), options->micro_batch);
  }
  const int32_t out = user == nullptr ? shale_layer_attention(b, heads[0], heads[1], heads[2], 0)
                                      : shale_layer_bidirectional_attention(b, heads[0], heads[1], heads[2]);
  shale_layer_linear_cross_entropy(b, out, head, SHALE_NONE);
  shale_builder_end_last_unit(b);
  return SHALE_OK;
}

TEST_F(CTest, AttentionInBothDirectionsTrainsAndDoesNotGenerate) {
  const std::string text = kSmallJob + OnText();
  int both_ways = 1;
  shale_model model = Mlp();
  model.layers = model.last_target_only = 0;
  model.build = BuildAttention;
  double first[2];
  for (int i = 0; i < 2; ++i) {
    model.user = i == 0 ? nullptr : &both_ways;
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    options.model = &model;
    const shale_job job = Parse(text, SHALE_MODEL_FROM_PROGRAM);
    const shale_trainer trainer = Create(job, options);
    ASSERT_NE(trainer, 0) << error_.message;
    const std::vector<double> losses = Losses(trainer);
    ASSERT_THAT(losses, SizeIs(6));
    first[i] = losses[0];
    shale_trainer_free(trainer, nullptr);
    shale_job_free(job, nullptr);

    const char* const override = "runtime.generate=true";
    shale_job generating = 0;
    shale_job_parse(text.c_str(), nullptr, &override, 1, SHALE_MODEL_FROM_PROGRAM, &generating, &error_);
    ASSERT_NE(generating, 0) << error_.message;
    shale_plan plan = 0;
    EXPECT_EQ(shale_plan_create(generating, &model, &plan, &error_), i == 0 ? SHALE_OK : SHALE_INVALID_ARGUMENT);
    shale_plan_free(plan, nullptr);
    shale_job_free(generating, nullptr);
  }
  EXPECT_THAT(error_.message, HasSubstr("a model with bidirectional attention cannot generate tokens"));
  EXPECT_NE(first[0], first[1]);
}

TEST_F(CTest, DocumentsOfAProgramDoNotSeeEachOther) {
  const auto read = [](void* user, int64_t sample, const shale_sample* out, shale_error* error) {
    const int64_t length = *static_cast<int64_t*>(user);  // Of a document.
    for (int64_t i = 0; i < out->sequence_length; ++i) out->position_ids[i] = static_cast<int32_t>(i % length);
    return ReadMadeUp(nullptr, sample, out, error);
  };
  const auto loss = [&](int64_t length, int32_t in_order) {
    const shale_job job =
        Parse(absl::StrCat(kSmallJob, "model { decoder { width: 8 layers: 1 heads: 2 hidden: 12 init_std: 0.5 } }\n",
                           "data { packing: PACK order: SEQUENTIAL }\n"));
    shale_data data = MadeUp();
    data.user = &length;
    data.read = read;
    data.in_order = in_order;
    data.has_position_ids = 1;
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    options.data = &data;
    const shale_trainer trainer = Create(job, options);
    EXPECT_NE(trainer, 0) << error_.message;
    shale_step_report report = SHALE_INIT(shale_step_report);
    EXPECT_EQ(shale_trainer_step(trainer, &report, &error_), SHALE_OK) << error_.message;
    shale_trainer_free(trainer, nullptr);
    shale_job_free(job, nullptr);
    return report.loss;
  };
  EXPECT_NE(loss(4, 0), loss(8, 0));
  EXPECT_EQ(loss(4, 1), loss(4, 0));
}

TEST_F(CTest, ErrorsOfDataAndModelsAreThoseOfTheCall) {
  const shale_job job = Parse(absl::StrCat(kSmallJob, kMlp));
  shale_data data = MadeUp();
  data.read = [](void*, int64_t, const shale_sample*, shale_error* error) -> shale_code {
    snprintf(error->message, sizeof(error->message), "the queue is closed");
    return SHALE_DATA_LOSS;
  };
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.data = &data;
  const shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;
  EXPECT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_DATA_LOSS);
  EXPECT_THAT(error_.message, HasSubstr("the queue is closed"));
  shale_trainer_free(trainer, nullptr);
  shale_job_free(job, nullptr);

  const shale_job open = Parse(kSmallJob + OnText(), SHALE_MODEL_FROM_PROGRAM);
  shale_model model = Mlp();
  model.build = [](void*, shale_builder b, const shale_graph_options*, shale_error*) -> shale_code {
    shale_builder_begin_unit(b, "only", SHALE_NONE);
    shale_layer_linear(b, 17, 3, SHALE_NONE, "up");
    return SHALE_OK;
  };
  shale_plan plan = 0;
  EXPECT_EQ(shale_plan_create(open, &model, &plan, &error_), SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("this builder has no tensor 17"));
  shale_job_free(open, nullptr);
}

}  // namespace
}  // namespace shale

// What tests of the C interface share: a folder, a small job, a model and data.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/c/shale.h"
#include "engine/c/shale_model.h"

namespace shale {

// The job of the tests, without its model.
inline constexpr char kSmallJob[] = R"(
batch { global_batch: 4 micro_batch: 2 sequence_length: 8 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 }
runtime { threads_per_rank: 1 cpu_matmuls: ONEDNN }
)";
inline constexpr char kMlp[] = "model { mlp { embedding: 4 hidden: 8 layers: 1 } }\n";

// Builds the model that kMlp describes.
inline shale_code BuildMlp(void*, shale_builder b, const shale_graph_options* options, shale_error*) {
  const int64_t table_shape[] = {options->vocabulary, 4};
  const int32_t table = shale_builder_add_parameter(b, shale_builder_add_group(b, "embedding"), "embedding.weight",
                                                    table_shape, 2, SHALE_NORMAL, 0.02);
  shale_builder_begin_unit(b, "embedding", SHALE_NONE);
  shale_builder_end_unit(b, shale_layer_embedding(b, table, SHALE_NONE));

  const int64_t width = options->sequence_length * 4;
  const int32_t hidden = shale_builder_add_group(b, "hidden.0");
  const int64_t up_shape[] = {8, width}, up_bias_shape[] = {8}, rows[] = {options->micro_batch, width};
  const int32_t up = shale_builder_add_parameter(b, hidden, "hidden.0.weight", up_shape, 2, SHALE_NORMAL, 0.02);
  const int32_t up_bias = shale_builder_add_parameter(b, hidden, "hidden.0.bias", up_bias_shape, 1, SHALE_ZEROS, 0);
  shale_builder_begin_unit(b, "hidden.0", 0);
  const int32_t x = shale_layer_reshape(b, shale_builder_unit_input(b), rows, 2);
  shale_builder_end_unit(b, shale_layer_gelu(b, shale_layer_linear(b, x, up, up_bias, "up"), 1));

  const int32_t head = shale_builder_add_group(b, "head");
  const int64_t head_shape[] = {options->vocabulary, 8}, head_bias_shape[] = {options->vocabulary};
  const int32_t weight = shale_builder_add_parameter(b, head, "head.weight", head_shape, 2, SHALE_NORMAL, 0.02);
  const int32_t bias = shale_builder_add_parameter(b, head, "head.bias", head_bias_shape, 1, SHALE_ZEROS, 0);
  shale_builder_begin_unit(b, "head", SHALE_NONE);
  shale_layer_linear_cross_entropy(b, shale_builder_unit_input(b), weight, bias);
  shale_builder_end_last_unit(b);
  return SHALE_OK;
}

inline shale_model Mlp() {
  shale_model model = SHALE_INIT(shale_model);
  model.name = "mlp_in_c";
  model.digest = "embedding=4 hidden=8";
  model.layers = 1;
  model.last_target_only = 1;
  model.build = BuildMlp;
  return model;
}

// Tokens below 29 in samples that depend on their number alone. `user` may be null, or an int64_t that counts the
// samples that were read, which is then the number of a sample.
inline constexpr int64_t kMadeUpTokens = 29;
inline shale_code ReadMadeUp(void* user, int64_t sample, const shale_sample* out, shale_error*) {
  const int64_t number = user == nullptr ? sample : (*static_cast<int64_t*>(user))++;
  for (int64_t i = 0; i < out->sequence_length; ++i) {
    out->inputs[i] = static_cast<int32_t>((number * 7919 + i * i * 31 + 5) % kMadeUpTokens);
    out->targets[i] = static_cast<int32_t>((number * 31 + i * 17 + 1) % kMadeUpTokens);
  }
  return SHALE_OK;
}

inline shale_data MadeUp() {
  shale_data data = SHALE_INIT(shale_data);
  data.name = "made up";
  data.samples = 31;
  data.sequence_length = 8;
  data.vocabulary = kMadeUpTokens;
  data.read = ReadMadeUp;
  return data;
}

class CTest : public ::testing::Test {
 protected:
  CTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream text(Path("text"));
    for (int i = 0; i < 60; ++i) text << "the " << i % 7 << " quick brown foxes jump over the lazy dog.\n";
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string OnText() const { return absl::StrCat("data { path: \"", Path("text"), "\" }\n"); }

  // Returns a job, or 0 with the message in error_.
  shale_job Parse(const std::string& text, uint32_t flags = 0) {
    shale_job job = 0;
    shale_job_parse(text.c_str(), "job.textproto", nullptr, 0, flags, &job, &error_);
    return job;
  }
  // Returns a trainer of the job, or 0 with the message in error_.
  shale_trainer Create(shale_job job, const shale_trainer_options& options) {
    shale_trainer trainer = 0;
    shale_trainer_create(job, &options, &trainer, &error_);
    return trainer;
  }
  // Runs steps until one fails, and returns their losses.
  std::vector<double> Losses(shale_trainer trainer) {
    std::vector<double> losses;
    shale_step_report report = SHALE_INIT(shale_step_report);
    while (shale_trainer_step(trainer, &report, &error_) == SHALE_OK) losses.push_back(report.loss);
    return losses;
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  shale_error error_ = SHALE_INIT(shale_error);
};

}  // namespace shale

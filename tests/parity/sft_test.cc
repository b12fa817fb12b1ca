// Compares supervised fine-tuning with transformers on the folders of tests/parity/golden/sft (tests/parity/README.md
// describes them): a folder and a file of conversations have the losses of transformers, which trains on each
// conversation by itself, whether they are packed or padded, and however a step is divided.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/data/sample_sources.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/run/train/job_data.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

class SftParity : public ::testing::TestWithParam<const char*> {
 protected:
  // Bazel's runfiles are links that lead out of their folder, which the engine refuses.
  void SetUp() override {
    std::filesystem::create_directory(folder_.Path("model"));
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("tests/parity/golden/sft/", GetParam()))) {
      std::filesystem::copy_file(entry.path(), folder_.Path("model/" + entry.path().filename().string()));
    }
    const absl::StatusOr<std::string> text = ReadFile(folder_.Path("model/golden.json"), 1 << 20);
    ASSERT_TRUE(text.ok()) << text.status();
    golden_ = *ParseStrictJson(*text);
  }

  Job MakeJob(const std::string& packing, const std::vector<std::string>& overrides) {
    absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat(R"(model { hf_folder: "model" } data { path: "model/chats.jsonl" order: SEQUENTIAL packing: )",
                     packing, R"( } batch { global_batch: 4 sequence_length: )", golden_["sequence_length"].get<int>(),
                     R"( } optimizer { beta1: 0.9 beta2: 0.95 epsilon: 1e-3 weight_decay: 0.1 max_gradient_norm: 1
                         learning_rate: )",
                     golden_["learning_rate"].get<double>(), R"( } lr_schedule { shape: CONSTANT steps: )",
                     golden_["steps"].get<int>(),
                     R"( }
                     runtime { threads_per_rank: 1 } telemetry { run_folder: "run" })"),
        folder_.Path("job.textproto"), overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return *std::move(job);
  }

  // Returns the number of sequences that hold all conversations.
  int64_t Sequences(const Job& job) {
    const absl::StatusOr<TokenSource> tokens = OpenJobTokens(job, "data.path", job.data.path, {});
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return (*DocumentSamples::Create(*tokens, job.data.packing, {}, job.batch.sequence_length))->description().samples;
  }

  // Trains, and compares the losses with `wanted`.
  void Check(const Job& job, const char* wanted) {
    const std::unique_ptr<Backend> backend = *CreateBackend(job);
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
        job, {.backend = backend.get(), .text_progress = {.ready = [&](const TextReport& text) {
                                          EXPECT_EQ(text.totals.counted, golden_["counted"].get<int64_t>());
                                        }}});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const auto losses = golden_[wanted].get<std::vector<double>>();
    size_t step = 0;
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      EXPECT_NEAR(report.loss, losses.at(step), 1e-5) << wanted << ", step " << step;
      EXPECT_EQ(report.peak_bytes_measured, report.peak_bytes_planned);
      ++step;
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(step, losses.size());
  }

  TempFolder folder_;
  Json golden_;
};

TEST_P(SftParity, PaddedConversationsTrainAsInTransformers) {
  Check(MakeJob("PAD", {"batch.micro_batch=4"}), "batches");
  Check(MakeJob("PAD", {"batch.micro_batch=1", "sharding.ranks=2"}), "batches");
}

// Each step takes all conversations, so the losses do not depend on how they are packed.
TEST_P(SftParity, PackedConversationsTrainAsEachAloneInTransformers) {
  Job job = MakeJob("PACK", {"batch.micro_batch=2", "sharding.ranks=2"});
  job.batch.global_batch = Sequences(job);
  EXPECT_LT(job.batch.global_batch, 15) << "20 conversations share sequences";
  Check(job, "all");
}

INSTANTIATE_TEST_SUITE_P(Goldens, SftParity, ::testing::Values("llama", "mistral", "qwen2", "qwen3", "gpt2", "falcon"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shale

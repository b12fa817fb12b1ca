// Tests the job files that come with the engine.
#include <filesystem>
#include <map>
#include <string>

#include "engine/api/job.h"
#include "engine/compile/model/config.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

const std::filesystem::path kFolder = "tools/jobs";

Job Load(const std::string& name) {
  const absl::StatusOr<Job> job = LoadJob((kFolder / (name + ".textproto")).string());
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

TEST(Jobs, EveryFileLoadsUnderItsOwnNameAndPrintsBack) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".textproto") continue;
    ++files;
    const Job job = Load(entry.path().stem());
    EXPECT_EQ(job.name, entry.path().stem());
    const absl::StatusOr<Job> again = ParseJobText(ResolvedJobText(job), "again");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, job);
  }
  EXPECT_GE(files, 15);
}

TEST(Jobs, ChunksOfTheLossAreLongerTheSmallerTheVocabulary) {
  Job job = Load("gpt2_124m");
  job.memory.loss_chunk_tokens = 0;
  const auto chunk = [&](int64_t vocabulary) {
    std::get<DecoderConfig>(job.model).vocabulary = vocabulary;
    return LossChunkTokens(job);
  };
  EXPECT_EQ(chunk(8192), 1024);
  EXPECT_EQ(chunk(10007), 832);
  EXPECT_EQ(chunk(16384), 512);
  EXPECT_EQ(chunk(151936), 512);  // The minimum.
  EXPECT_EQ(chunk(256), 32768);
  EXPECT_GT(chunk(0), 0);  // The vocabulary is not known yet.
  job.memory.loss_chunk_tokens = 77;
  EXPECT_EQ(chunk(8192), 77);
}

TEST(Jobs, PaperModelsHaveThePublishedNumberOfParameters) {
  // Counted as in the published weights; a tied head counts once.
  const std::map<std::string, uint64_t> published = {
      {"gpt2_124m", 124439808},    {"llama2_7b", 6738415616},     {"llama2_70b", 68976648192},
      {"llama3_8b", 8030261248},   {"llama3_405b", 405853388800}, {"falcon_7b", 6921720704},
      {"qwen2_5_0_5b", 494032768}, {"qwen2_5_1_5b", 1543714304},  {"qwen2_5_3b", 3085938688},
      {"qwen2_5_7b", 7615616512},  {"qwen2_5_14b", 14770033664},  {"falcon_40b", 41303293952},
      {"gemma3_1b", 999885952},    {"gemma2_2b", 2614341888},
  };
  for (const auto& [name, parameters] : published) {
    const Job job = Load(name);
    EXPECT_EQ(static_cast<uint64_t>(ParameterCount(job.model, job.batch.sequence_length)), parameters) << name;
  }
}

TEST(Jobs, The405BJobIsTheOneOnPaper) {
  const Job job = Load("llama3_405b");
  EXPECT_EQ(job.sharding.ranks, 16384);
  EXPECT_EQ(job.sharding.strategy, Strategy::kFullShard);
  EXPECT_EQ(AccumulationSteps(job.batch, job.sharding.ranks), 1);
  const auto& model = std::get<DecoderConfig>(job.model);
  EXPECT_EQ(model.head_width, 128);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_TRUE(model.rope_scaling.has_value());
}

TEST(Jobs, QuickstartTakesItsTextFromAnOverride) {
  const absl::StatusOr<Job> job = LoadJob("tools/jobs/quickstart.textproto", {"data.path=/usr/share/games/fortunes"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data.path, "/usr/share/games/fortunes");
  EXPECT_EQ(job->sharding.ranks, 2);
  EXPECT_EQ(AccumulationSteps(job->batch, job->sharding.ranks), 2);
}

}  // namespace
}  // namespace shale

// Tests rules between fields together: a job is told all that it breaks at once, and each mistake once.
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

TEST(Sizes, AProductAbove62BitsIsRefusedByName) {
  const std::vector<std::string> big = {"model.decoder.width=16777216", "model.decoder.head_width=65536",
                                        "model.decoder.heads=1048576"};
  EXPECT_EQ(SetError(big),
            "--set: model.decoder.width: the model has 1.8e+19 parameters, whose state is above 2^62 bytes; make "
            "its sizes smaller");
  EXPECT_EQ(SetError({"lr_schedule.steps=1000000000000", "batch.global_batch=1000000000000"}),
            "--set: batch.global_batch: the tokens of the run are batch.global_batch (1000000000000) x "
            "batch.sequence_length (32) x lr_schedule.steps (1000000000000) = 3.2e+25, above 2^62; make them "
            "smaller");
  EXPECT_EQ(SetError({"batch.micro_batch=1048576", "batch.sequence_length=16777216", "model.decoder.hidden=1000000"}),
            "--set: batch.micro_batch: the activations of the feed-forward layers are batch.micro_batch (1048576) x "
            "batch.sequence_length (16777216) x model.decoder.hidden (1000000) x model.decoder.layers (4) = "
            "7e+19, above 2^62; make them smaller");
}

TEST(Sizes, EveryUpperEndTogetherIsRefusedNotOverflowed) {
  const std::string message =
      SetError({"model.decoder.vocabulary=2147483647", "model.decoder.width=16777216", "model.decoder.layers=65536",
                "model.decoder.heads=1048576", "model.decoder.head_width=16777216", "model.decoder.hidden=67108864",
                "batch.micro_batch=1048576", "batch.global_batch=1099511627776", "batch.sequence_length=16777216",
                "memory.loss_chunk_tokens=16777216", "lr_schedule.steps=1099511627776", "sharding.ranks=1048576"});
  EXPECT_NE(message.find("above 2^62"), std::string::npos);
  EXPECT_NE(message.find("parameters, whose state is above 2^62 bytes"), std::string::npos);
}

TEST(Rules, AFaultyFieldIsReportedOnce) {
  // There is no second error about width and heads = 0.
  EXPECT_EQ(SetError({"model.decoder.heads=0"}), "--set: model.decoder.heads: found 0; allowed: 1 to 1048576");
}

// Returns the lines of what is wrong with these overrides.
std::set<std::string> Lines(const std::vector<std::string>& overrides) {
  const std::string error = SetError(overrides);
  if (error.empty()) return {};
  return absl::StrSplit(error, '\n');
}

// Regression: a rule that was reported hid the others of its fields, so that a job with three of them was mended in
// three calls.
TEST(Rules, AllThatAreBrokenAreToldAtOnce) {
  const std::vector<std::string> broken[] = {
      {"sharding.strategy=ZERO2", "sharding.accumulation=NO_SYNC"},
      {"precision.compute=FP16", "runtime.cpu_matmuls=ONEDNN"},
      {"precision.master=SPLIT"},
      {"precision.gradient_shards=BF16", "sharding.shard_ranks=1", "sharding.ranks=2"},
      {"optimizer.state=LEAN"},
      {"optimizer.update=IN_BACKWARD"},
      {"optimizer.scaling=LINEAR"},
      {"optimizer.momentum=0.5"},
      {"optimizer.frozen_weights=NF4"},
      {"lr_schedule.warmup_steps=11"},
      {"lr_schedule.epochs=1"},
      {"telemetry.evaluate_every=5"},
      {"activation_checkpointing.every_nth=2"},
      {"data.bad_bytes=REPLACE"},
      {"data.long_documents=DROP"},
      {"model.decoder.kv_heads=8"},
      {"model.decoder.parallel_norms=true"},
      {"model.decoder.max_positions=31"},
      {"runtime.graphs=true"},
  };
  std::vector<std::set<std::string>> alone;
  for (const std::vector<std::string>& one : broken) alone.push_back(Lines(one));
  const auto expect_told = [&](const std::vector<int>& which) {
    std::vector<std::string> all;
    for (const int i : which) all.insert(all.end(), broken[i].begin(), broken[i].end());
    const std::set<std::string> told = Lines(all);
    for (const int i : which) {
      for (const std::string& line : alone[i]) {
        EXPECT_EQ(told.count(line), 1) << absl::StrJoin(all, " ") << " hide: " << line;
      }
    }
  };
  const int count = static_cast<int>(std::size(broken));
  for (int i = 0; i < count; ++i) {
    EXPECT_FALSE(alone[i].empty()) << broken[i].front();
    for (int k = 0; k < i; ++k) {
      expect_told({i, k});
      expect_told({i, k, (i + k) % count});
    }
  }
  EXPECT_THAT(Lines({"runtime.device=CUDA", "memory.offload_state=[MASTERS, PARAMETERS]", "sharding.strategy=ZERO1"}),
              ::testing::SizeIs(2));
  EXPECT_THAT(Lines({"data.path=", "data.document_end_token=10"}), ::testing::SizeIs(2));
}

// Regression: it said "--set: optimizer.rule: rule LION does not read it".
TEST(Rules, AnOverrideThatTakesTheEffectOfAFieldNamesIt) {
  EXPECT_EQ(ParseError(std::string(kDecoderJob) + "optimizer { epsilon: 1e-6 }", {"optimizer.rule=LION"}),
            absl::StrCat("--set: optimizer.rule: optimizer.epsilon: rule LION does not read it; choose ",
                         RulesThatRead("epsilon"), ", or leave it out"));
  // These rules are no condition of one field.
  EXPECT_EQ(ParseError(std::string(kDecoderJob) + "optimizer { moments: FP32 }", {"optimizer.rule=ADAMW_8BIT"}),
            absl::StrCat("--set: optimizer.rule: optimizer.moments: rule ADAMW_8BIT does not read it; choose ",
                         RulesThatRead("moments"), ", or leave it out"));
  EXPECT_EQ(ParseError(std::string(kDecoderJob) + "optimizer { groups { parameters: \"*\" epsilon: 1e-6 } }",
                       {"optimizer.rule=LION"}),
            "--set: optimizer.rule: optimizer.groups[0].epsilon: rule LION does not read it; leave it out, or give the "
            "group another rule");
}

// Regression: the suggestion for "GPU" was CPU, the value with the most similar letters.
TEST(Rules, AGpuIsCuda) {
  for (const char* word : {"GPU", "gpu", "Nvidia"}) {
    EXPECT_EQ(SetError({absl::StrCat("runtime.device=", word)}),
              absl::StrCat("--set: runtime.device: found \"", word, "\"; allowed: CPU, CUDA; did you mean CUDA?"));
  }
}

// Regression: a job without data was told so only after everything else was mended. A program may bring the data.
TEST(Rules, OnlyAProgramLeavesDataOut) {
  const auto error = [](ModelFrom from) {
    return std::string(ParseJobText("lr_schedule { steps: 1 }", "job", {}, from).status().message());
  };
  EXPECT_THAT(error(ModelFrom::kJobAndData),
              ::testing::AllOf(::testing::HasSubstr("job: data.path: missing; give a text file, a token file"),
                               ::testing::HasSubstr("job: batch.global_batch: missing")));
  EXPECT_THAT(error(ModelFrom::kJob), ::testing::Not(::testing::HasSubstr("data.path")));
}

TEST(Rules, AdaptersFitTheModel) {
  EXPECT_EQ(SetError({"model.adapter={rank: 4 targets: \"q_proj\" targets: \"c_attn\"}"}),
            "--set: model.adapter.targets[1]: \"c_attn\" matches no linear layer of the model; found "
            "blocks.0.attention.q_proj, blocks.0.attention.k_proj, blocks.0.attention.v_proj, "
            "blocks.0.attention.o_proj, blocks.0.ffn.gate_proj, blocks.0.ffn.up_proj, blocks.0.ffn.down_proj, and "
            "those of the other blocks; what follows a dot is enough, and * matches any run of characters");
  EXPECT_EQ(
      SetError({"model.decoder.family=GPT2", "model.adapter={rank: 4 targets: \"c_attn\" targets: \"ffn.c_proj\"}"}),
      "");
  EXPECT_EQ(SetError({"model.decoder.family=FALCON", "model.adapter={rank: 4 targets: \"blocks.3.*\"}"}), "");
  // Regression: a rank above the smaller side of a layer, here 16, was refused. PEFT trains such adapters.
  EXPECT_EQ(SetError({"model.decoder.kv_heads=1", "model.adapter.rank=17"}), "");
  EXPECT_EQ(SetError({"model.adapter.alpha=3"}),
            "job.textproto:1:1: model.adapter.rank: missing, and there is no default; allowed: 1 to 65536");
  EXPECT_EQ(
      SetError({"model.adapter.rank=4", "optimizer.train_only=head.*"}),
      "--set: optimizer.train_only[0]: a model with adapters trains these and freezes all other parameters; leave "
      "train_only or adapter out");
  EXPECT_EQ(ParseError(kMlpJob, {"model.adapter.rank=4"}),
            "job.textproto:1:9: model.mlp: adapters are for the linear layers of a decoder; leave mlp or adapter out");
}

}  // namespace
}  // namespace shale

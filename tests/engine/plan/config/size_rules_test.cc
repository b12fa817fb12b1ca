// Tests that sizes are refused that do not fit each other, or whose products do not fit the numbers of the engine.
#include "engine/api/job.h"
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

TEST(Sizes, AdaptersFitTheModel) {
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

// Tests that specs in the words of other trainers are answered with ours.
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/config/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

TEST(OtherWords, FieldsOfOtherTrainersAreAnsweredWithOurs) {
  const auto expect = [](const std::string& set, const std::string& answer) {
    EXPECT_THAT(SetError({set}), HasSubstr(answer)) << set;
  };
  expect("batch.gradient_accumulation_steps=4", "did you mean batch.global_batch; the steps follow from it");
  expect("batch.per_device_train_batch_size=4", "did you mean batch.micro_batch?");
  expect("gradient_checkpointing=true", "did you mean activation_checkpointing.preset=BLOCK?");
  expect("activation_checkpointing.recompute_num_layers=4", "did you mean activation_checkpointing.segment_blocks?");
  expect("number_checkpoints=4", "did you mean activation_checkpointing.segment_blocks, the blocks for each of them?");
  expect("zero_stage=3", "did you mean sharding.strategy (ZERO1, ZERO2, or FULL_SHARD for stage 3)?");
  expect("sharding.no_sync=true", "did you mean sharding.accumulation=NO_SYNC?");
  expect("sharding.hybrid_shard=true", "did you mean sharding.shard_ranks?");
  expect("sharding.data_parallel_replicate_degree=2",
         "did you mean sharding.shard_ranks, which is sharding.ranks / the degree?");
  expect("zero_hpz_partition_size=8", "did you mean sharding.shard_ranks?");
  expect("sharding.strategy=HYBRID_SHARD", "did you mean FULL_SHARD with sharding.shard_ranks?");
  expect("sharding.strategy=_HYBRID_SHARD_ZERO2", "did you mean ZERO2 with sharding.shard_ranks?");
  expect("reshard_after_forward=true", "did you mean sharding.reshard_after_forward?");
  expect("bf16=true", "did you mean precision.compute=BF16?");
  expect("bf16_stochastic_rounding=true", "did you mean precision.master=NONE, or optimizer.state=LEAN?");
  expect("use_bf16_optimizer_states=true", "did you mean optimizer.moments=BF16?");
  expect("fp32_master_weights=false", "did you mean precision.master?");
  expect("max_grad_norm=1", "did you mean optimizer.max_gradient_norm?");
  expect("lr_schedule.warmup_ratio=0.1", "did you mean lr_schedule.warmup_steps; a ratio times lr_schedule.steps?");
  expect("offload_optimizer=1", "did you mean optimizer.device=HOST, or memory.offload_state=[MOMENTS, MASTERS]?");
  expect("sharding.cpu_offload=true", "did you mean memory.offload_state=[MOMENTS, MASTERS, PARAMETERS]?");
  expect("memory.offload_param=true", "did you mean memory.offload_state=PARAMETERS?");
  expect("model.adapter.lora_alpha=1", "did you mean model.adapter.alpha?");
  expect("model.adapter.lora_dropout=0.1", "did you mean model.adapter, which has no dropout?");
  expect("optimizer.lr=1", "did you mean optimizer.learning_rate?");
}

TEST(OtherWords, ValuesAreKnownInAnySpelling) {
  // Regression: "zero3" and "ZERO_3" were answered with the nearest name, ZERO1, and "fsdp" and "full" with none.
  const auto expect = [](const std::string& set, const std::string& answer) {
    EXPECT_THAT(SetError({set}), HasSubstr("did you mean " + answer + "?")) << set;
  };
  for (const char* name : {"zero3", "ZERO_3", "Zero3", "stage3", "STAGE_3", "zero_stage_3", "fsdp", "full", "Full"}) {
    expect(absl::StrCat("sharding.strategy=", name), "FULL_SHARD");
  }
  for (const char* name : {"none", "no_shard", "ddp", "stage_0"})
    expect(absl::StrCat("sharding.strategy=", name), "DDP");
  for (const char* name : {"zero_1", "ZERO_1", "stage1"}) {
    expect(absl::StrCat("sharding.strategy=", name), "ZERO1");
  }
  for (const char* name : {"zero_2", "ZERO_2", "stage2", "shard_grad_op"}) {
    expect(absl::StrCat("sharding.strategy=", name), "ZERO2");
  }
  expect("activation_checkpointing.preset=none", "NONE");
  expect("FSDP=1", "sharding.strategy=FULL_SHARD");
  EXPECT_EQ(OurValue("zero-3"), "FULL_SHARD");
  EXPECT_EQ(OurValue("nothing"), "");
}

}  // namespace
}  // namespace shale

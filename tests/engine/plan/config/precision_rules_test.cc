// Tests that number formats are refused that contradict each other or other fields.
#include "gtest/gtest.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Precision, Rules,
    ::testing::Values(
        Rule{{"precision.master=SPLIT"},
             "--set: precision.master: SPLIT keeps the low bits of bf16 weights; use compute BF16, or master "
             "MASTER_FP32"},
        Rule{{"precision.master=SPLIT", "precision.compute=BF16"}, ""},
        Rule{{"precision.master=NONE"},
             "--set: precision.master: NONE rounds bf16 weights stochastically; use compute BF16, or master "
             "MASTER_FP32"},
        Rule{{"precision.master=NONE", "precision.compute=BF16"}, ""},
        Rule{{"optimizer.state=LEAN"},
             "--set: optimizer.state: LEAN keeps bf16 weights without masters; use compute BF16, or state FULL"},
        Rule{{"optimizer.state=LEAN", "precision.compute=BF16"}, ""},
        Rule{{"optimizer.state=LEAN", "optimizer.rule=ADAMW_8BIT", "precision.compute=BF16"}, ""},
        Rule{{"precision={compute: FP16 init_scale: 1024}", "precision.gradient_shards=BF16"}, ""},
        Rule{{"precision={compute: FP16 master: SPLIT}"},
             "--set: precision.master: SPLIT keeps the low bits of bf16 weights; use compute BF16, or master "
             "MASTER_FP32"},
        Rule{{"precision={compute: FP16 fp32_logits: true}"}, ""},
        Rule{{"precision={compute: BF16 matmuls: FP8 fp8_gradients: E4M3}"}, ""},
        Rule{{"precision={compute: FP16 matmuls: FP8}"}, ""},
        Rule{{"precision={matmuls: AS_COMPUTED fp8_gradients: E5M2}"}, ""},
        Rule{{"precision.matmuls=FP8"},
             "--set: precision.matmuls: only compute BF16 or FP16 reads it; choose one, or leave it out"},
        Rule{{"precision={compute: BF16 fp8_gradients: E4M3}"},
             "--set: precision.fp8_gradients: only matmuls FP8 reads it; choose that, or leave it out"},
        Rule{{"precision={compute: BF16 matmuls: FP8 fp8_scaling: BLOCKWISE}"}, ""},
        Rule{{"precision={matmuls: AS_COMPUTED fp8_scaling: TENSORWISE}"}, ""},
        Rule{{"precision={compute: BF16 fp8_scaling: BLOCKWISE}"},
             "--set: precision.fp8_scaling: only matmuls FP8 reads it; choose that, or leave it out"},
        Rule{{"precision.fp32_logits=true"},
             "--set: precision.fp32_logits: only compute BF16 or FP16 reads it; choose one, or leave it out"},
        Rule{{"precision.compute=FP16", "optimizer={clipping: PER_UNIT non_finite: SKIP}"},
             "--set: precision.compute: FP16 skips the whole step if any gradient overflows, and this clipping decides "
             "for each unit alone; use clipping GLOBAL, or compute BF16"},
        Rule{{"precision.compute=FP16", "memory.keep_gradients=true"}, ""},
        Rule{{"precision.compute=FP16", "runtime.cpu_matmuls=PACKED"}, ""},
        Rule{{"precision.compute=FP16", "runtime.cpu_matmuls=ONEDNN"},
             "--set: precision.compute: ONEDNN computes no matmuls in fp16; use PACKED or AUTO, or compute BF16 or "
             "FP32"},
        Rule{{"precision.compute=FP16", "optimizer.train_only=*"},
             "--set: precision.compute: checkpoints do not hold frozen weights in fp16; use compute BF16 or FP32"},
        Rule{{"precision.gradient_shards=BF16"}, ""},
        Rule{{"precision.gradient_shards=BF16", "sharding={ranks: 4 shard_ranks: 2 strategy: ZERO2}"}, ""},
        Rule{{"precision.gradient_shards=BF16", "sharding={ranks: 2 strategy: ZERO1}"},
             "--set: precision.gradient_shards: BF16 stores the sums of gradients over micro-batches in shards, and "
             "strategy ZERO1 sums the full gradients in fp32; use strategy ZERO2 or FULL_SHARD, or gradient_shards "
             "FP32"},
        Rule{{"precision.gradient_shards=BF16", "sharding.accumulation=NO_SYNC"},
             "--set: precision.gradient_shards: BF16 stores the sums of gradients over micro-batches in shards, and "
             "accumulation NO_SYNC sums the full gradients in fp32; use SHARDED or LAYERED, or gradient_shards FP32"},
        Rule{{"precision.gradient_shards=BF16", "sharding={ranks: 3 shard_ranks: 1}"},
             "--set: precision.gradient_shards: BF16 stores the sums of gradients over micro-batches in shards, and "
             "with shard_ranks 1 each rank sums the full gradients in fp32; use more shard_ranks, or gradient_shards "
             "FP32"},
        Rule{{"precision.reduce=BF16"}, ""},
        Rule{{"precision.reduce=BF16", "sharding={ranks: 4 shard_ranks: 2 strategy: ZERO1}"}, ""},
        Rule{{"precision.reduce=BF16", "sharding={ranks: 2 strategy: DDP}"},
             "--set: precision.reduce: BF16 sends gradients to the rank that updates them, and with strategy DDP each "
             "rank updates all; use ZERO1, ZERO2 or FULL_SHARD, or reduce FP32"},
        Rule{{"precision.reduce=BF16", "sharding={ranks: 3 shard_ranks: 1}"},
             "--set: precision.reduce: BF16 sends gradients to the rank that updates them, and with shard_ranks 1 each "
             "rank updates all; use more shard_ranks, or reduce FP32"}));

}  // namespace
}  // namespace shale

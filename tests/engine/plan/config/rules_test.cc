// Tests that fields are refused that are each in range but contradict each other.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

TEST_P(Rules, RefuseContradictionsByName) { EXPECT_EQ(SetError(GetParam().overrides), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Model, Rules,
    ::testing::Values(
        Rule{{"model.decoder.width=1000", "model.decoder.heads=12"},
             "--set: model.decoder.width: width 1000 is not a multiple of heads 12; try width 984 or 1008, or give "
             "head_width"},
        Rule{{"model.decoder.heads=64"},
             "--set: model.decoder.heads: width 64 divided by heads 64 is the odd head_width 1; try width "
             "128, or give head_width"},
        Rule{{"model.decoder.heads=71", "model.decoder.head_width=64"}, ""},
        Rule{{"model.decoder.head_width=63"}, "--set: model.decoder.head_width: found 63, which is odd; try 62 or 64"},
        Rule{{"model.decoder.heads=12", "model.decoder.head_width=8", "model.decoder.kv_heads=5"},
             "--set: model.decoder.kv_heads: heads 12 is not a multiple of kv_heads 5; try kv_heads 4 or 6"},
        Rule{{"model.decoder.kv_heads=8"},
             "--set: model.decoder.kv_heads: heads 4 is not a multiple of kv_heads 8; try kv_heads 4"},
        Rule{{"model.decoder.parallel_norms=true"},
             "--set: model.decoder.parallel_norms: needs parallel_block, because other blocks already have two norms; "
             "set parallel_block too, or leave it out"},
        Rule{{"model.decoder.parallel_norms=true", "model.decoder.family=FALCON"}, ""},
        Rule{{"model.decoder.family=GPT2", "model.decoder.rope_theta=500"},
             "--set: model.decoder.rope_theta: positions are learned, and only ROTARY reads it; leave it out, or give "
             "position ROTARY"},
        Rule{{"model.decoder.family=GPT2", "model.decoder.position=ROTARY", "model.decoder.rope_theta=500"}, ""},
        Rule{{"model.decoder.layer_pattern=WF"},
             "--set: model.decoder.layer_pattern: W is a layer with a window, and attention_window is 0; give "
             "attention_window"},
        Rule{
            {"model.decoder.layer_pattern=WX", "model.decoder.attention_window=4"},
            "--set: model.decoder.layer_pattern: found \"WX\"; allowed: the letters W (window) and F (full attention), "
            "at most 65536"},
        Rule{{"model.decoder.layer_pattern=WF", "model.decoder.attention_window=4"}, ""},
        Rule{{"model.decoder.family=GEMMA3"}, ""},
        Rule{{"model.decoder.rope_scaling={low_freq_factor: 4}"},
             "--set: model.decoder.rope_scaling.low_freq_factor: low_freq_factor must be below high_freq_factor; "
             "Llama 3 has 1 and 4"},
        Rule{{"model.decoder.max_positions=31"},
             "--set: model.decoder.max_positions: max_positions is 31, below sequence_length 32; raise it, or shorten "
             "the "
             "sequences"}));

INSTANTIATE_TEST_SUITE_P(
    Sharding, Rules,
    ::testing::Values(
        Rule{{"sharding.strategy=DDP", "sharding.accumulation=SHARDED"},
             "--set: sharding.accumulation: SHARDED does not go with strategy DDP: nothing is sharded to reduce into; "
             "use "
             "strategy ZERO2, or accumulation NO_SYNC or LAYERED"},
        Rule{{"sharding.strategy=ZERO1", "sharding.accumulation=SHARDED"},
             "--set: sharding.accumulation: SHARDED does not go with strategy ZERO1: sharded gradients are strategy "
             "ZERO2; use that, or accumulation NO_SYNC or LAYERED"},
        Rule{{"sharding.strategy=ZERO2", "sharding.accumulation=NO_SYNC"},
             "--set: sharding.accumulation: NO_SYNC does not go with strategy ZERO2: unsharded gradients are strategy "
             "ZERO1; use that, or accumulation SHARDED or LAYERED"},
        Rule{{"sharding.strategy=DDP", "sharding.accumulation=NO_SYNC"}, ""},
        Rule{{"sharding.strategy=DDP", "sharding.accumulation=LAYERED"}, ""},
        Rule{{"sharding.strategy=FULL_SHARD", "sharding.accumulation=NO_SYNC"}, ""},
        Rule{{"sharding.ranks=8", "sharding.shard_ranks=3"},
             "--set: sharding.shard_ranks: groups of 3 cannot divide 8 ranks; use a divisor of ranks, such as 2"},
        Rule{{"sharding.ranks=6", "sharding.shard_ranks=7"},
             "--set: sharding.shard_ranks: groups of 7 cannot divide 6 ranks; use a divisor of ranks, such as 6"},
        Rule{{"sharding.ranks=6", "sharding.shard_ranks=0"},
             "--set: sharding.shard_ranks: found 0; allowed: 1 to 1048576"},
        Rule{
            {"sharding.ranks=4", "sharding.shard_ranks=2", "sharding.strategy=DDP"},
            "--set: sharding.shard_ranks: strategy DDP shards nothing; leave shard_ranks out, or use another strategy"},
        Rule{{"sharding.ranks=6", "sharding.shard_ranks=6"}, ""},
        Rule{{"sharding.ranks=6", "sharding.shard_ranks=1", "sharding.strategy=ZERO1"}, ""},
        Rule{{"sharding.ranks=6", "sharding.shard_ranks=2", "sharding.strategy=ZERO2"}, ""},
        Rule{{"sharding.strategy=ZERO2", "sharding.prefetch=2"},
             "--set: sharding.prefetch: only strategy FULL_SHARD gathers parameters for use, and this is ZERO2; leave "
             "it "
             "out"},
        Rule{{"sharding.strategy=DDP", "sharding.reshard_after_forward=false"},
             "--set: sharding.reshard_after_forward: only strategy FULL_SHARD gathers parameters for use, and this is "
             "DDP; "
             "leave it out"},
        Rule{{"optimizer.moments=BF16"}, ""},
        Rule{{"optimizer.moments=BF16", "optimizer.rule=ADAMW_8BIT"},
             absl::StrCat("--set: optimizer.moments: rule ADAMW_8BIT does not read it; choose ",
                          RulesThatRead("moments"), ", or leave it out")},
        Rule{{"optimizer={rule: ADAMW_8BIT moments: BF16 groups {parameters: \"*.bias\" weight_decay: 0}}"},
             absl::StrCat(
                 "--set: optimizer.moments: rule ADAMW_8BIT does not read it, nor does that of a group; choose ",
                 RulesThatRead("moments"), ", or leave it out")},
        Rule{{"optimizer={rule: ADAMW_8BIT moments: BF16 groups {parameters: \"*.bias\" rule: LION}}"}, ""},
        Rule{
            {"optimizer={rule: ADAFACTOR groups {parameters: \"*.bias\" rule: ADAMW}}"},
            "--set: optimizer.groups[0]: the learning rate of ADAFACTOR is a factor on its own steps, usually 1, which "
            "is no rate for another rule; give learning_rate_factor, for example 0.001, or relative_step false"},
        Rule{{"optimizer={rule: ADAMW groups {parameters: \"head.*\" rule: ADAFACTOR}}"},
             "--set: optimizer.groups[0]: ADAFACTOR takes the job's learning rate for a factor on its own steps, which "
             "is usually 1; give learning_rate_factor, for example 1000, or relative_step false"},
        Rule{{"optimizer={rule: ADAFACTOR groups {parameters: \"*.bias\" rule: ADAMW learning_rate_factor: 0.001}}"},
             ""},
        Rule{{"optimizer={groups {parameters: \"*.bias\" max_gradient_norm: 0}}"}, ""},
        Rule{{"optimizer={clipping: PER_UNIT non_finite: SKIP groups {parameters: \"*.bias\" max_gradient_norm: 2}}"},
             "--set: optimizer.groups[0].max_gradient_norm: the norm of a group is known after backward, and clipping "
             "PER_UNIT has other norms; leave it out, or use clipping GLOBAL and update AFTER_BACKWARD"},
        Rule{{"optimizer={update: IN_BACKWARD max_gradient_norm: 0 non_finite: SKIP groups {parameters: \"*.bias\" "
              "max_gradient_norm: 2}}"},
             "--set: optimizer.groups[0].max_gradient_norm: the norm of a group is known after backward, and "
             "IN_BACKWARD updates a unit before; leave it out, or use clipping GLOBAL and update AFTER_BACKWARD"}));

INSTANTIATE_TEST_SUITE_P(
    Memory, Rules,
    ::testing::Values(
        Rule{{"activation_checkpointing.preset=BLOCK", "activation_checkpointing.every_nth=2",
              "activation_checkpointing.first_layers=1"},
             "--set: activation_checkpointing.every_nth: every_nth does not go with first_layers and "
             "last_layers; keep one choice of "
             "blocks"},
        Rule{{"activation_checkpointing.preset=BLOCK", "activation_checkpointing.first_layers=0"},
             "--set: activation_checkpointing.first_layers: first_layers and last_layers choose no block; "
             "give a number, or leave both "
             "out for all blocks"},
        Rule{{"activation_checkpointing.every_nth=2"},
             "--set: activation_checkpointing.every_nth: preset NONE recomputes nothing, so a choice of "
             "blocks has no effect; use "
             "another preset, or leave every_nth, first_layers and last_layers out"},
        Rule{{"activation_checkpointing.preset=FFN", "activation_checkpointing.last_layers=5"},
             "--set: activation_checkpointing.last_layers: first_layers 0 and last_layers 5 are more than "
             "the model's 4 layers; choose at most 4 together"},
        Rule{{"activation_checkpointing.preset=FFN", "activation_checkpointing.first_layers=1",
              "activation_checkpointing.last_layers=3"},
             ""}));

// The model has 4 layers.
INSTANTIATE_TEST_SUITE_P(
    Segments, Rules,
    ::testing::Values(
        Rule{{"activation_checkpointing.segment_blocks=4"}, ""}, Rule{{"activation_checkpointing.segments=SQRT"}, ""},
        Rule{{"activation_checkpointing={preset: BLOCK segment_blocks: 2 every_nth: 1}"}, ""},
        // With segments, a choice of blocks has an effect even with NONE.
        Rule{{"activation_checkpointing={segment_blocks: 3 first_layers: 3}"}, ""},
        Rule{{"activation_checkpointing.segment_blocks=0"},
             "--set: activation_checkpointing.segment_blocks: found 0; allowed: 1 to 65536"},
        Rule{{"activation_checkpointing.segment_blocks=5"},
             "--set: activation_checkpointing.segment_blocks: a segment of 5 blocks is longer than the 4 consecutive "
             "blocks that are chosen; give at most 4"},
        Rule{{"activation_checkpointing={segment_blocks: 3 first_layers: 2 last_layers: 1}"},
             "--set: activation_checkpointing.segment_blocks: a segment of 3 blocks is longer than the 2 consecutive "
             "blocks that are chosen; give at most 2"},
        Rule{{"activation_checkpointing={segments: SQRT first_layers: 1 last_layers: 1}"},
             "--set: activation_checkpointing.segments: a segment needs two consecutive blocks, and no two are chosen; "
             "leave segments out"},
        Rule{{"activation_checkpointing={segments: SQRT segment_blocks: 2}"},
             "--set: activation_checkpointing.segment_blocks: segment_blocks and segments are both given; keep one"},
        Rule{{"activation_checkpointing={preset: BLOCK segment_blocks: 2 every_nth: 2}"},
             "--set: activation_checkpointing.segment_blocks: a segment is a run of consecutive blocks, and every_nth "
             "2 chooses no two neighbors; leave out every_nth, or segment_blocks"},
        Rule{{"activation_checkpointing={preset: BLOCK segments: SQRT every_nth: 3}"},
             "--set: activation_checkpointing.segments: a segment is a run of consecutive blocks, and every_nth 3 "
             "chooses no two neighbors; leave out every_nth, or segments"},
        Rule{{"activation_checkpointing.segments=CUBE"},
             "--set: activation_checkpointing.segments: found \"CUBE\"; allowed: SQRT"},
        Rule{{"model={mlp: {embedding: 8 hidden: 16 layers: 1}}", "activation_checkpointing.segments=SQRT"},
             "--set: activation_checkpointing.segments: a segment needs two consecutive blocks, and no two are chosen; "
             "leave segments out"}));

INSTANTIATE_TEST_SUITE_P(
    Run, Rules,
    ::testing::Values(
        Rule{{"optimizer.scaling=LINEAR"},
             "--set: optimizer.scaling: scales by global_batch / base_batch; give base_batch, the sequences per step "
             "that learning_rate is for"},
        Rule{{"optimizer.rule=LION"}, ""},
        Rule{{"optimizer.rule=LION", "optimizer.epsilon=1e-6"},
             absl::StrCat("--set: optimizer.epsilon: rule LION does not read it; choose ", RulesThatRead("epsilon"),
                          ", or leave it out")},
        Rule{{"optimizer.momentum=0.5"},
             absl::StrCat("--set: optimizer.momentum: rule ADAMW does not read it; choose ", RulesThatRead("momentum"),
                          ", or leave it out")},
        Rule{{"optimizer={rule: SGD momentum: 0 nesterov: true}"},
             "--set: optimizer.nesterov: Nesterov's update looks ahead along the momentum, and momentum is 0; set "
             "momentum, or leave nesterov out"},
        Rule{{"optimizer.frozen_weights=NF4"},
             "--set: optimizer.frozen_weights: no parameter is frozen, because all train; name those that train in "
             "train_only, give the model an adapter, or leave frozen_weights out"},
        Rule{{"optimizer.frozen_weights=BF16", "optimizer.train_only=*"}, ""},
        Rule{{"optimizer={rule: SGD nesterov: true}"}, ""}, Rule{{"optimizer={rule: ADAMW_8BIT epsilon: 1e-6}"}, ""},
        // Regression: the second error came when the first was mended.
        Rule{{"optimizer.update=IN_BACKWARD"},
             "--set: optimizer.update: IN_BACKWARD updates a unit before the norm of all gradients is known; use "
             "clipping PREVIOUS_NORM or PER_UNIT, or max_gradient_norm 0 for no clipping\n"
             "--set: optimizer.update: IN_BACKWARD updates a unit whether or not the gradients of others are finite, "
             "so a run cannot stop with the parameters of the step before; use non_finite SKIP"},
        Rule{{"optimizer.update=IN_BACKWARD", "optimizer.non_finite=SKIP"},
             "--set: optimizer.update: IN_BACKWARD updates a unit before the norm of all gradients is known; use "
             "clipping PREVIOUS_NORM or PER_UNIT, or max_gradient_norm 0 for no clipping"},
        Rule{{"optimizer.update=IN_BACKWARD", "optimizer.clipping=PER_UNIT"},
             "--set: optimizer.update: IN_BACKWARD updates a unit whether or not the gradients of others are finite, "
             "so a run cannot stop with the parameters of the step before; use non_finite SKIP"},
        Rule{{"optimizer.clipping=PER_UNIT"},
             "--set: optimizer.clipping: PER_UNIT updates a unit whether or not the gradients of others are finite, so "
             "a run cannot stop with the parameters of the step before; use non_finite SKIP"},
        Rule{{"optimizer={clipping: PER_UNIT non_finite: SKIP}"}, ""},
        Rule{{"optimizer.clipping=PREVIOUS_NORM"},
             "--set: optimizer.clipping: PREVIOUS_NORM updates a unit whether or not the gradients of others are "
             "finite, so a run cannot stop with the parameters of the step before; use non_finite SKIP"},
        Rule{{"optimizer={clipping: PREVIOUS_NORM non_finite: SKIP}"}, ""},
        Rule{{"optimizer={update: IN_BACKWARD clipping: PREVIOUS_NORM non_finite: SKIP}"}, ""},
        Rule{{"optimizer.clipping=PREVIOUS_NORM", "optimizer.non_finite=SKIP", "optimizer.max_gradient_norm=0"},
             "--set: optimizer.clipping: max_gradient_norm 0 clips nothing; give a norm, or leave clipping out"},
        Rule{{"optimizer={update: IN_BACKWARD clipping: PER_UNIT non_finite: SKIP}"}, ""},
        Rule{{"optimizer={update: IN_BACKWARD max_gradient_norm: 0 non_finite: SKIP}"}, ""},
        Rule{{"optimizer.clipping=PER_UNIT", "optimizer.non_finite=SKIP", "optimizer.max_gradient_norm=0"},
             "--set: optimizer.clipping: max_gradient_norm 0 clips nothing; give a norm, or leave clipping out"},
        Rule{{"optimizer.base_batch=8"},
             "--set: optimizer.base_batch: only scaling LINEAR or SQUARE_ROOT reads it; choose one, or leave it out"},
        Rule{{"lr_schedule.epochs=1"}, "--set: lr_schedule.epochs: steps and epochs are both given; keep one"},
        Rule{{"lr_schedule.steps="},
             "job.textproto:9:15: lr_schedule.steps: missing; give steps, or epochs, as the length of the run"},
        Rule{{"lr_schedule.warmup_steps=1", "lr_schedule.warmup_tokens=9"},
             "--set: lr_schedule.warmup_steps: more than one of warmup_steps, warmup_samples and warmup_tokens is "
             "given; "
             "keep one"},
        Rule{{"lr_schedule.warmup_steps=11"},
             "--set: lr_schedule.warmup_steps: lr_schedule.warmup_steps is 11, longer than the whole run of 10; "
             "shorten the warm-up, or lengthen the run"},
        Rule{{"lr_schedule.warmup_samples=81"},
             "--set: lr_schedule.warmup_samples: lr_schedule.warmup_samples is 81, longer than the whole run of 80; "
             "shorten the warm-up, or lengthen the run"},
        Rule{{"lr_schedule.warmup_tokens=2560"}, ""},
        Rule{{"lr_schedule.shape=WARMUP_STABLE_DECAY", "lr_schedule.warmup_steps=9"},
             "--set: lr_schedule.warmup_steps: lr_schedule.warmup_steps is 9, which reaches into the decay, the last "
             "0.2 of "
             "the run; shorten one of them"},
        Rule{{"lr_schedule.shape=WARMUP_STABLE_DECAY", "lr_schedule.warmup_steps=8"}, ""},
        Rule{{"lr_schedule.shape=CONSTANT", "lr_schedule.final_fraction=1"},
             "--set: lr_schedule.final_fraction: shape CONSTANT stays at the peak; leave it out"},
        Rule{
            {"lr_schedule.decay_fraction=0.5"},
            "--set: lr_schedule.decay_fraction: only shape WARMUP_STABLE_DECAY reads it; choose that, or leave it out"},
        Rule{{"data.evaluation_fraction=0.1", "data.evaluation_path=/x"},
             "--set: data.evaluation_fraction: evaluation_path and evaluation_fraction are both given; keep one"},
        Rule{{"telemetry.evaluate_every=5"},
             "--set: telemetry.evaluate_every: there is no evaluation data; give data.evaluation_path, "
             "data.evaluation_fraction or data.evaluation_sources"},
        Rule{{"telemetry.evaluate_every=3", "data.evaluation_sources=a /x"}, ""},
        Rule{{"data.evaluation_sources=b.jsonl"},
             "--set: data.evaluation_sources[0]: found \"b.jsonl\"; expected a name of up to 64 letters, digits, '.', "
             "'_' and '-', a space and the path that it names, as in \"code code_test.jsonl\""},
        Rule{{"data.evaluation_sources=a /x", "data.evaluation_sources=a /y"},
             "job.textproto:4:1: data.evaluation_sources[1]: the name \"a\" is taken; give each source a name of its "
             "own"},
        Rule{{"data.evaluation_fraction=0.1", "data.evaluation_sources=held_out /z"},
             "--set: data.evaluation_sources[0]: the name \"held_out\" is taken (by what evaluation_fraction holds "
             "out); give each source a name of its own"},
        Rule{{"data.evaluation_sources=a /x", "data.evaluation_path=/y"},
             "--set: data.evaluation_sources[0]: evaluation_sources and evaluation_path are both given; name the data "
             "of evaluation_path too, as one of evaluation_sources"},
        Rule{{"checkpoint.keep_best=true"},
             "--set: checkpoint.keep_best: nothing is evaluated before the end of the run; give "
             "telemetry.evaluate_every"},
        Rule{{"checkpoint.patience=2"},
             "--set: checkpoint.patience: nothing is evaluated before the end of the run; give "
             "telemetry.evaluate_every"},
        Rule{{"data.path="}, ""},  // The program gives the data.
        Rule{{"data.path=", "data.target_weights=OVER_TOKENS"}, ""},
        Rule{{"data.path=", "data.evaluation_fraction=0.1"},
             "--set: data.evaluation_fraction: only files of data.path have it; give path, or leave it out"},
        Rule{{"data.path=", "data.format=TEXT"},
             "--set: data.format: only files of data.path have it; give path, or leave it out"},
        Rule{{"data.target_weights=OVER_WEIGHTS"},
             "--set: data.target_weights: the files of path have no weights; leave target_weights out, or leave path "
             "out and let the program give the data to the trainer"},
        Rule{{"data.packing=PACK", "data.document_end_token=10"}, ""},
        Rule{{"data.packing=PAD", "data.document_begin_token=0"}, ""},
        Rule{
            {"data.document_end_token=10"},
            "--set: data.document_end_token: packing CUT does not look at documents; leave it out, or use packing PACK "
            "or PAD"},
        Rule{{"data.packing=PACK", "data.document_end_token=10", "data.document_begin_token=11"},
             "--set: data.document_begin_token: documents are told apart by one token, which ends or begins them; keep "
             "one"},
        Rule{{"data.packing=PACK", "data.document_end_token=300", "model.decoder.vocabulary=256"},
             "--set: data.document_end_token: token 300 does not fit a vocabulary of 256; give a smaller "
             "token, or a larger vocabulary"},
        Rule{{"data.path=", "data.packing=PACK"}, ""},
        Rule{{"data.path=", "data.packing=PACK", "data.document_end_token=10"},
             "--set: data.document_end_token: only files of data.path have it; give path, or leave it out"},
        Rule{
            {"data.path=", "data.packing=PAD"},
            "--set: data.packing: only files of data.path are padded here; a program pads its own data by targets that "
            "do not count (kMaskedTarget), with packing CUT"},
        Rule{{"data.packing=PAD", "data.document_end_token=10", "data.long_documents=TRUNCATE"}, ""},
        Rule{{"data.long_documents=DROP"},
             "--set: data.long_documents: packing CUT does not look at documents; leave it out, or use packing PACK or "
             "PAD"},
        Rule{{"data.allow_dropped_text=true", "data.spelled_tokens=NOT_ALLOWED", "data.date=2026-11-28"}, ""},
        Rule{{"data.date=2026-02-30"}, "--set: data.date: found \"2026-02-30\"; expected a day, as in \"2026-11-28\""},
        Rule{{"data.path=", "data.date=2026-11-28"},
             "--set: data.date: only files of data.path have it; give path, or leave it out"},
        Rule{{"data.path=", "data.packing=PACK", "data.long_documents=DROP"},
             "--set: data.long_documents: only files of data.path have it; give path, or leave it out"},
        Rule{{"data.mix=[\"250 /x\", \"749 /y z\"]"}, ""},
        Rule{
            {"data.mix=[\"1000 /x\"]"},
            "--set: data.mix[0]: found \"1000 /x\"; expected a number of 1,000 samples, 1 to 999, a space and the path "
            "that they are of, as in \"250 code.jsonl\""},
        Rule{{"data.mix=[\"500 /x\", \"500 /y\"]"},
             "--set: data.mix[0]: the numbers of all sources sum to 1000 of 1,000 samples; leave at least 1 to "
             "data.path"},
        Rule{{"data.mix=[\"500 /x\"]", "lr_schedule.steps=", "lr_schedule.epochs=1"},
             "--set: lr_schedule.epochs: each source of a mixture has epochs of its own, so a run has none; give "
             "lr_schedule.steps"},
        Rule{{"data.path=", "data.mix=[\"500 /x\"]"},
             "--set: data.mix[0]: only files of data.path have it; give path, or leave it out"},
        Rule{{"name=../up"},
             "--set: name: found \"../up\"; allowed: letters, digits, '.', '_' and '-', up to 128 of them, and no '.' "
             "at the start"}));

INSTANTIATE_TEST_SUITE_P(
    Runtime, Rules,
    ::testing::Values(
        Rule{{"runtime.ranks_per_device=2"},
             "--set: runtime.ranks_per_device: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.collectives=NCCL"},
             "--set: runtime.collectives: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.tuning_table=table.txt"},
             "--set: runtime.tuning_table: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.graphs=true"}, "--set: runtime.graphs: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"precision.allow_tf32=true"},
             "--set: precision.allow_tf32: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"memory.offload=*"}, "--set: memory.offload[0]: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"memory.offload_state=MOMENTS"},
             "--set: memory.offload_state[0]: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.device=CUDA", "memory.offload_state=MASTERS"},
             "--set: memory.offload_state[0]: MASTERS cannot be offloaded: the weights are their own masters; leave it "
             "out, or use compute BF16 with master MASTER_FP32 or SPLIT, or compute FP16"},
        Rule{{"runtime.device=CUDA", "precision.compute=BF16", "precision.master=NONE", "memory.offload_state=MASTERS"},
             "--set: memory.offload_state[0]: MASTERS cannot be offloaded: the weights are their own masters; leave it "
             "out, or use compute BF16 with master MASTER_FP32 or SPLIT, or compute FP16"},
        Rule{{"runtime.device=CUDA", "sharding.strategy=DDP", "sharding.accumulation=NO_SYNC",
              "memory.offload_state=[PARAMETERS]"},
             "--set: memory.offload_state[0]: PARAMETERS cannot be offloaded: strategy DDP uses the weights where they "
             "lie; use FULL_SHARD, which gathers them for each use, or leave it out"},
        Rule{
            {"runtime.device=CUDA", "optimizer={rule: SGD momentum: 0}", "memory.offload_state=MOMENTS"},
            "--set: memory.offload_state[0]: MOMENTS cannot be offloaded: the optimizer keeps no states; leave it out"},
        Rule{{"optimizer.groups={rule: SGD}"},
             "--set: optimizer.groups[0]: names no parameters; give name patterns in parameters, as in parameters: "
             "\"*.bias\""},
        Rule{{"optimizer={groups {parameters: \"*.bias\"} groups {parameters: \"*\" rule: LION epsilon: 1}}"},
             "--set: optimizer.groups[1].epsilon: rule LION does not read it; leave it out, or give the group another "
             "rule"},
        Rule{
            {"optimizer.groups={parameters: \"*\" rule: SGD momentum: 0 nesterov: true}"},
            "--set: optimizer.groups[0].nesterov: Nesterov's update looks ahead along the momentum, and momentum is 0; "
            "set momentum, or nesterov: false, for the group"},
        Rule{
            {"optimizer={rule: SGD nesterov: true groups {parameters: \"*\" momentum: 0}}"},
            "--set: optimizer.groups[0].momentum: Nesterov's update looks ahead along the momentum, and momentum is 0; "
            "set momentum, or nesterov: false, for the group"},
        Rule{{"optimizer.groups.rule=SGD"},
             "--set: optimizer.groups: is a list of messages; add one, as in optimizer.groups={...}, or clear the list "
             "with optimizer.groups="},
        Rule{{"optimizer.groups=[{rule: SGD}]"},
             "--set: optimizer: found \"[\" after optimizer.groups; write groups { ... } once for each"},
        Rule{{"optimizer.device=HOST"},
             "--set: optimizer.device: on device CPU the state is in host memory and the update runs there already; "
             "use SAME, or device CUDA"},
        Rule{{"runtime.device=CUDA", "optimizer.device=HOST", "memory.offload_state=PARAMETERS"}, ""},
        Rule{{"runtime.device=CUDA", "optimizer.device=HOST", "memory.offload_state=[MOMENTS, PARAMETERS]"},
             "--set: memory.offload_state[0]: an update on the HOST keeps moments and masters in host memory for good; "
             "leave MOMENTS and MASTERS out"},
        Rule{{"memory.host_budget_bytes=1000"},
             "--set: memory.host_budget_bytes: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.device=CUDA", "runtime.cpu_matmuls=PACKED"},
             "--set: runtime.cpu_matmuls: only the FAST ops of device CPU read it; choose those, or leave it out"},
        Rule{{"runtime.ops=REFERENCE", "runtime.cpu_matmuls=AUTO"},
             "--set: runtime.cpu_matmuls: only the FAST ops of device CPU read it; choose those, or leave it out"},
        Rule{{"runtime.device=CUDA", "runtime.ops=REFERENCE"},
             "--set: runtime.ops: the REFERENCE ops run on device CPU only; use FAST"},
        Rule{{"runtime.device=CUDA", "sharding.ranks=4", "runtime.ranks_per_device=2", "runtime.collectives=NCCL"},
             "--set: runtime.collectives: NCCL needs a GPU of its own for every rank; use collectives IN_PROCESS, or "
             "ranks_per_device 1 (tests on too few GPUs: nccl_shares_gpus)"},
        Rule{{"runtime={device: CUDA nccl_shares_gpus: true}", "sharding.ranks=4", "runtime.ranks_per_device=4"}, ""},
        Rule{{"runtime={device: CUDA nccl_shares_gpus: true}", "sharding.ranks=4", "runtime.ranks_per_device=4",
              "runtime.collectives=NCCL"},
             ""},
        Rule{{"runtime.nccl_shares_gpus=true", "sharding.ranks=4"},
             "--set: runtime.nccl_shares_gpus: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime={device: CUDA nccl_shares_gpus: true}", "sharding.ranks=4"},
             "--set: runtime.nccl_shares_gpus: nccl_shares_gpus is for tests in which ranks share a GPU, and here none "
             "do; leave it out, or set ranks_per_device to the number of ranks that share one"},
        Rule{{"runtime={device: CUDA nccl_shares_gpus: true}", "sharding.ranks=4", "runtime.ranks_per_device=2",
              "runtime.collectives=IN_PROCESS"},
             "--set: runtime.nccl_shares_gpus: collectives IN_PROCESS join ranks that share a GPU without NCCL; leave "
             "one of them out"},
        Rule{{"runtime={device: CUDA nccl_shares_gpus: true}", "sharding.ranks=4", "runtime.ranks_per_device=2",
              "runtime.nccl_windows=true"},
             "--set: runtime.nccl_windows: NCCL makes no windows between ranks that share a GPU; leave one of them "
             "out"},
        Rule{{"runtime.device=CUDA", "sharding.ranks=1", "runtime.nccl_windows=true"},
             "--set: runtime.nccl_windows: nccl_windows has no effect with one rank, which has no collectives; leave "
             "it out, or run more ranks"},
        Rule{{"runtime.device=CUDA", "runtime.graphs=true", "runtime.synchronous=true"},
             "--set: runtime.graphs: a graph runs as a whole, and synchronous runs one instruction at a time; leave "
             "one of "
             "them out"},
        Rule{{"runtime.device=CUDA", "runtime.deterministic_attention=false"}, ""},
        Rule{{"runtime.deterministic_attention=false"},
             "--set: runtime.deterministic_attention: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.device=CUDA", "runtime.cudnn_attention=false", "runtime.deterministic_attention=false"},
             "--set: runtime.deterministic_attention: the engine's own kernels are always deterministic; leave it out, "
             "or let cuDNN compute attention"},
        Rule{{"runtime.device=CUDA", "runtime.attention_workspace_bytes=0"}, ""},
        Rule{{"runtime.attention_workspace_bytes=0"},
             "--set: runtime.attention_workspace_bytes: only device CUDA reads it; choose that, or leave it out"},
        Rule{{"runtime.device=CUDA", "runtime.cudnn_attention=false", "runtime.attention_workspace_bytes=1000"},
             "--set: runtime.attention_workspace_bytes: the engine's own kernels need no workspace; leave it out, or "
             "let cuDNN compute attention"},
        Rule{{"runtime.device=CUDA", "sharding.ranks=4", "runtime.nccl_windows=true"}, ""},
        Rule{{"runtime.device=CUDA", "sharding.ranks=2", "runtime.collectives=IN_PROCESS", "runtime.nccl_windows=true"},
             "--set: runtime.nccl_windows: collectives are IN_PROCESS here and have no windows; leave it out, or "
             "run one "
             "rank on each GPU with collectives NCCL"},
        Rule{{"runtime.device=CUDA", "sharding.ranks=4", "runtime.graphs=true"},
             "--set: runtime.graphs: graphs need a single rank, and there are 4; leave graphs out, or run one rank"},
        Rule{{"runtime.device=CUDA", "sharding.ranks=4", "runtime.ranks_per_device=4", "precision.allow_tf32=true"},
             ""},
        Rule{{"runtime.device=CUDA", "runtime.graphs=true", "runtime.tuning_table=table.txt"}, ""}));

}  // namespace
}  // namespace shale

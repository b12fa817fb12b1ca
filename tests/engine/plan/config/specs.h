// Job specs for the tests of engine/plan/config.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/spec_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace shale {

// The smallest job with a decoder. Expected messages contain the lines and columns of its fields.
inline constexpr char kDecoderJob[] = R"(model {
  decoder { width: 64 layers: 4 heads: 4 }
}
data { path: "/text" }
batch {
  global_batch: 8
  sequence_length: 32
}
lr_schedule { steps: 10 }
)";

inline constexpr char kMlpJob[] = R"(model { mlp { embedding: 8 hidden: 16 } }
data { path: "/text" }
batch { global_batch: 8 sequence_length: 4 }
lr_schedule { epochs: 1.5 }
)";

// Sets every field of a job with a decoder, none to its default.
inline constexpr char kFullJob[] = R"(name: "full"
model {
  decoder {
    family: FALCON vocabulary: 1000 width: 96 layers: 6 heads: 6 kv_heads: 3 head_width: 32 hidden: 200
    max_positions: 512 rope_theta: 12345.678901234567
    rope_scaling { factor: 4 low_freq_factor: 0.5 high_freq_factor: 3 original_context: 64 }
    norm_epsilon: 3e-6 tied_head: false qkv_bias: true linear_bias: true qk_norm: true parallel_block: true
    parallel_norms: true attention_window: 16 init_std: 0.013 norm: RMS_NORM position: ROTARY activation: GELU_TANH
    layer_pattern: "WFF" window_rope_theta: 5000 post_norms: true norm_adds_one: true scaled_embedding: true
    score_width: 48 attention_cap: 12.5 logit_cap: 7.5
  }
}
data { path: "/a" format: LLMC order: SEQUENTIAL seed: 18446744073709551615 evaluation_path: "/b" }
batch { global_batch: 100 micro_batch: 3 sequence_length: 48 }
sharding { strategy: FULL_SHARD accumulation: LAYERED ranks: 6 prefetch: 0 reshard_after_forward: false shard_ranks: 3 }
precision { compute: BF16 master: SPLIT gradient_shards: BF16 reduce: BF16 allow_tf32: true fp32_logits: true
  matmuls: FP8 fp8_gradients: E4M3 fp8_scaling: BLOCKWISE }
memory {
  offload: "blocks.*.attention.*" offload_state: PARAMETERS host_budget_bytes: 98765432109
  budget_bytes: 123456789012 loss_chunk_tokens: 77
  keep_gradients: true
}
activation_checkpointing {
  preset: BLOCK
  first_layers: 1
  last_layers: 2
  segment_blocks: 2
  recompute: "blocks.*.ffn.up"
  recompute: 'tab "q" \\ back'
}
optimizer {
  learning_rate: 0.1 beta1: 0 beta2: 0.999 epsilon: 1e-3 weight_decay: 0 no_decay: "embedding*"
  train_only: "blocks.3.*" train_only: "*norm*"
  frozen_weights: BF16
  max_gradient_norm: 0.5 clipping: PER_UNIT update: IN_BACKWARD device: HOST non_finite: SKIP
  scaling: SQUARE_ROOT base_batch: 64
}
lr_schedule {
  shape: WARMUP_STABLE_DECAY steps: 1000 warmup_samples: 5000 final_fraction: 0 decay_fraction: 0.30000000000000004
}
checkpoint { every_steps: 50 keep_best: true patience: 4 }
telemetry { run_folder: "/tmp/r\303\244n" print_every: 10 evaluate_every: 20 evaluation_sequences: 3 peak_flops: 1e14
  peak_flops_measured: "2026-11-28 10:00:00 UTC"
  sinks { events: "events.jsonl" tensorboard: "/tb" prometheus: "a.prom" }
}
runtime {
  device: CUDA ops: FAST threads_per_rank: 2 seed: 7 synchronous: true check_every_steps: 9 generate: true
  ranks_per_device: 4 collectives: IN_PROCESS tuning_table: "/tuning" graphs: false cudnn_attention: false
}
)";

// Returns the names of the fields of a message, as errors list them, so that no test changes with a new field.
inline std::string FieldNames(const google::protobuf::Descriptor& type) {
  std::string names;
  for (int i = 0; i < type.field_count(); ++i) names += (i > 0 ? ", " : "") + type.field(i)->name();
  return names;
}

// Returns the optimizer's rules that read one of its fields, as errors list them, so that no test changes with a new
// rule.
inline std::string RulesThatRead(absl::string_view field) {
  std::string names;
  for (const OptimizerEntry& entry : Optimizers()) {
    if (entry.Reads(field)) absl::StrAppend(&names, names.empty() ? "" : " or ", entry.name);
  }
  return names;
}

// Adds the paths of the fields of a message that hold a value to `paths`.
inline void CollectFields(const google::protobuf::Descriptor& type, const std::string& prefix, bool in_lists,
                          std::vector<std::string>& paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string path = prefix + field.name();
    if (field.message_type() == nullptr) {
      paths.push_back(path);
    } else if (in_lists || !field.is_repeated()) {
      CollectFields(*field.message_type(), path + ".", in_lists, paths);
    }
  }
}

// Returns the paths of all fields that hold a value, of messages in lists only if `in_lists` is set.
inline std::vector<std::string> AllFields(bool in_lists = false) {
  std::vector<std::string> paths;
  CollectFields(*proto::Job::descriptor(), "", in_lists, paths);
  return paths;
}

// Returns kDecoderJob with the values ("path=value") set and unchecked.
inline proto::Job SpecWith(const std::vector<std::string>& values) {
  proto::Job spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kDecoderJob, &spec));
  SpecErrors errors("test");
  ApplyOverrides(values, &spec, &errors);
  EXPECT_TRUE(errors.empty()) << errors.ToStatus();
  return spec;
}

inline std::string ErrorOf(const absl::Status& status) { return std::string(status.message()); }

// Returns the errors of parsing `text` as job.textproto, or "" if it parses.
inline std::string ParseError(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ErrorOf(ParseJobText(text, "job.textproto", overrides).status());
}

// Returns the errors of kDecoderJob with these overrides, or "" if there are none.
inline std::string SetError(const std::vector<std::string>& overrides) { return ParseError(kDecoderJob, overrides); }

// A case of a rule between fields.
struct Rule {
  std::vector<std::string> overrides;
  std::string message;  // What SetError returns. Empty if the job is allowed.
};

// Tests that SetError says so (rules_test.cc). Files that are about some fields have cases of theirs.
class Rules : public ::testing::TestWithParam<Rule> {};

}  // namespace shale

#include "tools/bench/hostile_jobs.h"

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

// Returns a decoder of `layers` blocks, with a budget that no setting makes it fit.
std::string Decoder(int layers, const std::string& more = "", const std::string& batch = "global_batch: 4096") {
  return absl::StrCat("model { decoder { width: 64 heads: 2 vocabulary: 256 layers: ", layers, " } }\n",
                      "data { path: \"x\" format: TEXT }\nbatch { micro_batch: 8 sequence_length: 64 ", batch, " }\n",
                      "memory { budget_bytes: 1 }\nlr_schedule { steps: 1 }\n", more);
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, text);
  return all;
}

}  // namespace

std::vector<HostileJob> HostileJobs() {
  const std::string many_ranks = "sharding { ranks: 1048576 }\n";
  std::string patterns = "activation_checkpointing { ";
  for (int i = 0; i < 450; ++i) absl::StrAppend(&patterns, "recompute: \"*blocks.", i, ".*n*o*\" ");
  absl::StrAppend(&patterns, "}\n");
  return {
      {"1,000 layers", Decoder(1000)},
      {"1,000 layers in segments",
       Decoder(1000, "activation_checkpointing { preset: BLOCK segments: SQRT }\nsharding { ranks: 8 }\n")},
      {"1,000 layers, all gathered ahead", Decoder(1000, "sharding { ranks: 8 prefetch: 65536 }\n")},
      {"1,000 layers on 1,048,576 ranks", Decoder(1000, many_ranks, "global_batch: 1099511627776")},
      {"240 sizes of groups", Decoder(1000, "sharding { ranks: 720720 shard_ranks: 1 }\n")},
      {"1,000 layers, 2^37 micro-batches", Decoder(1000, "", "global_batch: 1099511627776")},
      {"1,000 layers, updates in backward, snapshots",
       Decoder(1000,
               "optimizer { update: IN_BACKWARD non_finite: SKIP clipping: PER_UNIT }\n"
               "checkpoint { every_steps: 1 }\nsharding { ranks: 8 shard_ranks: 4 }\n")},
      {"450 patterns for 1,000 layers", Decoder(1000, patterns)},
      {"12,700 chunks of the loss",
       "model { decoder { width: 64 heads: 2 vocabulary: 256 layers: 1 } }\ndata { path: \"x\" format: TEXT }\n"
       "batch { global_batch: 8 sequence_length: 1016000 }\nmemory { budget_bytes: 1 loss_chunk_tokens: 80 }\n"
       "lr_schedule { steps: 1 }\n"},
      {"1,000 hidden layers",
       "model { mlp { embedding: 8 hidden: 64 layers: 1000 vocabulary: 256 } }\ndata { path: \"x\" format: TEXT }\n"
       "batch { global_batch: 4096 micro_batch: 8 sequence_length: 64 }\nmemory { budget_bytes: 1 }\n"
       "lr_schedule { steps: 1 }\nsharding { ranks: 8 }\n"},
      {"widest model",
       "model { decoder { width: 16777216 heads: 2 vocabulary: 2147483647 layers: 1000 } }\n"
       "data { path: \"x\" }\nbatch { global_batch: 4096 sequence_length: 64 }\nlr_schedule { steps: 1 }\n"},
      {"nested braces", Repeated("model { decoder {", 900)},
      {"unknown fields", Repeated("aa: 1\n", 2700)},
      {"nothing but braces", Repeated("{", 16000)},
  };
}

}  // namespace shale

#include "tools/bench/hostile_jobs.h"

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

// Returns a job with a budget that no setting makes it fit.
std::string JobWith(const std::string& model, const std::string& more,
                    const std::string& batch = "global_batch: 4096 micro_batch: 8 sequence_length: 64",
                    const std::string& memory = "budget_bytes: 1") {
  return absl::StrCat("model { ", model, " }\ndata { path: \"x\" format: TEXT }\nbatch { ", batch, " }\n", "memory { ",
                      memory, " }\nlr_schedule { steps: 1 }\n", more);
}

std::string Decoder(int64_t layers) {
  return absl::StrCat("decoder { width: 64 heads: 2 vocabulary: 256 layers: ", layers, " }");
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, text);
  return all;
}

}  // namespace

std::vector<HostileJob> HostileJobs(int64_t instructions) {
  const int64_t layers = (instructions - 100) / 64, chunks = (instructions - 100) / 5;
  const int64_t rounding_layers = (instructions - 100) / 88;
  const std::string decoder = Decoder(layers), deep = absl::StrCat(layers, " layers");
  std::string patterns;
  for (int i = 0; i < 450; ++i) absl::StrAppend(&patterns, "recompute: \"*blocks.", i % layers, ".*n*o*\" ");
  return {
      {deep, JobWith(decoder, "")},
      {deep + " in segments",
       JobWith(decoder, "activation_checkpointing { preset: BLOCK segments: SQRT }\nsharding { ranks: 8 }\n")},
      {deep + ", all gathered ahead", JobWith(decoder, "sharding { ranks: 8 prefetch: 65536 }\n")},
      {deep + " on 1,048,576 ranks",
       JobWith(decoder, "sharding { ranks: 1048576 }\n", "global_batch: 1099511627776 sequence_length: 64")},
      {deep + ", groups of 240 sizes", JobWith(decoder, "sharding { ranks: 720720 shard_ranks: 1 }\n")},
      {deep + ", 2^40 micro-batches", JobWith(decoder, "", "global_batch: 1099511627776 sequence_length: 64")},
      {deep + ", updates in backward, snapshots",
       JobWith(decoder,
               "optimizer { update: IN_BACKWARD non_finite: SKIP clipping: PER_UNIT }\n"
               "checkpoint { every_steps: 1 }\nsharding { ranks: 8 shard_ranks: 4 }\n")},
      {absl::StrCat(rounding_layers, " layers, gradients that leave in bf16"),
       JobWith(Decoder(rounding_layers), "precision { compute: BF16 reduce: BF16 }\nsharding { ranks: 8 }\n")},
      {deep + ", 450 patterns", JobWith(decoder, absl::StrCat("activation_checkpointing { ", patterns, "}\n"))},
      {absl::StrCat(chunks, " chunks of the loss"),
       JobWith(Decoder(1), "", absl::StrCat("global_batch: 8 sequence_length: ", 80 * chunks),
               "budget_bytes: 1 loss_chunk_tokens: 80")},
      {absl::StrCat(layers, " hidden layers"),
       JobWith(absl::StrCat("mlp { embedding: 8 hidden: 64 vocabulary: 256 layers: ", layers, " }"),
               "sharding { ranks: 8 }\n")},
      {"the widest model",
       JobWith(absl::StrCat("decoder { width: 16777216 heads: 2 vocabulary: 2147483647 layers: ", layers, " }"), "")},
      {"nested messages", Repeated("model { decoder {", 900)},
      {"unknown fields", Repeated("aa: 1\n", 2700)},
      {"braces", Repeated("{", 16000)},
  };
}

}  // namespace shale

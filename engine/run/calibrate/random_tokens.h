// Data for steps whose time is measured.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/api/data_source.h"
#include "engine/plan/config/job.h"

namespace shale {

// Endless samples of random tokens, in one document each.
class RandomTokens : public DataSource {
 public:
  explicit RandomTokens(const Job& job)
      : DataSource({.name = "random tokens",
                    .sequence_length = job.batch.sequence_length,
                    .vocabulary = Vocabulary(job.model),
                    .has_weights = job.data.target_weights != TargetWeights::kNone,
                    .has_position_ids = job.data.packing == Packing::kPack}) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    auto state = static_cast<uint64_t>(sample) + 1;
    const auto token = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX.
      return static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(description().vocabulary));
    };
    std::generate(out.inputs.begin(), out.inputs.end(), token);
    std::generate(out.targets.begin(), out.targets.end(), token);
    std::fill(out.weights.begin(), out.weights.end(), 1.0f);
    for (size_t i = 0; i < out.position_ids.size(); ++i) out.position_ids[i] = static_cast<int32_t>(i);
    return absl::OkStatus();
  }
};

}  // namespace shale

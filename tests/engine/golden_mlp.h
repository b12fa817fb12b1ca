// The small MLP of which PyTorch wrote goldens: tests/parity/make_loss_scale_goldens.py has the same weights and
// tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {

inline constexpr int64_t kGoldenSequences = 6, kGoldenLength = 4;

// Returns options with the model and its weights.
inline RunOptions GoldenMlp() {
  RunOptions options;
  options.model = SmallMlp();
  options.reads_gradients = false;
  options.read_weights = [](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    static const std::map<std::string, int64_t> kNumbers = {
        {"embedding.weight", 0}, {"hidden.0.weight", 1}, {"hidden.1.weight", 3}, {"head.weight", 5}};
    const auto number = kNumbers.find(parameter.name);
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      const int64_t drawn = number == kNumbers.end() ? 0 : ((begin + i) * 7919 + number->second * 104729 + 17) % 2003;
      values[i] = number == kNumbers.end() ? 0 : static_cast<float>((static_cast<double>(drawn) / 2003 - 0.5) * 0.8);
    }
    return absl::OkStatus();
  };
  return options;
}

// Returns five batches, which a run repeats.
inline std::vector<Tokens> GoldenBatches() {
  constexpr int64_t kVocabulary = 19, kLength = kGoldenLength;
  std::vector<Tokens> batches;
  for (int64_t step = 0; step < 5; ++step) {
    Tokens tokens{.sequences = kGoldenSequences, .length = kLength};
    for (int64_t b = 0; b < kGoldenSequences; ++b) {
      for (int64_t s = 0; s < kLength; ++s) {
        tokens.inputs.push_back(static_cast<int32_t>((7 * step + 5 * b + 3 * s * s + b * s) % kVocabulary));
      }
      const int32_t* sequence = tokens.inputs.data() + b * kLength;
      tokens.targets.insert(tokens.targets.end(), kLength, (sequence[0] + 2 * sequence[kLength - 1]) % kVocabulary);
    }
    batches.push_back(std::move(tokens));
  }
  return batches;
}

}  // namespace shale::testing

// TokenSamples: the samples of a TokenSource, whose targets are one token later than the inputs.
#pragma once

#include <utility>

#include "engine/api/data_source.h"
#include "engine/data/token_source.h"

namespace shale {

// Sample i has inputs [i S, (i + 1) S). Targets that do not count are kMaskedTarget. Safe for concurrent reads by
// multiple threads.
class TokenSamples : public DataSource {
 public:
  // REQUIRES: source.CheckLength(sequence_length) is OK.
  TokenSamples(TokenSource source, int64_t sequence_length);

  // Returns what TokenSource::Read returns. Allocates nothing but what that allocates.
  absl::Status Read(int64_t sample, const SampleParts& out) override;

 private:
  const TokenSource source_;
};

}  // namespace shale

// Which jobs have a base.
#pragma once

#include <variant>

#include "engine/config/job.h"

namespace shale {

// Returns whether the frozen weights of the job are a base that its checkpoints need not hold: those of job.hf_folder,
// of which it trains adapters.
inline bool HasBase(const Job& job) {
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  return decoder != nullptr && decoder->adapter && !job.hf_folder.empty();
}

}  // namespace shale

// What the initial weights of a job depend on besides its fields: whether they are a base, and who fills them in.
#pragma once

#include <variant>

#include "engine/config/job.h"
#include "kernels/hardware_threads.h"

namespace shale {

// Returns whether the frozen weights of the job are a base that its checkpoints need not hold: those of job.hf_folder,
// of which it trains adapters.
inline bool HasBase(const Job& job) {
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  return decoder != nullptr && decoder->adapter && !job.hf_folder.empty();
}

// Returns how many threads of this machine fill in the weights of one rank.
inline int FillThreads(const Job& job) { return ThreadsPerRank(job.runtime, job.sharding.ranks, HardwareThreads()); }

}  // namespace shale

// What the files of a job ask for and training leaves out.
//
// HasBase says which jobs have a base.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "engine/plan/config/job.h"
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

// Returns a sentence for each file whose training in transformers or PEFT differs from that of the engine, for people
// to know before a run begins: the dropout of model.hf_folder and of model.adapter.folder. Says nothing about files
// that cannot be read; what reads their weights reports them.
std::vector<std::string> FileRemarks(const Job& job);

}  // namespace shale

// The files and folders that a job names: errors that name the field, what they ask for and training leaves out, and
// whether one holds weights that checkpoints need not hold. Also what planning reads of the data.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/plan/config/job.h"
#include "kernels/hardware_threads.h"

namespace shale {

// A path that a job names, and the field that names it.
struct NamedPath {
  absl::string_view field, path;
};

// Begins the message of an error with the field that it is about, unless it begins with a field of `data` already: the
// field whose path the message shows, of several the one with the longest path, or the first field if it shows none.
// Returns OK as it is. REQUIRES: `named` is not empty.
absl::Status InField(const std::vector<NamedPath>& named, const absl::Status& status);

// Returns InvalidArgument, which begins with the field, if the job names a tokenizer that does not exist.
absl::Status CheckTokenizerExists(const DataConfig& data);

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

// The files and folders that a job names: errors that name the field, and whether one holds weights that checkpoints
// need not hold. Also what planning reads of the data, and what people should know of a job before it runs.
//
// JobFile: the file of a job itself, of which many variants are wanted.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/config/job.h"
#include "kernels/hardware_threads.h"

namespace shale {

// A job file that was read. Copies share what was read. Any thread may call With.
class JobFile {
 public:
  // Returns the errors of LoadJob for a file that cannot be read or is malformed.
  static absl::StatusOr<JobFile> Read(absl::string_view path);

  // Returns what LoadJob returns with these overrides, without reading the file again.
  absl::StatusOr<Job> With(absl::Span<const std::string> overrides) const;

 private:
  struct Contents;
  explicit JobFile(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

// The first line of ResolvedJobText.
inline constexpr char kResolvedJobHead[] = "# The job as it runs: every default is written out.\n";

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

// Returns what people should know of the settings of a job, a sentence for each: LearningRateRemarks, and that it is
// planned as it is written if it leaves fields to a search.
std::vector<std::string> SettingRemarks(const Job& job);

// Returns what people should know before a run begins, a sentence for each: SettingRemarks, and where training in
// transformers or PEFT would differ from that of the engine, which is the dropout that model.hf_folder and
// model.adapter.folder ask for. Says nothing about files that cannot be read; what reads their weights reports them.
std::vector<std::string> JobRemarks(const Job& job);

}  // namespace shale

// Decides which checkpoint a run goes on from, and restores it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/reader.h"
#include "engine/config/job.h"
#include "engine/graph/graph.h"
#include "sharding/comm/control_plane.h"

namespace shale {

enum class ResumeFrom {
  kNothing,        // Begin anew. Refused if the folder holds a checkpoint.
  kReplace,        // Begin anew. The caller must remove the checkpoints in the folder before the first step.
  kLatest,         // Go on from the newest checkpoint that is not damaged. There must be one.
  kLatestOrStart,  // Like kLatest, but begin anew if no checkpoint was ever committed.
  kPath,           // Go on from the checkpoint at ResumeOptions::path.
};

struct ResumeOptions {
  ResumeFrom from = ResumeFrom::kNothing;
  std::string path;  // The folder of a checkpoint. Only kPath reads it.
};

// The result of Resume.
struct Resumed {
  std::string path;             // The checkpoint's folder. Empty: the run begins anew.
  bool from_elsewhere = false;  // The checkpoint does not lie in the run's own folder.
  Manifest manifest;
  std::vector<std::string> passed_over;  // Newer checkpoints that are damaged, each with the reason.
};

// Returns, in words, the first field in which a model differs from the job's; empty if both compute the same. Ignores
// how weights are initialized, and the longest sequence if positions are rotary.
std::string FirstDifference(const ModelConfig& model, const ModelConfig& of_job);

// Returns OK if a run of `job` can go on from a checkpoint: model, tokenizer, sequence length and order of the data
// and the optimizer's rule must be the same. Else returns FailedPrecondition with the first difference. Ranks,
// strategy, accumulation, activation checkpointing, precision, batch, and the numbers of the optimizer and the learning
// rate may all differ.
absl::Status CheckSameRun(const Manifest& manifest, const Job& job, const SavedData& data, const ModelGraph& model);

// Finds the checkpoint that `options` ask for, in `folder` or at options.path. Calls `check`, which refuses a
// checkpoint of another run, and then `restore`, which reads it.
//
// kLatest and kLatestOrStart skip a damaged checkpoint, which opening or restoring it detects. They return DataLoss if
// every checkpoint is damaged: training never restarts from scratch over an existing run.
//
// Refuses a `folder` with intact checkpoints that do not belong to this run's past, because a later kLatest could take
// one of them. For kNothing that is any checkpoint; for kPath any checkpoint later than the one at options.path, or any
// at all if that one lies in another folder.
//
// Every process of a job calls it with the same options. Process 0 chooses the checkpoint in a folder that all of them
// can reach; a checkpoint is restored only if every process can restore it, and all return the same result.
//
// Errors: NotFound if kLatest finds no checkpoint; FailedPrecondition with the reason of a refusal; DataLoss.
absl::StatusOr<Resumed> Resume(const ResumeOptions& options, const std::string& folder, ControlPlane& control,
                               absl::FunctionRef<absl::Status(const Manifest&)> check,
                               absl::FunctionRef<absl::Status(const CheckpointReader&)> restore);

}  // namespace shale

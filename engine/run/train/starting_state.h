// What a run starts from: the checkpoint that it resumes from, or initial weights.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/checkpoint.h"
#include "engine/api/trainer_options.h"
#include "engine/compile/graph/graph.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/plan/config/job.h"
#include "engine/run/state/local_state.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Sets the weights of all local ranks to those of job.hf_folder, or to random ones (FillInitialValues) if it is empty.
// Sets adapters to those of job.adapter_folder likewise. Returns InvalidArgument if a folder holds another model or
// other adapters, or the error of reading it. If `base_digest` is not null, sets it as FillOptions::digest_of_frozen.
absl::Status SetInitialWeights(const Job& job, LocalState& state, uint64_t* base_digest = nullptr);

// Sets the frozen weights to those of the base, and `digest` as FillOptions::digest_of_frozen. Returns the errors of
// SetInitialWeights. REQUIRES: HasBase(job).
absl::Status SetBase(const Job& job, LocalState& state, uint64_t& digest);

// Returns a description of the first field in which `model` differs from the job's model, or an empty string if there
// is none. Ignores how weights are initialized, and the longest sequence if positions are rotary.
std::string FirstDifference(const ModelConfig& model, const ModelConfig& of_job);

// Returns OK if a run of `job` can resume from a checkpoint: the model, the tokenizer, the number, length and order of
// the samples, the tokens of each source (where both know them), the optimizer's rule and the states that it keeps must
// be the same. Otherwise returns FailedPrecondition with the first difference. Ranks, strategy, accumulation,
// activation checkpointing, precision, batch size, hyper-parameters of the optimizer and the learning rate may all
// differ.
absl::Status CheckSameRun(const Manifest& manifest, const Job& job, const SavedData& data, const ModelGraph& model);

// Finds the checkpoint that `options` ask for, in `folder` or at options.path. Calls `check`, which refuses a
// checkpoint of another run, and then `restore`, which reads it.
//
// kLatest and kLatestOrStart skip damaged checkpoints, which fail to open or to restore. They return DataLoss if every
// checkpoint is damaged: training never restarts from scratch over an existing run.
//
// Refuses a `folder` with intact checkpoints that do not belong to this run's past, because a later kLatest could take
// one of them. With kNothing that is any checkpoint. With kPath it is any checkpoint later than the one at
// options.path, or any at all if that one lies in another folder. Also refuses, but with kReplace, a `folder` in which
// a link has the name of a checkpoint. An empty `folder` means that the run saves nothing.
//
// Every process of a job must call it with the same options. Process 0 chooses the checkpoint, in a folder that all of
// them can reach. A checkpoint that some process cannot restore counts as failed in all of them, and all return the
// same result, except for passed_over.
//
// Returns NotFound if kLatest finds no checkpoint, FailedPrecondition with the reason of a refusal, or DataLoss.
absl::StatusOr<Resumed> Resume(const ResumeOptions& options, const std::string& folder, ControlPlane& control,
                               absl::FunctionRef<absl::Status(const Manifest&)> check,
                               absl::FunctionRef<absl::Status(const CheckpointReader&)> restore);

}  // namespace shale

// Which checkpoint a run goes on from.
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

namespace shale {

enum class ResumeFrom {
  kNothing,        // Begin anew, where no checkpoint lies.
  kReplace,        // Begin anew. Whoever asks for that removes the checkpoints that lie there before the first step.
  kLatest,         // The newest checkpoint that is whole; there must be one.
  kLatestOrStart,  // That, or begin anew when no checkpoint was ever committed.
  kPath,           // The one that is named.
};

struct ResumeOptions {
  ResumeFrom from = ResumeFrom::kNothing;
  std::string path;  // kPath: a checkpoint's folder.
};

// What became of it.
struct Resumed {
  std::string path;             // Empty: begun anew.
  bool from_elsewhere = false;  // The checkpoint does not lie in the run's own folder.
  Manifest manifest;
  std::vector<std::string> passed_over;  // Newer checkpoints that are damaged, each with the reason.
};

// The first field in which a model is another than the job's, in words; empty if the two compute the same. How weights
// are initialised makes no difference, nor does the longest sequence where positions are rotary.
std::string FirstDifference(const ModelConfig& model, const ModelConfig& of_job);

// OK if a run of `job` can go on from a checkpoint: the same model, tokenizer, sequences and order of the data. Else
// FailedPrecondition with the first difference. Ranks, strategy, schedule, retention, precision, batch, optimizer and
// learning rate may all be others.
absl::Status CheckSameRun(const Manifest& manifest, const Job& job, const SavedData& data, const ModelGraph& model);

// The part of that which concerns the parameters: their names, shapes and order.
absl::Status CheckSameParameters(const std::vector<SavedParameter>& saved, const ModelGraph& model);

// Finds the checkpoint that `options` ask for among those in `folder`, has `check` refuse one of another run, and
// `restore` read it. Under kLatest and kLatestOrStart a checkpoint that is damaged, which opening or restoring it
// shows, is passed over; when every one is, that is an error: nothing begins anew over a run that was. A `folder` that
// holds whole checkpoints of another past is refused, for whoever asked for the newest would then get one of those: any
// under kNothing, and under kPath, later ones than the one named, or any when that lies elsewhere. Errors: NotFound
// when kLatest finds none; the reason of the refusal; DataLoss.
absl::StatusOr<Resumed> Resume(const ResumeOptions& options, const std::string& folder,
                               absl::FunctionRef<absl::Status(const Manifest&)> check,
                               absl::FunctionRef<absl::Status(const CheckpointReader&)> restore);

}  // namespace shale

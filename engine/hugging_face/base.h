// The base of a checkpoint that holds adapters alone (Manifest::base).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/base_values.h"
#include "engine/checkpoint/reader.h"
#include "engine/model/config.h"

namespace shale {

// The flag with which a user of a tool names the folder of the base.
inline constexpr absl::string_view kBaseFlag = "--base=FOLDER";

// The base, opened. Any number of threads may read.
struct OpenedBase {
  std::string folder;
  ReadBase read;  // Null if the checkpoint holds all parameters.
};

// Opens the base of a checkpoint of the given model in `folder`, or where the run had it if `folder` is empty. Returns
// InvalidArgument if a folder is given and the checkpoint has no base. Returns FailedPrecondition, or the error of
// HfWeights::Open, with the name of the checkpoint, if the folder does not hold the weights of such a model. The
// weights may still be those of another base, so the caller must compare their digest (CheckBaseDigest).
absl::StatusOr<OpenedBase> OpenBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                    const std::string& folder);

// Does the same, and reads all of the base once, to compare its digest.
absl::StatusOr<OpenedBase> OpenVerifiedBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                            const std::string& folder);

}  // namespace shale

// How the C interface finds a checkpoint.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/api/checkpoint.h"

namespace shale::c {

// Calls `use` with the checkpoint at `folder`, or with the newest intact one in it: if `use` returns DataLoss, with the
// one before. Returns NotFound if there is none, and otherwise what `use` returned.
absl::Status UseCheckpoint(const char* folder, absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

}  // namespace shale::c

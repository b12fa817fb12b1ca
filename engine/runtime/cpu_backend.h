// The CPU as a backend: streams are threads, ranks meet in memory.
#pragma once

#include <memory>

#include "engine/runtime/backend.h"
#include "engine/runtime/ops_kind.h"

namespace shale {

struct CpuBackendOptions {
  OpsKind ops = OpsKind::kFast;
  int threads = 1;  // Of one rank's kernels.
};

std::unique_ptr<Backend> CreateCpuBackend(const CpuBackendOptions& options = {});

}  // namespace shale

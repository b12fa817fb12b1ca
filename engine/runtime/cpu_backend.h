// The CPU as a backend: streams are threads, ranks meet in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/runtime/backend.h"
#include "engine/runtime/ops_kind.h"

namespace shale {

struct CpuBackendOptions {
  OpsKind ops = OpsKind::kFast;
  // Of one of so many ranks: of its kernels, and of what takes an arena's pages. Not empty.
  std::function<int(int64_t ranks)> threads = [](int64_t) { return 1; };
};

std::unique_ptr<Backend> CreateCpuBackend(const CpuBackendOptions& options = {});

}  // namespace shale

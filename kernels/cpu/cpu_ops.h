// The fast CPU backend: Highway for what memory bounds, oneDNN for matrix products, OpenMP for loops over rows.
//
// Same op, same bits, whatever the number of threads: the partition of every reduction depends on sizes only.
#pragma once

#include <memory>

#include "kernels/op_backend.h"

namespace shale {

struct CpuOptions {
  // OpenMP threads per op, the calling one included. Ranks that share a machine should divide its cores: spinning
  // teams that outnumber the cores stop one another.
  int threads = 1;
};

// REQUIRES: options.threads >= 1.
std::unique_ptr<Ops> CreateCpuOps(const CpuOptions& options);

}  // namespace shale

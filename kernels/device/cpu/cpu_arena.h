#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device/device.h"

namespace shale {

// One private mapping of zeroed memory. From 2 MiB up, it starts at a multiple of 2 MiB and asks for huge pages: a page
// fault costs as much for 4 KiB as for 2 MiB. Pages become resident when they are first touched.
class CpuArena : public Arena {
 public:
  // Maps `size_bytes` and adds them to `allocated_bytes` while the arena lives. Returns ResourceExhausted if the sum
  // would exceed `limit_bytes`. MakeResident uses `threads` threads.
  static absl::StatusOr<std::unique_ptr<CpuArena>> Create(int64_t size_bytes, int64_t limit_bytes,
                                                          std::atomic<int64_t>& allocated_bytes, int threads);
  ~CpuArena() override;

  void MakeResident(absl::Span<const ByteRange> ranges) override;

 private:
  CpuArena(std::atomic<int64_t>& allocated_bytes, int threads) : allocated_bytes_(allocated_bytes), threads_(threads) {}

  std::atomic<int64_t>& allocated_bytes_;
  const int threads_;
  int64_t mapped_bytes_ = 0;  // size_bytes() rounded up to full pages.
};

}  // namespace shale

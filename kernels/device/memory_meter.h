// MemoryMeter: measures the peak of an arena, independently of the plan. The peak is the end of the highest byte range
// that any launch or copy was given.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shale {

// Watches one address range. Thread-safe.
class MemoryMeter {
 public:
  MemoryMeter(const std::byte* base, int64_t size_bytes) : base_(base), size_bytes_(size_bytes) {}

  // Notes an access to [address, address + bytes). Ignores ranges that begin outside the watched range.
  void Touch(const void* address, int64_t bytes) {
    const int64_t begin = static_cast<const std::byte*>(address) - base_;
    if (address == nullptr || begin < 0 || begin >= size_bytes_ || bytes <= 0) return;
    const int64_t end = begin + bytes;
    int64_t seen = peak_bytes_.load(std::memory_order_relaxed);
    while (seen < end && !peak_bytes_.compare_exchange_weak(seen, end, std::memory_order_relaxed)) {
    }
  }
  int64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }

 private:
  const std::byte* base_;
  int64_t size_bytes_;
  std::atomic<int64_t> peak_bytes_ = 0;
};

}  // namespace shale

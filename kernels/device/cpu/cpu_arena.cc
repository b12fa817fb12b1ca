#include "kernels/device/cpu/cpu_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shale {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

absl::StatusOr<std::unique_ptr<CpuArena>> CpuArena::Create(int64_t size_bytes, int64_t limit_bytes,
                                                           std::atomic<int64_t>& allocated_bytes) {
  if (size_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("an arena of ", size_bytes, " bytes"));
  int64_t allocated = allocated_bytes.load();
  do {
    if (size_bytes > limit_bytes - allocated) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an arena of ", size_bytes, " bytes does not fit: memory for arenas is ", limit_bytes, " bytes, of which ",
          allocated, " are taken; ", size_bytes - (limit_bytes - allocated), " bytes are missing"));
    }
  } while (!allocated_bytes.compare_exchange_weak(allocated, allocated + size_bytes));
  std::unique_ptr<CpuArena> arena(new CpuArena(allocated_bytes));
  arena->size_bytes_ = size_bytes;

  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t mapped = std::max(page, RoundUp(size_bytes, page));
  const bool huge = mapped >= kHugePageBytes;
  const int64_t slack = huge ? kHugePageBytes - page : 0;  // To find a multiple of 2 MiB in; given back below.
  void* address = mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the machine refuses an arena of ", size_bytes, " bytes: ", std::strerror(errno)));
  }
  auto* begin = static_cast<std::byte*>(address);
  if (huge) {
    const int64_t misfit = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
    const int64_t skip = misfit == 0 ? 0 : kHugePageBytes - misfit;
    if (skip > 0) munmap(begin, skip);
    if (skip < slack) munmap(begin + skip + mapped, slack - skip);
    begin += skip;
    madvise(begin, mapped, MADV_HUGEPAGE);  // Advice: a kernel without huge pages may decline.
  }
  arena->base_ = begin;
  arena->mapped_bytes_ = mapped;
  return arena;
}

CpuArena::~CpuArena() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
  allocated_bytes_ -= size_bytes_;
}

}  // namespace shale

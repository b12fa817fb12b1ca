#include "kernels/device/cpu/cpu_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<CpuArena>> CpuArena::Create(int64_t size_bytes, int64_t limit_bytes,
                                                           std::atomic<int64_t>& allocated_bytes, int threads) {
  if (size_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("an arena of ", size_bytes, " bytes"));
  int64_t allocated = allocated_bytes.load();
  do {
    if (size_bytes > limit_bytes - allocated) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an arena of ", size_bytes, " bytes does not fit: arenas may use ", limit_bytes, " bytes in all, and ",
          allocated, " are in use; ", size_bytes - (limit_bytes - allocated), " bytes are missing"));
    }
  } while (!allocated_bytes.compare_exchange_weak(allocated, allocated + size_bytes));
  std::unique_ptr<CpuArena> arena(new CpuArena(allocated_bytes, threads));
  arena->size_bytes_ = size_bytes;

  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t mapped = std::max(page, RoundUp(size_bytes, page));
  const bool huge = mapped >= kHugePageBytes;
  const int64_t slack = huge ? kHugePageBytes - page : 0;  // To begin at a multiple of 2 MiB; unmapped below.
  void* address = mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map an arena of ", size_bytes, " bytes: ", std::strerror(errno)));
  }
  auto* begin = static_cast<std::byte*>(address);
  if (huge) {
    const int64_t misfit = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
    const int64_t skip = misfit == 0 ? 0 : kHugePageBytes - misfit;
    if (skip > 0) munmap(begin, skip);
    if (skip < slack) munmap(begin + skip + mapped, slack - skip);
    begin += skip;
    madvise(begin, mapped, MADV_HUGEPAGE);  // Only advice: a kernel without huge pages ignores it.
  }
  arena->base_ = begin;
  arena->mapped_bytes_ = mapped;
  return arena;
}

CpuArena::~CpuArena() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
  allocated_bytes_ -= size_bytes_;
}

void CpuArena::MakeResident(absl::Span<const ByteRange> ranges) {
  std::vector<ByteRange> pages;  // Huge pages, which the threads take in turn.
  for (const ByteRange& range : ranges) {
    for (int64_t at = range.begin, next; at < range.end; at = next) {
      next = std::min(RoundUp(at + 1, kHugePageBytes), range.end);
      pages.push_back({at, next});
    }
  }
  const int64_t small = sysconf(_SC_PAGESIZE);
  std::atomic<size_t> taken = 0;
  const auto populate = [&] {
    for (size_t i; (i = taken++) < pages.size();) {
      const int64_t begin = RoundDown(pages[i].begin, small);
      // If the system does not support this advice, pages become resident when they are touched.
      if (madvise(base_ + begin, pages[i].end - begin, MADV_POPULATE_WRITE) != 0) return;
    }
  };
  const size_t threads = std::min<size_t>(std::max(threads_, 1), pages.size());
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < threads) others.emplace_back(populate);
  } catch (const std::system_error&) {
    // The threads that have started do the work.
  }
  populate();
  for (std::thread& other : others) other.join();
}

}  // namespace shale

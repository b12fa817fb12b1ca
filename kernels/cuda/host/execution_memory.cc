// Execution: shared memory, and the check of every access.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/execution.h"
#include "kernels/cuda/host/reports.h"

namespace shale::cuda_on_host {

size_t AlignShared(size_t bytes) { return (bytes + 127) / 128 * 128; }

void Execution::PoisonShared(size_t begin, size_t end) {
  std::memset(shared_.get() + begin, 0xFF, end - begin);
  std::fill_n(shared_cells_.begin() + begin / kCellBytes, (end - begin) / kCellBytes, Cell());
}

void* Execution::StaticShared(const void* key, const char* name, size_t bytes) {
  for (const StaticArray& array : static_arrays_) {
    if (array.key == key) return shared_.get() + array.offset;
  }
  const size_t offset = shared_used_, end = AlignShared(offset + bytes);
  if (end - AlignShared(shape_.shared_bytes) > kMaxStaticSharedBytes || end > kMaxSharedBytes) {
    Stop([name, bytes] {
      return absl::StrCat("shared array ", name, " of ", bytes, " bytes is too large; a block has up to ",
                          kMaxStaticSharedBytes, " bytes of static shared memory and ", kMaxSharedBytes, " in all");
    });
  }
  PoisonShared(offset, end);
  shared_used_ = end;
  static_arrays_.push_back({key, offset});
  return shared_.get() + offset;
}

void Execution::Check(const Access& a) {
  const auto begin = reinterpret_cast<uintptr_t>(a.data) + a.index * a.element_bytes;
  const int64_t bytes = a.count * a.element_bytes;
  const auto tell = [&](auto what) {
    Stop([this, a, what] {
      const std::string more = a.count > 1 ? absl::StrCat(" and ", a.count - 1, " more") : "";
      return absl::StrCat(Where(), a.write ? " writes " : " reads ", a.shared ? "shared " : "", a.array, "[", a.index,
                          "]", more, ", ", what());
    });
  };
  if (a.data == nullptr) tell([] { return "which is not given"; });
  if (a.index < 0 || a.index + a.count > a.size) {
    tell([size = a.size] { return absl::StrCat("which has ", size, " elements"); });
  }
  if ((begin & (bytes - 1)) != 0) {
    tell([bytes] { return absl::StrCat("an address that is not a multiple of the access's ", bytes, " bytes"); });
  }
  const Thread& thread = threads_[current_];
  const Accessor by = {Moment(epoch_, thread.clock, current_), first_epoch_, thread.seen};
  // Each byte of a global array of bytes has a cell of its own, at twice its address. The cells of an access lie within
  // a page, because it is aligned to its size.
  const bool by_byte = a.element_bytes < kCellBytes;
  Cell* cells = a.shared  ? &shared_cells_[(begin - reinterpret_cast<uintptr_t>(shared_.get())) / kCellBytes]
                : by_byte ? byte_cells_.At(begin * kCellBytes)
                          : global_cells_.At(begin);
  const int64_t count = by_byte ? bytes : bytes / kCellBytes;
  const Conflict conflict = a.write ? Write(cells, count, by) : Read(cells, count, by, /*written=*/a.shared);
  switch (conflict.kind) {
    case Conflict::kNone: break;
    case Conflict::kUnwritten: tell([] { return "which was never written"; }); break;
    default:
      tell([this, conflict] {
        return absl::StrCat(
            "which ", NameOf(conflict.with), conflict.kind == Conflict::kAfterRead ? " read" : " wrote",
            conflict.with.epoch() >= first_epoch_ ? " with no barrier between them" : " in the same launch");
      });
  }
}

}  // namespace shale::cuda_on_host

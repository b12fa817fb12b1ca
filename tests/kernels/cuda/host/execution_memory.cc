// Execution: shared memory, and the check of every access.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host/execution.h"
#include "tests/kernels/cuda/host/reports.h"

namespace shale::cuda_on_host {
namespace {

// After so many epochs all cells are cleared and epochs count from 1 again, long before Moments run out of them.
constexpr uint32_t kKeptEpochs = 1 << 20;

uintptr_t AddressOf(const Access& a) { return reinterpret_cast<uintptr_t>(a.data) + a.index * a.element_bytes; }
int64_t BytesOf(const Access& a) { return a.count * a.element_bytes; }

}  // namespace

size_t AlignShared(size_t bytes) { return (bytes + 127) / 128 * 128; }

void Execution::PoisonShared(size_t begin, size_t end) {
  std::memset(shared_.get() + begin, 0xFF, end - begin);
  shared_cells_.resize(std::max(shared_cells_.size(), end / kCellBytes));
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

void Execution::ForgetAccesses() {
  if (epoch_ < kKeptEpochs) {
    global_cells_.Trim();
    byte_cells_.Trim();
    return;
  }
  epoch_ = 0;
  global_cells_.Clear();
  byte_cells_.Clear();
  shared_cells_.clear();
}

Conflict Execution::Note(uintptr_t address, int64_t bytes, Space space, bool write) {
  accessor_.since = space == Space::kShared ? first_epoch_ : launch_epoch_;
  // Each byte of a global array of bytes has a cell of its own, at twice its address. The cells of an access lie within
  // a page, because it is aligned to its size.
  Cell* cells = space == Space::kShared   ? SharedCells(address)
                : space == Space::kGlobal ? global_cells_.At(address)
                                          : byte_cells_.At(address * kCellBytes);
  const int64_t count = space == Space::kGlobalBytes ? bytes : bytes / kCellBytes;
  return write ? Write(cells, count, accessor_) : Read(cells, count, accessor_, /*written=*/space == Space::kShared);
}

void Execution::BeginCopy(const Access& to, const Access& from, bool zeros) {
  if (!zeros) Check(from);
  Check(to);
  SetWrite(SharedCells(AddressOf(to)), BytesOf(to) / kCellBytes, Moment::OfCopy(current_));
  threads_[current_].copies.push_back({to, from, zeros});
}

void Execution::WaitForCopies(Site site) {
  if (Skip(site)) return;
  for (const auto& [to, from, zeros] : threads_[current_].copies) {
    std::byte* const bytes = shared_.get() + (AddressOf(to) - reinterpret_cast<uintptr_t>(shared_.get()));
    if (zeros) {
      std::memset(bytes, 0, BytesOf(to));
    } else {
      // A copy may read at any time until it is done.
      const Conflict conflict = Note(AddressOf(from), BytesOf(from), SpaceOf(from), /*write=*/false);
      if (conflict.kind != Conflict::kNone) StopAtConflict(from, conflict);
      std::memcpy(bytes, reinterpret_cast<const void*>(AddressOf(from)), BytesOf(from));
    }
    SetWrite(SharedCells(AddressOf(to)), BytesOf(to) / kCellBytes, accessor_.now);
  }
  threads_[current_].copies.clear();
}

void Execution::CountArray(const Access& a, int64_t bytes) {
  ArrayBytes& array = stream_->counts.arrays[a.array];
  (a.write ? array.written : array.read) += bytes;
}

void Execution::StopAt(const Access& a, std::function<std::string()> what) {
  Stop([this, a, what = std::move(what)] {
    const std::string more = a.count > 1 ? absl::StrCat(" and ", a.count - 1, " more") : "";
    return absl::StrCat(Where(), a.write ? " writes " : " reads ", a.shared ? "shared " : "", a.array, "[", a.index,
                        "]", more, ", ", what());
  });
}

void Execution::StopAtOperand(const Access& a) {
  if (a.data == nullptr) StopAt(a, [] { return "which is not given"; });
  if (a.index < 0 || a.index + a.count > a.size) {
    StopAt(a, [size = a.size] { return absl::StrCat("which has ", size, " elements"); });
  }
  StopAt(a, [bytes = a.count * a.element_bytes] {
    return absl::StrCat("an address that is not a multiple of the access's ", bytes, " bytes");
  });
}

void Execution::StopAtConflict(const Access& a, const Conflict& conflict) {
  if (conflict.kind == Conflict::kUnwritten) StopAt(a, [] { return "which was never written"; });
  if (conflict.with.is_copy()) {
    StopAt(a, [this, conflict] { return absl::StrCat("to which a copy of ", NameOf(conflict.with), " is under way"); });
  }
  StopAt(a, [this, conflict] {
    return absl::StrCat(
        "which ", NameOf(conflict.with), conflict.kind == Conflict::kAfterRead ? " read" : " wrote",
        conflict.with.epoch() >= first_epoch_ ? " with no barrier between them" : " in the same launch");
  });
}

}  // namespace shale::cuda_on_host

#include "kernels/cuda/host/shadow.h"

namespace shale::cuda_on_host {
namespace {

constexpr size_t kUnusedPages = 64;  // 3 MiB.

// Returns how likely an earlier reader is to conflict with a write after `by`; 0 if there is no reader.
inline int Weight(const Moment& reader, const Accessor& by) {
  if (!reader.someone()) return 0;
  if (reader.epoch() < by.first_epoch) return 4;
  if (reader.epoch() != by.now.epoch() || reader.thread() == by.now.thread()) return 1;
  return reader.warp() != by.now.warp() ? 3 : 2;
}

inline bool Ordered(const Moment& before, const Accessor& by) {
  if (!before.someone()) return true;
  if (before.epoch() < by.first_epoch) return false;
  if (before.epoch() != by.now.epoch() || before.thread() == by.now.thread()) return true;
  return before.warp() == by.now.warp() && by.clocks[before.thread() % kWarp] >= before.clock();
}

inline Conflict ReadOne(Cell& cell, const Accessor& by) {
  if (!Ordered(cell.write, by)) return {Conflict::kAfterWrite, cell.write};
  auto& [latest, other] = cell.reads;
  if (latest == by.now) return {};
  if (Weight(latest, by) >= Weight(other, by)) other = latest;
  latest = by.now;
  return {};
}

inline Conflict WriteOne(Cell& cell, const Accessor& by) {
  if (!Ordered(cell.write, by)) return {Conflict::kAfterWrite, cell.write};
  for (const Moment& reader : cell.reads) {
    if (!Ordered(reader, by)) return {Conflict::kAfterRead, reader};
  }
  // An access that is ordered after this write is ordered after all earlier accesses too, so they need not be kept.
  cell = {.write = by.now, .reads = {}};
  return {};
}

// Applies `access` to adjacent cells. Adjacent cells mostly have equal histories, and an equal neighbor's result is
// copied.
template <class AccessOne>
inline Conflict ForEach(Cell* cells, int64_t count, AccessOne access) {
  Cell before, after;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && cells[i] == before) {
      cells[i] = after;
      continue;
    }
    before = cells[i];
    if (const Conflict conflict = access(cells[i]); conflict.kind != Conflict::kNone) return conflict;
    after = cells[i];
  }
  return {};
}

}  // namespace

bool IsOrdered(const Moment& before, const Accessor& by) { return Ordered(before, by); }

Conflict Read(Cell* cells, int64_t count, const Accessor& by, bool written) {
  return ForEach(cells, count, [&](Cell& cell) {
    if (written && !cell.write.someone()) return Conflict{Conflict::kUnwritten, {}};
    return ReadOne(cell, by);
  });
}

Conflict Write(Cell* cells, int64_t count, const Accessor& by) {
  return ForEach(cells, count, [&](Cell& cell) { return WriteOne(cell, by); });
}

Cell* ShadowMemory::At(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  if (last_ == nullptr || number != last_number_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr && unused_.empty()) page = std::make_unique<Page>();
    if (page == nullptr) {
      page = std::move(unused_.back());
      unused_.pop_back();
      page->cells.fill(Cell());
    }
    last_ = page.get();
    last_number_ = number;
  }
  return &last_->cells[address % kPageBytes / kCellBytes];
}

void ShadowMemory::Clear() {
  for (auto& [number, page] : pages_) {
    if (unused_.size() < kUnusedPages) unused_.push_back(std::move(page));
  }
  pages_.clear();
  last_ = nullptr;
}

}  // namespace shale::cuda_on_host

#include "kernels/cuda/host/shadow.h"

namespace shale::cuda_on_host {
namespace {

constexpr size_t kKeptPages = 512;  // 6 MiB.

// Returns how likely an earlier reader is to conflict with a write after `by`; 0 if there is no reader.
inline int Weight(const Moment& reader, const Accessor& by) {
  if (reader.epoch() < by.since) return 0;
  if (reader.epoch() < by.first_epoch) return 4;
  if (reader.epoch() != by.now.epoch() || reader.thread() == by.now.thread()) return 1;
  return reader.warp() != by.now.warp() ? 3 : 2;
}

// Returns whether `by`, which comes later in this run, comes after `before` in every order of execution.
inline bool Ordered(const Moment& before, const Accessor& by) {
  if (before.epoch() < by.since) return true;
  if (before.epoch() < by.first_epoch) return false;
  if (before.epoch() != by.now.epoch() || before.thread() == by.now.thread()) return true;
  return before.warp() == by.now.warp() && (*by.clocks)[before.thread() % kWarp] >= before.clock();
}

inline Conflict ReadOne(Cell& cell, const Accessor& by, bool written) {
  auto& [latest, other] = cell.reads;
  if (latest == by.now) return {};  // It has been checked, and nobody has written since.
  if (written && cell.write.epoch() < by.since) return {Conflict::kUnwritten, {}};
  if (!Ordered(cell.write, by)) return {Conflict::kAfterWrite, cell.write};
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

Conflict Read(Cell* cells, int64_t count, const Accessor& by, bool written) {
  return ForEach(cells, count, [&](Cell& cell) { return ReadOne(cell, by, written); });
}

Conflict Write(Cell* cells, int64_t count, const Accessor& by) {
  return ForEach(cells, count, [&](Cell& cell) { return WriteOne(cell, by); });
}

ShadowMemory::Page* ShadowMemory::PageOf(uintptr_t number) {
  std::unique_ptr<Page>& page = pages_[number];
  if (page == nullptr) page = std::make_unique<Page>();
  return page.get();
}

void ShadowMemory::Clear() {
  pages_.clear();
  recent_ = {};
}

void ShadowMemory::Trim() {
  if (pages_.size() > kKeptPages) Clear();
}

}  // namespace shale::cuda_on_host

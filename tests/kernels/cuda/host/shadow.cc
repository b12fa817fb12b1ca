#include "tests/kernels/cuda/host/shadow.h"

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
  if (before.epoch() < by.now.epoch()) return true;
  if (before.is_copy()) return false;
  if (before.thread() == by.now.thread()) return true;
  return before.warp() == by.now.warp() && (*by.clocks)[before.thread() % kWarp] >= before.clock();
}

inline Conflict ReadConflict(Moment write, const Accessor& by, bool written) {
  if (written && write.epoch() < by.since) return {Conflict::kUnwritten, {}};
  if (!Ordered(write, by)) return {Conflict::kAfterWrite, write};
  return {};
}

inline Conflict WriteConflict(Moment write, Moment latest, Moment other, const Accessor& by) {
  if (!Ordered(write, by)) return {Conflict::kAfterWrite, write};
  if (!Ordered(latest, by)) return {Conflict::kAfterRead, latest};
  if (!Ordered(other, by)) return {Conflict::kAfterRead, other};
  return {};
}

}  // namespace

// Adjacent cells mostly have equal histories: what was found for a neighbor is not computed again. Moments are loaded
// and stored one by one, because a wide load soon after a narrow store stalls, and `accessor` is copied, because the
// compiler would load it again after each store.
Conflict Read(Cell* cells, int64_t count, const Accessor& accessor, bool written) {
  const Accessor by = accessor;
  bool checked = false;  // Whether the following are those of a neighbor.
  Moment neighbor_write, neighbor_latest, neighbor_other, kept;
  for (Cell* cell = cells; cell != cells + count; ++cell) {
    const Moment write = cell->write, latest = cell->reads[0], other = cell->reads[1];
    if (latest == by.now) continue;  // It has been checked, and nobody has written since.
    const bool as_neighbor = write == neighbor_write && latest == neighbor_latest && other == neighbor_other;
    if (!checked || !as_neighbor) {
      if (const Conflict conflict = ReadConflict(write, by, written); conflict.kind != Conflict::kNone) return conflict;
      checked = true;
      neighbor_write = write;
      neighbor_latest = latest;
      neighbor_other = other;
      kept = Weight(latest, by) >= Weight(other, by) ? latest : other;
    }
    cell->reads[0] = by.now;
    cell->reads[1] = kept;
  }
  return {};
}

Conflict Write(Cell* cells, int64_t count, const Accessor& accessor) {
  const Accessor by = accessor;
  bool checked = false;
  Moment neighbor_write, neighbor_latest, neighbor_other;
  for (Cell* cell = cells; cell != cells + count; ++cell) {
    const Moment write = cell->write, latest = cell->reads[0], other = cell->reads[1];
    const bool as_neighbor = write == neighbor_write && latest == neighbor_latest && other == neighbor_other;
    if (!checked || !as_neighbor) {
      const Conflict conflict = WriteConflict(write, latest, other, by);
      if (conflict.kind != Conflict::kNone) return conflict;
      checked = true;
      neighbor_write = write;
      neighbor_latest = latest;
      neighbor_other = other;
    }
    // An access that is ordered after this write is ordered after all earlier accesses too, so they need not be kept.
    cell->write = by.now;
    cell->reads[0] = cell->reads[1] = Moment();
  }
  return {};
}

void SetWrite(Cell* cells, int64_t count, Moment write) {
  for (Cell* cell = cells; cell != cells + count; ++cell) cell->write = write;
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

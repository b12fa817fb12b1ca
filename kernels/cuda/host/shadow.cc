#include "kernels/cuda/host/shadow.h"

namespace shale::cuda_on_host {
namespace {

// Returns how likely an earlier reader is to conflict with a write after `now`; 0 if there is no reader.
int Weight(const Moment& reader, const Moment& now) {
  if (!reader.someone()) return 0;
  if (reader.block != now.block) return 4;
  if (reader.epoch != now.epoch || reader.thread == now.thread) return 1;
  return reader.warp() != now.warp() ? 3 : 2;
}

}  // namespace

bool IsOrdered(const Moment& before, const Moment& now, const LaneClocks& clocks) {
  if (!before.someone()) return true;
  if (before.block != now.block) return false;
  if (before.epoch != now.epoch || before.thread == now.thread) return true;
  return before.warp() == now.warp() && clocks[before.thread % kWarp] >= before.clock;
}

Conflict Read(Cell& cell, const Moment& now, const LaneClocks& clocks) {
  if (!IsOrdered(cell.write, now, clocks)) return {Conflict::kAfterWrite, cell.write};
  auto& [latest, other] = cell.reads;
  if (Weight(latest, now) >= Weight(other, now)) other = latest;
  latest = now;
  return {};
}

Conflict Write(Cell& cell, const Moment& now, const LaneClocks& clocks) {
  if (!IsOrdered(cell.write, now, clocks)) return {Conflict::kAfterWrite, cell.write};
  for (const Moment& reader : cell.reads) {
    if (!IsOrdered(reader, now, clocks)) return {Conflict::kAfterRead, reader};
  }
  // An access that is ordered after this write is ordered after all earlier accesses too, so they need not be kept.
  cell = {.write = now};
  return {};
}

Cell& ShadowMemory::At(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  if (last_ == nullptr || number != last_number_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    last_ = page.get();
    last_number_ = number;
  }
  return last_->cells[address % kPageBytes / kCellBytes];
}

void ShadowMemory::Clear() {
  pages_.clear();
  last_ = nullptr;
}

}  // namespace shale::cuda_on_host

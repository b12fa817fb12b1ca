#include "engine/runtime/memory_ledger.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

std::string Signed(int64_t bytes) {
  return absl::StrCat(bytes < 0 ? "-" : "", FormatBytes(bytes < 0 ? -bytes : bytes));
}

}  // namespace

MemoryLedger::MemoryLedger(const std::vector<std::shared_ptr<Device>>& devices) {
  Entry before{.taker = "kernels and other programs"};
  for (const std::shared_ptr<Device>& device : devices) {
    if (!devices_.empty() && devices_.back().device == device) {
      ++devices_.back().ranks;
      continue;
    }
    const absl::StatusOr<DeviceMemory> memory = device->Memory();
    if (!memory.ok()) {
      devices_.clear();
      return;
    }
    devices_.push_back({.device = device, .ranks = 1, .free_bytes = memory->free_bytes});
    before.bytes.push_back(memory->total_bytes - memory->free_bytes);
  }
  entries_.push_back(std::move(before));
}

void MemoryLedger::Enter(absl::string_view taker, int64_t planned_bytes) {
  Entry entry{.taker = std::string(taker)};
  for (OfDevice& of : devices_) {
    const absl::StatusOr<DeviceMemory> memory = of.device->Memory();
    if (!memory.ok()) return;  // The next call that needs this device reports the error.
    entry.bytes.push_back(of.free_bytes - memory->free_bytes - of.ranks * planned_bytes);
    of.free_bytes = memory->free_bytes;
  }
  if (!devices_.empty()) entries_.push_back(std::move(entry));
}

std::string MemoryLedger::List(size_t begin, size_t end) const {
  std::string text;
  for (size_t i = begin; i < end; ++i) {
    const Entry& entry = entries_[i];
    absl::StrAppend(&text, i == begin ? "" : ", ", entry.taker, " ",
                    Signed(*std::max_element(entry.bytes.begin(), entry.bytes.end())));
  }
  return text;
}

std::string MemoryLedger::Describe() const {
  if (devices_.empty()) return "";
  const size_t late = std::min(first_late_, entries_.size());
  std::string text = absl::StrCat("memory taken outside the arenas",
                                  devices_.size() > 1 ? ", the most on a device" : "", ": ", List(0, late));
  if (late < entries_.size()) absl::StrAppend(&text, "; after it was checked: ", List(late, entries_.size()));
  return text;
}

std::string MemoryLedger::DescribeExcess(int64_t reserve_bytes) const {
  int64_t most = 0;
  for (size_t device = 0; device < devices_.size(); ++device) {
    int64_t late = 0;
    for (size_t i = std::min(first_late_, entries_.size()); i < entries_.size(); ++i) late += entries_[i].bytes[device];
    most = std::max(most, late);
  }
  if (most <= reserve_bytes) return "";
  return absl::StrCat(FormatBytes(most), " of a device's memory were taken after it was checked (",
                      List(first_late_, entries_.size()), "), and only ", FormatBytes(reserve_bytes),
                      " had been left free for that; a job whose arenas fill the device may fail: lower ",
                      "memory.budget_bytes by ", most - reserve_bytes);
}

}  // namespace shale

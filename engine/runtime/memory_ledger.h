// MemoryLedger: what takes the devices' memory outside the arenas while ranks start, and what takes it later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/device/device.h"

namespace shale {

// Compares what devices have free from one moment to the next. So it also counts what other programs take or free in
// between, and memory that libraries keep without asking the device. If a device cannot tell its memory, the ledger is
// empty. Used by one thread at a time.
class MemoryLedger {
 public:
  // Begins with the memory that is in use now. `devices` are those of the ranks: ranks that share one follow each
  // other.
  explicit MemoryLedger(const std::vector<std::shared_ptr<Device>>& devices);

  // Enters what has been taken since the last call, or since the beginning, under the name `taker`. Leaves out
  // `planned_bytes` for each rank.
  void Enter(absl::string_view taker, int64_t planned_bytes = 0);
  // What is entered from now on is late: it comes out of the memory that was left free for it.
  void BeginLate() { first_late_ = entries_.size(); }

  // Returns a line with all entries, each with its value on the device where it is largest. Empty if the ledger is.
  std::string Describe() const;
  // Returns a line that says by how much the late entries exceed `reserve_bytes` on the device where they are largest.
  // Empty if they do not.
  std::string DescribeExcess(int64_t reserve_bytes) const;

 private:
  struct OfDevice {
    std::shared_ptr<Device> device;
    int64_t ranks = 0;
    int64_t free_bytes = 0;  // At the last entry.
  };
  struct Entry {
    std::string taker;
    std::vector<int64_t> bytes;  // By device. Negative if memory was freed.
  };
  std::string List(size_t begin, size_t end) const;

  std::vector<OfDevice> devices_;  // Empty if one of them cannot tell its memory.
  std::vector<Entry> entries_;
  size_t first_late_ = static_cast<size_t>(-1);
};

}  // namespace shale

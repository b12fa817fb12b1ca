// GlooMemory: lets the processes of a group read one another's memory, if all of them run on one host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sharding/comm/gloo/gloo.h"
#include "sharding/comm/gloo/layout.h"
#include "sharding/comm/store.h"

namespace shale {

// Reads with process_vm_readv: the system copies from one process to the other, without memory that both have mapped.
// So arenas keep their huge pages, each page counts for one process, and nothing is left of a process that is killed.
//
// Besides, each process has a board: four pages that the others map and only read. What it writes there, they see
// without a message of Gloo, whose threads would have to wake. The pages belong to no file system, and end with the
// processes.
//
// Each process has a token, a word of memory with a random value. Others read it to find out that they read the right
// process, and, after other reads, that this process had not yet failed, so that its operands were still valid.
// Thread-safe.
class GlooMemory {
 public:
  // Waits for all other processes. All get the same answer whether they read one another's memory.
  static absl::StatusOr<std::unique_ptr<GlooMemory>> Create(Store& store, const GlooLayout& layout,
                                                            const GlooMembers& members, const GlooOptions& options);
  ~GlooMemory();

  // Returns whether every process can read the memory of all others.
  bool readable() const { return readable_; }

  static constexpr int64_t kBoardBytes = 16384;
  // Returns the board of a process, of kBoardBytes, at first zeros. Only that process may write it. REQUIRES:
  // readable().
  std::byte* board(int process) const { return boards_[process]; }

  // Copies memory of another process. Returns Unavailable if that process has ended or has freed the memory. What was
  // read counts only if Check succeeds afterwards.
  absl::Status Read(int process, const void* from, void* to, int64_t size_bytes) const;
  // Returns Unavailable if the token of another process was withdrawn.
  absl::Status Check() const;
  // Tells those who read this process's memory that its operands are not valid any more.
  void Withdraw() { token_.store(0); }

 private:
  // A process as others see it.
  struct Peer {
    int32_t pid = 0;  // 0: this process.
    const void* token_address = nullptr;
    uint64_t token = 0;
  };
  GlooMemory();
  absl::Status MakeBoard(int process);
  absl::Status MapBoard(int process, int file, int protection);
  std::string Mine() const;
  absl::Status Open(int process, const std::string& theirs);
  absl::Status CheckToken(int process) const;

  bool readable_ = false;
  std::vector<Peer> processes_;
  std::vector<std::byte*> boards_;  // By process. Null if it is not mapped.
  int file_ = -1;                   // Of this process's board, until the others have mapped it.
  std::atomic<uint64_t> token_;
};

}  // namespace shale

// A file system that fails at a chosen moment, for tests of what survives.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/files/io/file.h"

namespace shale {

// Says what goes wrong, and when. Operations that change a disk are counted from 1, over all files and threads.
struct Fault {
  enum class Kind {
    kNone,
    kError,       // The operation fails. A write still writes its first half.
    kDone,        // The operation is done, and still reports an error.
    kKillBefore,  // The process is killed (SIGKILL) instead of the operation.
    kKillMidway,  // The process is killed after the first half of a write, or at the end of any other operation.
  };
  static constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

  Kind kind = Kind::kNone;
  int64_t first = 1;     // The first operation that goes wrong.
  int64_t count = 1;     // How many operations in a row go wrong. kForEver: the disk never recovers.
  int error_number = 0;  // Reported by kError and kDone: ENOSPC and the like.
};

// Passes operations on to the system's files, records them, and lets them go wrong as the Fault says. Safe for
// concurrent use by multiple threads. Does not flush: disks are slow, and neither an error nor the end of a process
// takes from the system what it was given.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(const Fault& fault) : fault_(fault) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;

  int64_t operations() const;  // Returns how many there were so far.
  // Returns a line for each operation, such as "write checkpoints/.step-0000000002.tmp/MANIFEST".
  std::vector<std::string> log() const;

 private:
  class File;
  // Counts an operation and returns its fault. Does not return if that is kKillBefore.
  Fault::Kind Next(const char* action, const std::string& path);
  template <class Operation>
  absl::Status Do(const char* action, const std::string& path, const Operation& operation);

  const Fault fault_;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
};

}  // namespace shale

// An interface for all operations that change a disk, so that a test can count, refuse or cut short every operation of
// a save. Reading does not need it (engine/io/file.h).
//
// Every implementation is safe for concurrent use by multiple threads. Errors name the path, as in engine/io/file.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr int64_t kDirectAlignment = 4096;

// A file that is being written. Used by one thread at a time. Destruction closes it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Hints that what is written will not be read again soon, so that it need not be copied through the system's cache.
  // Then writes whose memory, offset and size are multiples of kDirectAlignment bypass the cache, where the file system
  // allows it.
  virtual void BypassCache() {}
  // Writes all of `bytes` at `offset`, which may be any. Uses pwrite, because writing to a mapping would kill the
  // process with SIGBUS on a full disk.
  virtual absl::Status WriteAt(int64_t offset, absl::string_view bytes) = 0;
  // Returns when the bytes are on the disk.
  virtual absl::Status Sync() = 0;
  // Closes the file. Some network file systems report a failed write only here. Afterwards the object may only be
  // destroyed.
  virtual absl::Status Close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a file. Returns AlreadyExists if there is something at `path`.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Creates a folder, whose parent must exist. Returns AlreadyExists if there is something at `path`.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Renames `from` to `to`. Replaces a file, or an empty folder, at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  virtual absl::Status RemoveFolder(const std::string& path) = 0;  // Fails if it is not empty.
  // Returns when the names in the folder are on the disk.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
};

// Returns the operating system's file system. It lives as long as the process.
FileSystem& PosixFileSystem();

// Removes a folder and the files in it. Returns an error if it contains a folder: nothing here makes such folders.
absl::Status RemoveFolderAndFiles(const std::string& path, FileSystem& files = PosixFileSystem());

}  // namespace shale

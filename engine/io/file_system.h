// What changes a disk, behind an interface: so that a test can count, refuse or cut short every operation of a save.
// Reading needs none of this (engine/io/file.h).
//
// Every implementation is safe to use from any thread. Errors name the path, as in engine/io/file.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr int64_t kDirectAlignment = 4096;

// A file that is being written. One thread at a time. Destruction closes it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // A hint: what is written is not read again soon, so it need not pass through the system's cache, which costs a copy.
  // Writes whose memory, offset and size are multiples of kDirectAlignment take the short way then, where there is one.
  virtual void BypassCache() {}
  // All of `bytes`, at any offset. Writes with pwrite: a writing mapping would die of SIGBUS on a full disk.
  virtual absl::Status WriteAt(int64_t offset, absl::string_view bytes) = 0;
  // Returns when the bytes are on the disk.
  virtual absl::Status Sync() = 0;
  // Some network file systems tell of a failed write only here. Nothing may follow but destruction.
  virtual absl::Status Close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new file. AlreadyExists if there is something at `path`.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // One folder, in one that exists. AlreadyExists if there is something at `path`.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Replaces a file, or an empty folder, at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  virtual absl::Status RemoveFolder(const std::string& path) = 0;  // An empty one.
  // Returns when the names in the folder are on the disk.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
};

// The system's.
FileSystem& PosixFileSystem();

// Removes a folder and the files in it. One that holds a folder is an error: nothing here makes such.
absl::Status RemoveFolderAndFiles(const std::string& path, FileSystem& files = PosixFileSystem());

}  // namespace shale

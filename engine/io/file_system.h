// FileSystem: the interface for all operations that change a disk, so that a test can count, refuse or cut short every
// operation of a save. Reading does not need it (engine/io/file.h).
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

inline constexpr int64_t kDirectAlignment = 4096;  // In bytes. See WritableFile::BypassCache.

// A file that is being written. Used by one thread at a time. Destruction closes it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Hints that the written bytes will not be read again soon, so that they need not be copied through the system's
  // cache. Writes then bypass the cache, if the file system allows it, until the first write whose memory, offset or
  // size is not a multiple of kDirectAlignment. All later writes use the cache.
  virtual void BypassCache() {}
  // Writes all of `bytes` at `offset`. Uses pwrite, because on a full disk a write to a memory mapping would kill the
  // process with SIGBUS.
  virtual absl::Status WriteAt(int64_t offset, absl::string_view bytes) = 0;
  // Waits until the written bytes are on the disk.
  virtual absl::Status Sync() = 0;
  // Closes the file. Some network file systems report a failed write only here. Afterwards the object may only be
  // destroyed.
  virtual absl::Status Close() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates an empty file and opens it for writing. Returns AlreadyExists if there is something at `path`.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Creates a folder, whose parent must exist. Returns AlreadyExists if there is something at `path`.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Renames `from` to `to`. Replaces a file, or an empty folder, at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  virtual absl::Status RemoveFolder(const std::string& path) = 0;  // Fails if the folder is not empty.
  // Waits until the names in the folder are on the disk.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
};

// Returns the file system of the operating system. The object lives as long as the process.
FileSystem& PosixFileSystem();

// Removes a folder and the files in it, and of links only the links: of a link to a folder, nothing in that folder.
// Returns an error if the folder contains another folder, because the engine does not make such folders.
absl::Status RemoveFolderAndFiles(const std::string& path, FileSystem& files = PosixFileSystem());

}  // namespace shale

// Reads entire files up to a size limit, reads files at an offset, and writes files that survive a crash. FileSystem is
// the interface for all operations that change a disk, so that a test can count, refuse or cut short every operation of
// a save. Every implementation is safe for concurrent use by multiple threads. Reading does not need it.
//
// Errors name the path, the attempted action and the system's message: "cannot open data/a.txt: Permission denied".
// Paths are passed on as given. A relative path starts at the working directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// Returns the error `cannot <action> <path>: <message of the error number>` with the status code that fits. For EIO,
// which a broken disk causes, the code is DataLoss.
absl::Status FileError(int error_number, absl::string_view action, absl::string_view path);

// Joins "runs/a" and "plan.txt" to "runs/a/plan.txt". Returns `name` if `folder` is empty or `name` is absolute.
std::string JoinPath(absl::string_view folder, absl::string_view name);

// Makes the folder and its missing parents, and makes their names durable. Returns OK if the folder exists already.
absl::Status MakeFolders(const std::string& path);
// Makes the folder that the file at `path` lies in, as MakeFolders does.
absl::Status MakeFoldersOf(const std::string& path);

// Returns whether there is a symbolic link at `path`, wherever it leads.
bool IsLink(const std::string& path);
// If the file at `path` is reached by other names too, because `path` is a link or because there are hard links to the
// file, puts a copy in its place, so that whoever writes at `path` changes nothing elsewhere. Returns OK if there is
// nothing at `path`, and ResourceExhausted for a file of more than `max_bytes`.
absl::Status MakeOwnFile(const std::string& path, int64_t max_bytes);

// Returns the names in a folder, including hidden ones, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Returns the contents of a file. Returns ResourceExhausted, without reading it, if it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Replaces the file at `path` so that after a crash it holds either the old bytes or the new ones. See DurableFile.
absl::Status WriteFileDurably(const std::string& path, absl::string_view contents,
                              FileSystem& files = PosixFileSystem());

// A regular file that is open for reading. Reads take an offset, and any number of threads may read. Does not map the
// file into memory, because mapped pages count as memory of the process, and an access to a mapped file that was cut
// short kills the process instead of failing.
class InputFile {
 public:
  // Returns InvalidArgument if `path` is not a regular file.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // In bytes, when the file was opened.
  // Distinguishes this file from another file at the same path, and from a later state of this file.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t modified_nanoseconds = 0;
    bool operator==(const Identity&) const = default;
  };
  const Identity& identity() const { return identity_; }  // When the file was opened.
  // Returns the identity that the file has now.
  absl::StatusOr<Identity> PresentIdentity() const;
  // Returns DataLoss if `then` describes another file, or another state of this file than the present one.
  absl::Status CheckUnchangedSince(const Identity& then) const;

  // Reads bytes [offset, offset + size) into `out`. Returns DataLoss if the file ends before that.
  absl::Status ReadAt(int64_t offset, void* out, int64_t size) const;
  // Hints that this file will be read from beginning to end, possibly with gaps. The system may read further ahead.
  void ReadsInOrder() const;
  // Hints that these bytes will not be read again soon. The system may reuse their cache memory for the next reads.
  // That leaves the cached data of other programs alone, and is faster than finding free memory.
  void Forget(int64_t offset, int64_t size) const;

 private:
  InputFile() = default;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  Identity identity_;
};

// A file that appears complete or not at all. WriteAt writes to a hidden temporary file beside the target, and Commit
// makes that file durable and renames it. Destruction without Commit removes it. Used by one thread at a time.
class DurableFile {
 public:
  // Creates the temporary file. Borrows `files`.
  static absl::StatusOr<DurableFile> Create(const std::string& path, FileSystem& files = PosixFileSystem());
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  ~DurableFile();

  const std::string& path() const { return path_; }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes);
  // Flushes the file, renames it to path() and flushes the folder. If only the last of these steps fails, the error
  // says that path() has its new contents. Afterwards the object may only be destroyed.
  absl::Status Commit();

 private:
  DurableFile() = default;

  FileSystem* files_ = nullptr;
  std::string path_;
  std::string temporary_path_;  // Empty once committed.
  std::unique_ptr<WritableFile> file_;
};

// Returns the folder of the user's caches that belongs to Shale: $XDG_CACHE_HOME/shale or $HOME/.cache/shale. Empty if
// neither variable is an absolute path.
std::string UserCacheFolder();

// A file that is compiled in (compiled_files.bzl).
struct CompiledFile {
  absl::string_view name, text;
};

}  // namespace shale

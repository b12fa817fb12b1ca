// Files: reads of an entire file up to a size limit, reads at an offset, and writes that survive a crash.
//
// Errors name the path, the attempted action and the system's message: "cannot open data/a.txt: Permission denied".
// Paths are passed on as given; relative ones are relative to the working directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/file_system.h"

namespace shale {

// Returns the error `cannot <action> <path>: <what errno says>` with the status code that fits. For EIO, with which a
// broken disk answers, the code is DataLoss.
absl::Status FileError(int error_number, absl::string_view action, absl::string_view path);

// Joins "runs/a" and "plan.txt" to "runs/a/plan.txt". With an empty folder or an absolute `name`, returns `name`.
std::string JoinPath(absl::string_view folder, absl::string_view name);

// Makes the folder and its missing parents. Returns OK if it exists.
absl::Status MakeFolders(const std::string& path);

// Returns the names in a folder, including hidden ones, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Returns the contents of a file. Returns ResourceExhausted, before it reads, if the file is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Replaces the file at `path` so that after a crash it holds either the old bytes or the new ones. See DurableFile.
absl::Status WriteFileDurably(const std::string& path, absl::string_view contents,
                              FileSystem& files = PosixFileSystem());

// A regular file that is open for reading. Reads take an offset; any number of threads may read. Uses reads instead of
// a memory mapping: mapped pages count as memory of the process, and when a mapped file is cut short, an access kills
// the process instead of failing.
class InputFile {
 public:
  // Returns InvalidArgument if `path` is not a regular file.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // When it was opened.
  // Distinguishes this file from another one at the same path, and from a later state of itself.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t modified_nanoseconds = 0;
    bool operator==(const Identity&) const = default;
  };
  const Identity& identity() const { return identity_; }  // When it was opened.
  // Returns DataLoss if this is another file than `then` describes, or another state of it.
  absl::Status CheckUnchangedSince(const Identity& then) const;

  // Fills out[0, size) from `offset` on. Returns DataLoss if the file now ends before that.
  absl::Status ReadAt(int64_t offset, void* out, int64_t size) const;
  // Hints that this file will be read from beginning to end, possibly with gaps. The system may read further ahead.
  void ReadsInOrder() const;
  // Hints that these bytes will not be read again soon. The system may reuse their cache memory for the next reads.
  // That preserves what others have in the cache, and is faster than finding free memory.
  void Forget(int64_t offset, int64_t size) const;

 private:
  InputFile() = default;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  Identity identity_;
};

// A file that appears complete or not at all. Bytes go to a hidden temporary file beside the target; Commit makes them
// durable and renames the file. Destruction without Commit removes the temporary file. Used by one thread at a time.
class DurableFile {
 public:
  // Creates the temporary file. Borrows `files`.
  static absl::StatusOr<DurableFile> Create(const std::string& path, FileSystem& files = PosixFileSystem());
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  ~DurableFile();

  const std::string& path() const { return path_; }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes);
  // Flushes the file, renames it to path() and flushes the folder. Afterwards the object may only be destroyed. If only
  // the last of these fails, the error says that path() has its new contents.
  absl::Status Commit();

 private:
  DurableFile() = default;

  FileSystem* files_ = nullptr;
  std::string path_;
  std::string temporary_path_;  // Empty once committed.
  std::unique_ptr<WritableFile> file_;
};

}  // namespace shale

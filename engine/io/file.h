// Files, as the engine needs them: whole reads with a cap, reads at an offset, writes that survive a crash.
//
// Errors name the path, what was tried and what the system said: "cannot open data/a.txt: Permission denied". Paths are
// passed on as given, relative ones to the working directory.
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

// `cannot <action> <path>: <what errno says>`, with the status code that fits; DataLoss for EIO, which is how a broken
// disk speaks.
absl::Status FileError(int error_number, absl::string_view action, absl::string_view path);

// "runs/a" and "plan.txt" make "runs/a/plan.txt". An empty folder adds nothing; an absolute `name` stands alone.
std::string JoinPath(absl::string_view folder, absl::string_view name);

// Makes the folder and those above it that are missing. One that exists is fine.
absl::Status MakeFolders(const std::string& path);

// The names in a folder, hidden ones too, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// The whole file. Refuses one above `max_bytes` (ResourceExhausted) before it reads.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Replaces the file at `path` so that after a crash it holds either the old bytes or the new ones. See DurableFile.
absl::Status WriteFileDurably(const std::string& path, absl::string_view contents,
                              FileSystem& files = PosixFileSystem());

// A regular file, open for reading. Reads go by offset and may come from any thread. Reads rather than a mapping: pages
// of a mapping count as our memory, and a file cut short under a mapping kills the process instead of failing a read.
class InputFile {
 public:
  // Refuses what is not a regular file (InvalidArgument).
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // When it was opened.
  // What tells this file from another one at the same path, or from a later state of itself.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t modified_nanoseconds = 0;
    bool operator==(const Identity&) const = default;
  };
  const Identity& identity() const { return identity_; }  // When it was opened.
  // DataLoss if it is now another file than that one, or another state of it.
  absl::Status CheckUnchangedSince(const Identity& then) const;

  // Fills out[0, size). DataLoss if the file now ends before that.
  absl::Status ReadAt(int64_t offset, void* out, int64_t size) const;
  // A hint: this file will be read from its beginning to its end, at most with gaps. The system may fetch further
  // ahead.
  void ReadsInOrder() const;
  // A hint: these bytes are not read again soon. The system may use their memory for what is read next, which keeps
  // what others have in its cache, and is faster than memory that has to be found.
  void Forget(int64_t offset, int64_t size) const;

 private:
  InputFile() = default;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  Identity identity_;
};

// A file that appears whole or not at all. Bytes go to a hidden temporary beside the target; Commit makes them durable
// and renames. Destroyed without Commit, it removes the temporary. One thread at a time.
class DurableFile {
 public:
  // Borrows `files`.
  static absl::StatusOr<DurableFile> Create(const std::string& path, FileSystem& files = PosixFileSystem());
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  ~DurableFile();

  const std::string& path() const { return path_; }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes);
  // Flushes the file, renames it to path() and flushes the folder. Nothing may follow but destruction.
  absl::Status Commit();

 private:
  DurableFile() = default;

  FileSystem* files_ = nullptr;
  std::string path_;
  std::string temporary_path_;  // Empty once committed.
  std::unique_ptr<WritableFile> file_;
};

}  // namespace shale

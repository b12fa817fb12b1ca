#include "engine/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxTransferBytes = int64_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes at once.

// The folder that holds `path`, and the name in it.
std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = TEMP_FAILURE_RETRY(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd < 0) return FileError(errno, "open folder", folder);
  // EINVAL: a file system that has nothing to flush for folders.
  const bool failed = TEMP_FAILURE_RETRY(fsync(fd)) != 0 && errno != EINVAL;
  const int error_number = errno;
  close(fd);
  return failed ? FileError(error_number, "flush folder", folder) : absl::OkStatus();
}

absl::Status WriteAll(int fd, const std::string& path, int64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t wanted = std::min<size_t>(bytes.size(), kMaxTransferBytes);
    const ssize_t written = TEMP_FAILURE_RETRY(pwrite(fd, bytes.data(), wanted, offset));
    if (written < 0) return FileError(errno, "write", path);
    bytes.remove_prefix(written);
    offset += written;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FileError(int error_number, absl::string_view action, absl::string_view path) {
  return absl::ErrnoToStatus(error_number, absl::StrCat("cannot ", action, " ", path));
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty() || absl::StartsWith(name, "/")) return std::string(name);
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end < path.size() && path[end] != '/') continue;
    const std::string folder = path.substr(0, end);
    if (mkdir(folder.c_str(), 0777) == 0) continue;
    const int error_number = errno;
    // mkdir may name another reason for a folder that exists, for instance EROFS.
    struct stat info;
    if (stat(folder.c_str(), &info) != 0) return FileError(error_number, "make folder", folder);
    if (!S_ISDIR(info.st_mode)) return FileError(ENOTDIR, "make folder", folder);
  }
  return path.empty() ? FileError(ENOENT, "make folder", "\"\"") : absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", file.size(), " bytes; at most ", max_bytes, " are read"));
  }
  std::string contents(file.size(), '\0');
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, contents.data(), file.size()));
  return contents;
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view contents) {
  SHALE_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  SHALE_RETURN_IF_ERROR(file.WriteAt(0, contents));
  return file.Commit();
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. It means nothing to a regular file.
  const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd < 0) return FileError(errno, "open", path);
  InputFile file;
  file.path_ = path;
  file.fd_ = fd;
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  file.size_ = info.st_size;
  file.identity_ = {.device = info.st_dev,
                    .inode = info.st_ino,
                    .size = info.st_size,
                    .modified_nanoseconds = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec};
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      identity_(other.identity_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  size_ = other.size_;
  identity_ = other.identity_;
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::ReadAt(int64_t offset, void* out, int64_t size) const {
  char* to = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = TEMP_FAILURE_RETRY(pread(fd_, to, std::min(size, kMaxTransferBytes), offset));
    if (got < 0) return FileError(errno, "read", path_);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset, "; it had ", size_,
                                              " when it was opened: it must not change while it is in use"));
    }
    to += got;
    offset += got;
    size -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path) {
  static std::atomic<int64_t> counter = 0;
  const auto [folder, name] = SplitPath(path);
  DurableFile file;
  file.path_ = path;
  // A name may be taken by what a crashed process with our id left behind.
  do {
    file.temporary_path_ = JoinPath(folder, absl::StrCat(".", name, ".tmp-", getpid(), "-", counter.fetch_add(1)));
    file.fd_ = TEMP_FAILURE_RETRY(open(file.temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (file.fd_ < 0 && errno == EEXIST);
  if (file.fd_ < 0) {
    file.temporary_path_.clear();
    return FileError(errno, "write", path);
  }
  return file;
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, "")),
      fd_(std::exchange(other.fd_, -1)) {}

DurableFile::~DurableFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

absl::Status DurableFile::WriteAt(int64_t offset, absl::string_view bytes) {
  return WriteAll(fd_, path_, offset, bytes);
}

absl::Status DurableFile::Commit() {
  if (TEMP_FAILURE_RETRY(fsync(fd_)) != 0) return FileError(errno, "flush", path_);
  // Some network file systems tell of a failed write only here.
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return FileError(errno, "close", path_);
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return FileError(errno, "replace", path_);
  temporary_path_.clear();
  return SyncFolder(SplitPath(path_).first);
}

}  // namespace shale

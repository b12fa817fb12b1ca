#include "engine/files/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxWriteBytes = int64_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes at once.

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  void BypassCache() override { direct_ = SetDirect(true); }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
    while (!bytes.empty()) {
      const size_t wanted = std::min<size_t>(bytes.size(), kMaxWriteBytes);
      if (direct_ && !Aligned(offset, bytes)) direct_ = !SetDirect(false);
      const ssize_t written = TEMP_FAILURE_RETRY(pwrite(fd_, bytes.data(), wanted, offset));
      if (written < 0 && errno == EINVAL && direct_) {
        // The file system accepts O_DIRECT, but refuses this write with it.
        direct_ = !SetDirect(false);
        continue;
      }
      if (written < 0) return FileError(errno, "write", path_);
      bytes.remove_prefix(written);
      offset += written;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    return TEMP_FAILURE_RETRY(fsync(fd_)) != 0 ? FileError(errno, "flush", path_) : absl::OkStatus();
  }

  absl::Status Close() override {
    return close(std::exchange(fd_, -1)) != 0 && errno != EINTR ? FileError(errno, "close", path_) : absl::OkStatus();
  }

 private:
  static bool Aligned(int64_t offset, absl::string_view bytes) {
    return (reinterpret_cast<uintptr_t>(bytes.data()) | static_cast<uintptr_t>(offset) | bytes.size()) %
               kDirectAlignment ==
           0;
  }
  bool SetDirect(bool on) {
    const int flags = fcntl(fd_, F_GETFL);
    return flags >= 0 && fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  const std::string path_;
  int fd_;
  bool direct_ = false;
};

class Posix : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd < 0) return FileError(errno, "write", path);
    return std::make_unique<PosixWritableFile>(path, fd);
  }
  absl::Status MakeFolder(const std::string& path) override {
    return mkdir(path.c_str(), 0777) != 0 ? FileError(errno, "make folder", path) : absl::OkStatus();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) != 0 ? FileError(errno, "replace", to) : absl::OkStatus();
  }
  absl::Status RemoveFile(const std::string& path) override {
    return unlink(path.c_str()) != 0 ? FileError(errno, "remove", path) : absl::OkStatus();
  }
  absl::Status RemoveFolder(const std::string& path) override {
    return rmdir(path.c_str()) != 0 ? FileError(errno, "remove folder", path) : absl::OkStatus();
  }
  absl::Status SyncFolder(const std::string& path) override {
    const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return FileError(errno, "open folder", path);
    // EINVAL means that the file system has nothing to flush for folders.
    const bool failed = TEMP_FAILURE_RETRY(fsync(fd)) != 0 && errno != EINVAL;
    const int error_number = errno;
    close(fd);
    return failed ? FileError(error_number, "flush folder", path) : absl::OkStatus();
  }
};

constexpr int64_t kMaxReadBytes = int64_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes at once.

// Returns the folder that holds `path`, and the name of `path` within it.
std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

InputFile::Identity IdentityOf(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size = info.st_size,
          .modified_nanoseconds = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec};
}

// Returns `status` with the path of the temporary file in its message replaced by that of the target.
absl::Status Renamed(const absl::Status& status, absl::string_view temporary, absl::string_view path) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{temporary, path}}));
}

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix& posix = *new Posix;
  return posix;
}

absl::Status RemoveFolderAndFiles(const std::string& path, FileSystem& files) {
  if (IsLink(path)) return files.RemoveFile(path);
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) SHALE_RETURN_IF_ERROR(files.RemoveFile(JoinPath(path, name)));
  return files.RemoveFolder(path);
}

absl::Status FileError(int error_number, absl::string_view action, absl::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(error_number, absl::StrCat("cannot ", action, " ", path));
  return error_number == EIO ? absl::DataLossError(status.message()) : status;
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty() || absl::StartsWith(name, "/")) return std::string(name);
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end < path.size() && path[end] != '/') continue;
    const std::string folder = path.substr(0, end);
    if (mkdir(folder.c_str(), 0777) == 0) {
      // Flushes the parent: if the new folder were lost in a crash, durable files in it would be lost too.
      const absl::Status status = PosixFileSystem().SyncFolder(SplitPath(folder).first);
      // Ignores PermissionDenied, because a process may be allowed to write to the parent and not to open it.
      if (!status.ok() && !absl::IsPermissionDenied(status)) return status;
      continue;
    }
    const int error_number = errno;
    // For a folder that exists, mkdir may report another error than EEXIST, for instance EROFS.
    struct stat info;
    if (stat(folder.c_str(), &info) != 0) return FileError(error_number, "make folder", folder);
    if (!S_ISDIR(info.st_mode)) return FileError(ENOTDIR, "make folder", folder);
  }
  return path.empty() ? FileError(ENOENT, "make folder", "\"\"") : absl::OkStatus();
}

absl::Status MakeFoldersOf(const std::string& path) { return MakeFolders(SplitPath(path).first); }

bool IsLink(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

absl::Status MakeOwnFile(const std::string& path, int64_t max_bytes) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT ? absl::OkStatus() : FileError(errno, "examine", path);
  if (!S_ISLNK(info.st_mode) && info.st_nlink <= 1) return absl::OkStatus();
  const absl::StatusOr<std::string> contents = ReadFile(path, max_bytes);
  if (absl::IsNotFound(contents.status())) return PosixFileSystem().RemoveFile(path);  // The link leads nowhere.
  if (!contents.ok()) return contents.status();
  return WriteFileDurably(path, *contents);
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return FileError(errno, "read folder", path);
  std::vector<std::string> names;
  errno = 0;  // At the end of the folder, readdir leaves errno unchanged.
  while (const dirent* entry = readdir(folder)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int error_number = errno;
  closedir(folder);
  if (error_number != 0) return FileError(error_number, "read folder", path);
  std::sort(names.begin(), names.end());
  return names;
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

absl::Status WriteFileDurably(const std::string& path, absl::string_view contents, FileSystem& files) {
  SHALE_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path, files));
  SHALE_RETURN_IF_ERROR(file.WriteAt(0, contents));
  return file.Commit();
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe without a writer would block. The flag has no effect on a regular file.
  const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd < 0) return FileError(errno, "open", path);
  InputFile file;
  file.path_ = path;
  file.fd_ = fd;
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  file.size_ = info.st_size;
  file.identity_ = IdentityOf(info);
  return file;
}

absl::StatusOr<InputFile::Identity> InputFile::PresentIdentity() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return FileError(errno, "examine", path_);
  return IdentityOf(info);
}

absl::Status InputFile::CheckUnchangedSince(const Identity& then) const {
  SHALE_ASSIGN_OR_RETURN(const Identity now, PresentIdentity());
  if (now == then) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, " changed after it was checked; it must not change while it is in use"));
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
    const ssize_t got = TEMP_FAILURE_RETRY(pread(fd_, to, std::min(size, kMaxReadBytes), offset));
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

void InputFile::ReadsInOrder() const { posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL); }

void InputFile::Forget(int64_t offset, int64_t size) const { posix_fadvise(fd_, offset, size, POSIX_FADV_DONTNEED); }

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path, FileSystem& files) {
  static std::atomic<int64_t> counter = 0;
  const auto [folder, name] = SplitPath(path);
  DurableFile file;
  file.files_ = &files;
  file.path_ = path;
  // Tries again if the name is taken: a crashed process with the same process id may have left a file of that name.
  while (true) {
    std::string temporary = JoinPath(folder, absl::StrCat(".", name, ".tmp-", getpid(), "-", counter.fetch_add(1)));
    absl::StatusOr<std::unique_ptr<WritableFile>> created = files.Create(temporary);
    if (absl::IsAlreadyExists(created.status())) continue;
    if (!created.ok()) return Renamed(created.status(), temporary, path);
    file.file_ = *std::move(created);
    file.temporary_path_ = std::move(temporary);
    return file;
  }
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, "")),
      file_(std::move(other.file_)) {}

DurableFile::~DurableFile() {
  file_ = nullptr;
  // Ignores an error, because a temporary file that stays only costs disk space.
  if (!temporary_path_.empty()) files_->RemoveFile(temporary_path_).IgnoreError();
}

absl::Status DurableFile::WriteAt(int64_t offset, absl::string_view bytes) {
  return Renamed(file_->WriteAt(offset, bytes), temporary_path_, path_);
}

absl::Status DurableFile::Commit() {
  SHALE_RETURN_IF_ERROR(Renamed(file_->Sync(), temporary_path_, path_));
  SHALE_RETURN_IF_ERROR(Renamed(file_->Close(), temporary_path_, path_));
  SHALE_RETURN_IF_ERROR(files_->Rename(temporary_path_, path_));
  temporary_path_.clear();
  const absl::Status flushed = files_->SyncFolder(SplitPath(path_).first);
  if (flushed.ok()) return flushed;
  return absl::Status(
      flushed.code(),
      absl::StrCat(path_, " has its new contents, but a crash of the machine may undo that: ", flushed.message()));
}

std::string UserCacheFolder() {
  const auto absolute = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? std::string(value) : std::string();
  };
  if (const std::string caches = absolute("XDG_CACHE_HOME"); !caches.empty()) return absl::StrCat(caches, "/shale");
  if (const std::string home = absolute("HOME"); !home.empty()) return absl::StrCat(home, "/.cache/shale");
  return "";
}

}  // namespace shale

#include "tests/engine/files/io/faulty_file_system.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

[[noreturn]] void Kill() {
  kill(getpid(), SIGKILL);
  // The signal may find another thread first.
  for (;;) pause();
}

}  // namespace

Fault::Kind FaultyFileSystem::Next(const char* action, const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.push_back(absl::StrCat(action, " ", path));
  const int64_t number = std::ssize(log_);
  if (number < fault_.first || number - fault_.first >= fault_.count) return Fault::Kind::kNone;
  if (fault_.kind == Fault::Kind::kKillBefore) Kill();
  return fault_.kind;
}

template <class Operation>
absl::Status FaultyFileSystem::Do(const char* action, const std::string& path, const Operation& operation) {
  const Fault::Kind fault = Next(action, path);
  if (fault == Fault::Kind::kError) return FileError(fault_.error_number, action, path);
  const absl::Status status = operation();
  if (fault == Fault::Kind::kKillMidway) Kill();
  return fault == Fault::Kind::kDone && status.ok() ? FileError(fault_.error_number, action, path) : status;
}

class FaultyFileSystem::File : public WritableFile {
 public:
  File(FaultyFileSystem& owner, std::string path, std::unique_ptr<WritableFile> file)
      : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}

  void BypassCache() override { file_->BypassCache(); }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
    const Fault::Kind fault = owner_.Next("write", path_);
    if (fault == Fault::Kind::kNone) return file_->WriteAt(offset, bytes);
    SHALE_RETURN_IF_ERROR(
        file_->WriteAt(offset, fault == Fault::Kind::kDone ? bytes : bytes.substr(0, bytes.size() / 2)));
    if (fault == Fault::Kind::kKillMidway) Kill();
    return FileError(owner_.fault_.error_number, "write", path_);
  }
  absl::Status Sync() override {
    return owner_.Do("flush", path_, [] { return absl::OkStatus(); });
  }
  // Closes the file even where it reports an error.
  absl::Status Close() override {
    const Fault::Kind fault = owner_.Next("close", path_);
    SHALE_RETURN_IF_ERROR(file_->Close());
    if (fault == Fault::Kind::kKillMidway) Kill();
    return fault == Fault::Kind::kNone ? absl::OkStatus() : FileError(owner_.fault_.error_number, "close", path_);
  }

 private:
  FaultyFileSystem& owner_;
  const std::string path_;
  const std::unique_ptr<WritableFile> file_;
};

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Create(const std::string& path) {
  std::unique_ptr<WritableFile> file;
  SHALE_RETURN_IF_ERROR(Do("create", path, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(file, PosixFileSystem().Create(path));
    return absl::OkStatus();
  }));
  return std::make_unique<File>(*this, path, std::move(file));
}
absl::Status FaultyFileSystem::MakeFolder(const std::string& path) {
  return Do("make folder", path, [&] { return PosixFileSystem().MakeFolder(path); });
}
absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  return Do("replace", to, [&] { return PosixFileSystem().Rename(from, to); });
}
absl::Status FaultyFileSystem::RemoveFile(const std::string& path) {
  return Do("remove", path, [&] { return PosixFileSystem().RemoveFile(path); });
}
absl::Status FaultyFileSystem::RemoveFolder(const std::string& path) {
  return Do("remove folder", path, [&] { return PosixFileSystem().RemoveFolder(path); });
}
absl::Status FaultyFileSystem::SyncFolder(const std::string& path) {
  return Do("flush folder", path, [] { return absl::OkStatus(); });
}

int64_t FaultyFileSystem::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::ssize(log_);
}

std::vector<std::string> FaultyFileSystem::log() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

}  // namespace shale

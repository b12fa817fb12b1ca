#include "tools/examples/service/job_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/shale.h"
#include "google/protobuf/text_format.h"

namespace service {
namespace {

namespace fs = std::filesystem;

absl::Status Error(int error_number, absl::string_view action, absl::string_view path) {
  return absl::ErrnoToStatus(error_number, absl::StrCat("cannot ", action, " ", path));
}

// Makes what was written at a path, or the names in a folder, survive a crash of the machine.
absl::Status Sync(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Error(errno, "open", path);
  const int failed = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return failed == 0 ? absl::OkStatus() : Error(failed, "sync", path);
}

absl::Status WriteText(const std::string& path, absl::string_view text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Sync(path) : Error(errno != 0 ? errno : EIO, "write", path);
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return Error(errno, absl::StrCat("rename ", from, " to"), to);
  return Sync(fs::path(to).parent_path());
}

std::string Text(const JobStatus& status) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(status, &text);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadText(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error(errno != 0 ? errno : EIO, "read", path);
  return std::move(text).str();
}

absl::StatusOr<JobFolders> JobFolders::Open(const std::string& folder) {
  std::error_code error;
  const std::string path = fs::absolute(folder, error).lexically_normal();
  fs::create_directories(path, error);
  if (error) return Error(error.value(), "make the folder", path);
  const std::string lock = absl::StrCat(path, "/lock");
  const int fd = open(lock.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (fd < 0) return Error(errno, "open", lock);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("another service uses ", path, "; end it, or give another --folder"));
  }
  return JobFolders(path, fd);
}

JobFolders::JobFolders(JobFolders&& other) noexcept : folder_(other.folder_), lock_(std::exchange(other.lock_, -1)) {}

JobFolders::~JobFolders() {
  if (lock_ >= 0) close(lock_);
}

std::string JobFolders::Path(absl::string_view id, absl::string_view name) const {
  return absl::StrCat(folder_, "/", id, "/", name);
}

absl::StatusOr<std::vector<JobStatus>> JobFolders::Load() const {
  std::vector<JobStatus> jobs;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder_, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string id = entry->path().filename();
    if (id == "lock") continue;
    if (id.front() == '.') {  // Of an Add that a crash interrupted: nobody was told that this job exists.
      fs::remove_all(entry->path(), ignored);
      continue;
    }
    const std::string path = Path(id, "status.textproto");
    SHALE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
    JobStatus& status = jobs.emplace_back();
    if (!google::protobuf::TextFormat::ParseFromString(text, &status) || status.id() != id) {
      return absl::DataLossError(absl::StrCat(path, " is damaged: found no status of job ", id,
                                              "; move the folder of this job elsewhere to start without it"));
    }
  }
  if (error) return Error(error.value(), "read the folder", folder_);
  std::sort(jobs.begin(), jobs.end(), [](const JobStatus& a, const JobStatus& b) { return a.place() < b.place(); });
  return jobs;
}

absl::Status JobFolders::Add(const JobStatus& status, absl::string_view job_text) const {
  const std::string hidden = absl::StrCat(".", status.id());
  std::error_code error;
  fs::remove_all(Path(hidden, ""), error);  // Of an Add that failed.
  fs::create_directory(Path(hidden, ""), error);
  if (error) return Error(error.value(), "make the folder", Path(hidden, ""));
  SHALE_RETURN_IF_ERROR(WriteText(Path(hidden, "job.textproto"), job_text));
  SHALE_RETURN_IF_ERROR(WriteText(Path(hidden, "status.textproto"), Text(status)));
  SHALE_RETURN_IF_ERROR(Sync(Path(hidden, "")));
  return Rename(absl::StrCat(folder_, "/", hidden), absl::StrCat(folder_, "/", status.id()));
}

absl::Status JobFolders::SetStatus(const JobStatus& status) const {
  const std::string path = Path(status.id(), "status.textproto");
  SHALE_RETURN_IF_ERROR(WriteText(path + ".new", Text(status)));
  return Rename(path + ".new", path);
}

}  // namespace service

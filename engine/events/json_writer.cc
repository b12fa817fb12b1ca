#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/events.h"
#include "engine/events/event_json.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

class DescriptorWriter : public EventWriter {
 public:
  explicit DescriptorWriter(int fd) : fd_(fd) {}

  absl::Status Write(const RunEvent& event) override {
    const std::string line = absl::StrCat(EventLine(event).ToString(), "\n");
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = TEMP_FAILURE_RETRY(write(fd_, line.data() + done, line.size() - done));
      if (written < 0) return FileError(errno, "write", absl::StrCat("an event to file descriptor ", fd_));
      done += static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
};

class FileWriter : public EventWriter {
 public:
  explicit FileWriter(std::unique_ptr<JsonLinesWriter> lines) : lines_(std::move(lines)) {}

  absl::Status Write(const RunEvent& event) override { return lines_->Append(EventLine(event)); }

 private:
  const std::unique_ptr<JsonLinesWriter> lines_;
};

}  // namespace

std::unique_ptr<EventWriter> WriteJsonTo(int fd) { return std::make_unique<DescriptorWriter>(fd); }

absl::StatusOr<std::unique_ptr<EventWriter>> WriteJsonFile(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  SHALE_RETURN_IF_ERROR(MakeFoldersOf(path));
  // A copy of a run folder that was made with hard links keeps its events.
  if (!IsLink(path)) SHALE_RETURN_IF_ERROR(MakeOwnFile(path, kMostBytes));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<JsonLinesWriter> lines,
                         JsonLinesWriter::Open(path, JsonLinesWriter::Mode::kContinue));
  return std::make_unique<FileWriter>(std::move(lines));
}

}  // namespace shale

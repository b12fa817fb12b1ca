#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/events.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"
#include "proto/tensorboard.pb.h"

namespace shale {
namespace {

namespace tb = proto::tensorboard;

template <class Integer>
std::string LittleEndian(Integer value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));  // All processors that Shale supports are little-endian.
  return bytes;
}

// Returns a checksum as TFRecord files store it.
std::string MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + uint32_t{0xa282ead8});
}

// Returns a message as a record of a TFRecord file: length, checksum of the length, message, checksum of the message.
std::string Record(const tb::Event& event) {
  const std::string message = event.SerializeAsString();
  const std::string length = LittleEndian(uint64_t{message.size()});
  return absl::StrCat(length, MaskedCrc(length), message, MaskedCrc(message));
}

class TensorBoardWriter : public EventWriter {
 public:
  explicit TensorBoardWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {
    tb::Event version;
    version.set_wall_time(UnixSecondsNow());
    version.set_file_version("brain.Event:2");
    pending_ = Record(version);
  }
  ~TensorBoardWriter() override {
    Flush().IgnoreError();  // The owner has flushed, or knows that it lost events.
    close(fd_);
  }

  absl::Status Write(const RunEvent& event) override {
    std::visit([&](const auto& what) { Add(event.unix_seconds, what); }, event.what);
    constexpr size_t kMostPending = size_t{1} << 20;
    return pending_.size() < kMostPending ? absl::OkStatus() : Flush();
  }

  // What could not be written is tried again with the next flush, so that the file has no half record in its middle.
  absl::Status Flush() override {
    while (!pending_.empty()) {
      const ssize_t written = TEMP_FAILURE_RETRY(write(fd_, pending_.data(), pending_.size()));
      if (written < 0) return FileError(errno, "write", path_);
      pending_.erase(0, static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

 private:
  template <class Other>
  void Add(double, const Other&) {}

  void Add(double time, const StepReport& report) {
    tb::Event event = EventAt(time, report.step);
    if (!started_) {
      started_ = true;
      tb::Event start = event;
      start.mutable_session_log()->set_status(tb::SessionLog::START);
      pending_ += Record(start);
    }
    AddValue("train/loss", report.loss, event);
    AddValue("train/gradient_norm", report.gradient_norm, event);
    AddValue("train/learning_rate", report.learning_rate, event);
    AddValue("train/tokens", static_cast<double>(report.tokens), event);
    AddValue("speed/tokens_per_second", report.tokens_per_second, event);
    AddValue("speed/seconds_per_step", report.seconds, event);
    if (report.predicted_seconds > 0) {
      AddValue("speed/predicted_seconds_per_step", report.predicted_seconds, event);
    }
    if (report.loss_scale > 0) AddValue("train/loss_scale", report.loss_scale, event);
    if (report.mfu > 0) AddValue("speed/mfu", report.mfu, event);
    AddValue("memory/peak_bytes", static_cast<double>(report.peak_bytes_measured), event);
    for (const UserMetric& metric : report.metrics) {
      AddValue(absl::StrCat("metrics/", metric.name), metric.value, event);
    }
    pending_ += Record(event);
  }

  void Add(double time, const EvaluationReport& report) {
    tb::Event event = EventAt(time, report.step);
    AddValue("evaluation/loss", report.loss, event);
    for (const SourceLoss& source : report.sources) {
      AddValue(absl::StrCat("evaluation/loss/", source.name), source.loss, event);
    }
    pending_ += Record(event);
  }

  static tb::Event EventAt(double time, int64_t step) {
    tb::Event event;
    event.set_wall_time(time);
    event.set_step(step);
    return event;
  }

  static void AddValue(const std::string& tag, double value, tb::Event& event) {
    tb::Summary::Value& added = *event.mutable_summary()->add_value();
    added.set_tag(tag);
    added.set_simple_value(static_cast<float>(value));
  }

  const std::string path_;
  const int fd_;
  bool started_ = false;  // The start of this run's steps is recorded.
  std::string pending_;   // Records that are not written yet.
};

}  // namespace

absl::StatusOr<std::unique_ptr<EventWriter>> WriteTensorBoard(const std::string& folder) {
  SHALE_RETURN_IF_ERROR(MakeFolders(folder));
  // TensorBoard reads the files of a folder in the order of their names, so the name begins with the time. The number
  // of the process keeps apart two runs that begin in the same second.
  const std::string path = JoinPath(
      folder, absl::StrFormat("events.out.tfevents.%010d.shale.%d", static_cast<int64_t>(UnixSecondsNow()), getpid()));
  const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (fd < 0) return FileError(errno, "write", path);
  return std::make_unique<TensorBoardWriter>(path, fd);
}

}  // namespace shale

// Writes files of JSON with one object per line. A run reports its progress in one (metrics.jsonl).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Builds one object. Keeps the members in the order in which they were added. Does not detect duplicate names.
class JsonObject {
 public:
  JsonObject& Add(absl::string_view name, absl::string_view value);
  JsonObject& Add(absl::string_view name, const char* value) { return Add(name, absl::string_view(value)); }
  JsonObject& Add(absl::string_view name, int64_t value);
  JsonObject& Add(absl::string_view name, int value) { return Add(name, int64_t{value}); }
  JsonObject& Add(absl::string_view name, bool value);
  // Writes the fewest digits that read back as the same double. Writes NaN and infinity, which JSON does not have, as
  // null.
  JsonObject& Add(absl::string_view name, double value);
  JsonObject& Add(absl::string_view name, const JsonObject& value) { return AddRaw(name, value.ToString()); }

  std::string ToString() const;  // {"step": 1, "loss": 5.5}

 private:
  JsonObject& AddRaw(absl::string_view name, absl::string_view json);

  std::string members_;
};

// Appends lines to a file. Passes each line to the system at once, so that a reader sees only complete lines, also
// after the process has crashed. A crash of the machine may lose the last lines. Used by one thread at a time.
class JsonLinesWriter {
 public:
  enum class Mode {
    kReplace,   // Starts with an empty file.
    kContinue,  // Keeps the existing lines. Removes an incomplete last line, which a crash may leave.
  };
  // Opens the file at `path`. Creates it if it is missing.
  static absl::StatusOr<std::unique_ptr<JsonLinesWriter>> Open(const std::string& path, Mode mode);
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;
  ~JsonLinesWriter();

  // Appends one line. If the line cannot be written, for instance because the disk is full, removes the part that was
  // written and returns an error; the next call may succeed.
  absl::Status Append(const JsonObject& object);

 private:
  JsonLinesWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
  int64_t size_ = 0;
};

}  // namespace shale

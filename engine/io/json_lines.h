// JSON, one object a line: what a run says about itself while it runs (metrics.jsonl).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string JsonQuote(absl::string_view text);

// One flat object. Members keep the order in which they were added; names are not checked for duplicates.
class JsonObject {
 public:
  JsonObject& Add(absl::string_view name, absl::string_view value);
  JsonObject& Add(absl::string_view name, const char* value) { return Add(name, absl::string_view(value)); }
  JsonObject& Add(absl::string_view name, int64_t value);
  JsonObject& Add(absl::string_view name, int value) { return Add(name, int64_t{value}); }
  JsonObject& Add(absl::string_view name, bool value);
  // The fewest digits that read back as the same double. JSON has no NaN and no infinity: they become null.
  JsonObject& Add(absl::string_view name, double value);

  std::string ToString() const;  // {"step": 1, "loss": 5.5}

 private:
  JsonObject& AddRaw(absl::string_view name, absl::string_view json);

  std::string members_;
};

// Appends lines to a file. Each is handed to the system as it is added, so that a reader, or whoever looks after a
// crash of the process, sees whole lines only; a crash of the machine may lose the last ones. One thread at a time.
class JsonLinesWriter {
 public:
  enum class Mode {
    kReplace,   // Begin with an empty file.
    kContinue,  // Keep the lines that are there; a last line without its end, from a crash, is cut off.
  };
  static absl::StatusOr<std::unique_ptr<JsonLinesWriter>> Open(const std::string& path, Mode mode);
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;
  ~JsonLinesWriter();

  // A line that fails to be written, for instance on a full disk, leaves no part of itself behind; the next may
  // succeed.
  absl::Status Append(const JsonObject& object);

 private:
  JsonLinesWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
  int64_t size_ = 0;
};

}  // namespace shale

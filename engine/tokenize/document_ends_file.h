// DocumentEndsWriter: writes the positions at which documents end (TextTokens::documents_path).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/file.h"

namespace shale {

// The file has an int64 for each document with tokens: the position after its last token. Used by one thread.
class DocumentEndsWriter {
 public:
  static absl::StatusOr<DocumentEndsWriter> Create(const std::string& path);

  // Adds `tokens` tokens. `ends` says whether a document ends after them.
  absl::Status Add(int64_t tokens, bool ends);
  // Ends the last document and makes the file durable. Afterwards the object may only be destroyed.
  absl::Status End();

 private:
  explicit DocumentEndsWriter(DurableFile file) : file_(std::move(file)) {}
  absl::Status Flush();

  DurableFile file_;
  int64_t count_ = 0;     // Tokens added.
  int64_t last_end_ = 0;  // The position at which the last document ended.
  int64_t offset_ = 0;    // Bytes written to file_.
  std::string buffer_;    // Bytes to write at offset_.
};

}  // namespace shale

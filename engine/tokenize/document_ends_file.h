// DocumentEndsWriter: writes where the documents of text end (TextTokens::documents_path).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/file.h"

namespace shale {

// The file has an int64 for each document that has tokens: the position behind its last one. Used by one thread.
class DocumentEndsWriter {
 public:
  static absl::StatusOr<DocumentEndsWriter> Create(const std::string& path);

  // Adds `tokens` tokens, behind which a document ends or not.
  absl::Status Add(int64_t tokens, bool ends);
  // Ends the last document and makes the file durable. Afterwards the object may only be destroyed.
  absl::Status End();

 private:
  explicit DocumentEndsWriter(DurableFile file) : file_(std::move(file)) {}
  absl::Status Flush();

  DurableFile file_;
  int64_t count_ = 0;     // Tokens added.
  int64_t last_end_ = 0;  // Of the last document that ended.
  int64_t offset_ = 0;    // Bytes of file_ that were written.
  std::string buffer_;    // What is to be written next.
};

}  // namespace shale

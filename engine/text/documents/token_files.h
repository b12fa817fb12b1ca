// Writes tokens to a folder of token files, which engine/files/data reads (data.format: LLMC), and beside them where
// documents end and which tokens count in the loss.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/files/hugging_face/staged_folder.h"
#include "engine/files/io/file.h"

namespace shale {

// The folder appears complete or not at all. Its files have the format of llm.c: 16-bit tokens if the vocabulary fits,
// else 32-bit tokens. Used by one thread.
class TokenFilesWriter {
 public:
  // The header of a file has 31 bits for the number of tokens.
  static constexpr int64_t kMaxTokensInFile = std::numeric_limits<int32_t>::max();

  // Returns FailedPrecondition if `folder` exists and is not empty.
  static absl::StatusOr<TokenFilesWriter> Create(const std::string& folder, int64_t vocabulary,
                                                 int64_t tokens_in_file = kMaxTokensInFile);

  // Returns how many tokens were added.
  int64_t count() const { return count_; }
  int bytes_per_token() const { return wide_ ? 4 : 2; }

  // Adds tokens. REQUIRES: each is below the vocabulary.
  absl::Status Add(absl::Span<const int32_t> tokens);
  // Returns the hidden folder that holds the files until Commit. The caller may write other files there.
  const std::string& folder() const { return folder_.path(); }
  // Ends the last file. Returns InvalidArgument if there are no tokens. Afterwards Add must not be called.
  absl::Status End();
  // Calls End, and gives the folder its name. Afterwards the object may only be destroyed.
  absl::Status Commit();

 private:
  TokenFilesWriter(StagedFolder folder, bool wide, int64_t tokens_in_file)
      : folder_(std::move(folder)), wide_(wide), tokens_in_file_(tokens_in_file) {}
  // Writes buffer_ to file_.
  absl::Status Flush();
  absl::Status EndFile();

  StagedFolder folder_;
  bool wide_;
  int64_t tokens_in_file_;
  int64_t count_ = 0;
  int files_ = 0;
  std::optional<DurableFile> file_;
  int64_t in_file_ = 0;  // Tokens of file_, those in buffer_ included.
  int64_t offset_ = 0;   // Bytes written to file_.
  std::string buffer_;   // Bytes to write at offset_.
};

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

// Bit i % 8 of byte i / 8 belongs to token i. Writes no file if all tokens count. Used by one thread.
class CountsWriter {
 public:
  explicit CountsWriter(std::string path) : path_(std::move(path)) {}

  // Adds `tokens` tokens. `counts` has 1 or 0 for each, or is empty if all of them count.
  absl::Status Add(int64_t tokens, absl::Span<const uint8_t> counts);
  // Makes the file durable, if there is one. Afterwards the object may only be destroyed.
  absl::Status End();

 private:
  absl::Status Put(bool counts);
  absl::Status Flush();

  std::string path_;
  int64_t all_ = 0;  // Tokens added before file_ exists. All of them count.
  std::optional<DurableFile> file_;
  int64_t offset_ = 0;
  std::string buffer_;
  uint8_t byte_ = 0;
  int bits_ = 0;  // Bits of byte_ that are set or cleared.
};

}  // namespace shale

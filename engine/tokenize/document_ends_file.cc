#include "engine/tokenize/document_ends_file.h"

#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kEndsBufferBytes = int64_t{1} << 16;

}  // namespace

absl::StatusOr<DocumentEndsWriter> DocumentEndsWriter::Create(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  return DocumentEndsWriter(std::move(file));
}

absl::Status DocumentEndsWriter::Add(int64_t tokens, bool ends) {
  count_ += tokens;
  if (!ends || count_ == last_end_) return absl::OkStatus();
  last_end_ = count_;
  buffer_.append(reinterpret_cast<const char*>(&count_), sizeof(count_));
  return std::ssize(buffer_) < kEndsBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status DocumentEndsWriter::Flush() {
  SHALE_RETURN_IF_ERROR(file_.WriteAt(offset_, buffer_));
  offset_ += std::ssize(buffer_);
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status DocumentEndsWriter::End() {
  SHALE_RETURN_IF_ERROR(Add(0, true));
  SHALE_RETURN_IF_ERROR(Flush());
  return file_.Commit();
}

}  // namespace shale

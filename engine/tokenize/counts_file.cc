#include "engine/tokenize/counts_file.h"

#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kCountsBufferBytes = int64_t{1} << 16;

}  // namespace

absl::Status CountsWriter::Add(int64_t tokens, absl::Span<const uint8_t> counts) {
  if (!file_ && counts.empty()) {
    all_ += tokens;
    return absl::OkStatus();
  }
  if (!file_) {
    SHALE_ASSIGN_OR_RETURN(DurableFile created, DurableFile::Create(path_));
    file_.emplace(std::move(created));
    for (; all_ > 0; --all_) SHALE_RETURN_IF_ERROR(Put(true));
  }
  for (int64_t i = 0; i < tokens; ++i) SHALE_RETURN_IF_ERROR(Put(counts.empty() || counts[i] != 0));
  return absl::OkStatus();
}

absl::Status CountsWriter::Put(bool counts) {
  byte_ |= static_cast<uint8_t>(counts) << bits_;
  if (++bits_ < 8) return absl::OkStatus();
  buffer_.push_back(static_cast<char>(byte_));
  byte_ = 0;
  bits_ = 0;
  return std::ssize(buffer_) < kCountsBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status CountsWriter::Flush() {
  SHALE_RETURN_IF_ERROR(file_->WriteAt(offset_, buffer_));
  offset_ += std::ssize(buffer_);
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status CountsWriter::End() {
  if (!file_) return absl::OkStatus();
  if (bits_ > 0) buffer_.push_back(static_cast<char>(byte_));
  SHALE_RETURN_IF_ERROR(Flush());
  return file_->Commit();
}

}  // namespace shale

#include "engine/text/documents/token_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kTokensBufferBytes = int64_t{1} << 18;

absl::string_view Bytes(const void* data, size_t bytes) {
  return absl::string_view(static_cast<const char*>(data), bytes);
}

constexpr int64_t kEndsBufferBytes = int64_t{1} << 16;

constexpr int64_t kCountsBufferBytes = int64_t{1} << 16;

}  // namespace

absl::StatusOr<TokenFilesWriter> TokenFilesWriter::Create(const std::string& folder, int64_t vocabulary,
                                                          int64_t tokens_in_file) {
  SHALE_CHECK(tokens_in_file >= 1 && tokens_in_file <= kMaxTokensInFile);
  SHALE_ASSIGN_OR_RETURN(StagedFolder staged, StagedFolder::Create(folder));
  return TokenFilesWriter(std::move(staged), vocabulary > 1 << 16, tokens_in_file);
}

absl::Status TokenFilesWriter::Add(absl::Span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (!file_) {
      const std::string name = absl::StrFormat("tokens_%05d.bin", files_++);
      SHALE_ASSIGN_OR_RETURN(DurableFile created, DurableFile::Create(JoinPath(folder_.path(), name)));
      file_.emplace(std::move(created));
      offset_ = kHeaderBytes;
    }
    const auto part = tokens.subspan(0, std::min<int64_t>(tokens.size(), tokens_in_file_ - in_file_));
    if (wide_) {
      absl::StrAppend(&buffer_, Bytes(part.data(), part.size() * sizeof(int32_t)));
    } else {
      const size_t before = buffer_.size();
      buffer_.resize(before + part.size() * sizeof(uint16_t));
      std::copy(part.begin(), part.end(), reinterpret_cast<uint16_t*>(buffer_.data() + before));
    }
    in_file_ += part.size();
    count_ += part.size();
    tokens.remove_prefix(part.size());
    if (std::ssize(buffer_) >= kTokensBufferBytes) SHALE_RETURN_IF_ERROR(Flush());
    if (in_file_ == tokens_in_file_) SHALE_RETURN_IF_ERROR(EndFile());
  }
  return absl::OkStatus();
}

absl::Status TokenFilesWriter::Flush() {
  SHALE_RETURN_IF_ERROR(file_->WriteAt(offset_, buffer_));
  offset_ += std::ssize(buffer_);
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status TokenFilesWriter::EndFile() {
  SHALE_RETURN_IF_ERROR(Flush());
  int32_t header[kHeaderBytes / sizeof(int32_t)] = {};
  header[0] = wide_ ? 20240801 : 20240520;
  header[1] = wide_ ? 7 : 1;
  header[2] = static_cast<int32_t>(in_file_);
  SHALE_RETURN_IF_ERROR(file_->WriteAt(0, Bytes(header, sizeof(header))));
  SHALE_RETURN_IF_ERROR(file_->Commit());
  file_.reset();
  in_file_ = 0;
  return absl::OkStatus();
}

absl::Status TokenFilesWriter::End() {
  if (count_ == 0) return absl::InvalidArgumentError("the data have no tokens");
  return file_ ? EndFile() : absl::OkStatus();
}

absl::Status TokenFilesWriter::Commit() {
  SHALE_RETURN_IF_ERROR(End());
  return folder_.Commit();
}

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

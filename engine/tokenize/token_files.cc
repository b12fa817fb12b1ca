#include "engine/tokenize/token_files.h"

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

}  // namespace shale

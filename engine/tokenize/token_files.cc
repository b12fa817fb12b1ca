#include "engine/tokenize/token_files.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kHeaderBytes = 1024;

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
  std::vector<uint16_t> narrow;
  while (!tokens.empty()) {
    if (!file_) {
      const std::string name = absl::StrFormat("tokens_%05d.bin", files_++);
      SHALE_ASSIGN_OR_RETURN(DurableFile created, DurableFile::Create(JoinPath(folder_.path(), name)));
      file_.emplace(std::move(created));
    }
    const auto part = tokens.subspan(0, std::min<int64_t>(tokens.size(), tokens_in_file_ - in_file_));
    const int64_t offset = kHeaderBytes + in_file_ * bytes_per_token();
    if (wide_) {
      SHALE_RETURN_IF_ERROR(file_->WriteAt(offset, Bytes(part.data(), part.size() * sizeof(int32_t))));
    } else {
      narrow.assign(part.begin(), part.end());
      SHALE_RETURN_IF_ERROR(file_->WriteAt(offset, Bytes(narrow.data(), narrow.size() * sizeof(uint16_t))));
    }
    in_file_ += part.size();
    count_ += part.size();
    tokens.remove_prefix(part.size());
    if (in_file_ == tokens_in_file_) SHALE_RETURN_IF_ERROR(EndFile());
  }
  return absl::OkStatus();
}

absl::Status TokenFilesWriter::EndFile() {
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

absl::Status TokenFilesWriter::Commit() {
  if (count_ == 0) return absl::InvalidArgumentError("the data have no tokens");
  if (file_) SHALE_RETURN_IF_ERROR(EndFile());
  return folder_.Commit();
}

}  // namespace shale

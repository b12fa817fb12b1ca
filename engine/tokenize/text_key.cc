#include "engine/tokenize/text_key.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "engine/io/crc32c.h"
#include "engine/io/input_stream.h"
#include "engine/tokenize/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 18;
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 28;

}  // namespace

void TextChecksum::Add(absl::string_view bytes) {
  crc64_ = Crc64(bytes, crc64_);
  crc32c_ = Crc32c(bytes, crc32c_);
}

void TextChecksum::AddNumber(int64_t number) {
  Add(absl::string_view(reinterpret_cast<const char*>(&number), sizeof(number)));
}

absl::Status TextChecksum::AddFile(const InputFile& file) {
  file.ReadsInOrder();
  std::string buffer;
  for (int64_t at = 0; at < file.size(); at += std::ssize(buffer)) {
    buffer.resize(std::min(kReadBytes, file.size() - at));
    SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), std::ssize(buffer)));
    Add(buffer);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextKey(const TextData& text, int version, const std::vector<std::string>& paths,
                                    std::vector<SeenFile>* seen) {
  TextChecksum sum;
  for (const int64_t choice : {int64_t{version}, int64_t{text.all_rows}, static_cast<int64_t>(text.loss_on),
                               static_cast<int64_t>(text.bad_lines)}) {
    sum.AddNumber(choice);
  }
  std::vector<const char*> names = {"tokenizer.json", "chat_template.jinja"};
  names.insert(names.end(), std::begin(kTokenizerSettingFiles), std::end(kTokenizerSettingFiles));
  for (const char* name : names) {
    const absl::StatusOr<std::string> bytes = ReadFile(JoinPath(text.tokenizer, name), kMaxTokenizerBytes);
    if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
    sum.AddNumber(bytes.ok() ? std::ssize(*bytes) : -1);
    if (bytes.ok()) sum.Add(*bytes);
  }
  for (const std::string& path : paths) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    // The name decides how the bytes are read.
    sum.AddNumber(absl::EndsWith(WithoutPacking(path), ".jsonl") ? 1 : 0);
    sum.AddNumber(static_cast<int64_t>(path.size() - WithoutPacking(path).size()));
    sum.AddNumber(file.size());
    SHALE_RETURN_IF_ERROR(sum.AddFile(file));
    seen->push_back({.path = path, .identity = file.identity()});
  }
  return absl::StrFormat("%016x%08x", sum.crc64(), sum.crc32c());
}

}  // namespace shale

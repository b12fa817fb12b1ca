#include "engine/tokenize/text_key.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "engine/data/content.h"
#include "engine/io/crc32c.h"
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

absl::StatusOr<uint64_t> TextChecksum::AddFile(const InputFile& file) {
  file.ReadsInOrder();
  std::string buffer;
  uint64_t alone = 0;
  for (int64_t at = 0; at < file.size(); at += std::ssize(buffer)) {
    buffer.resize(std::min(kReadBytes, file.size() - at));
    SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), std::ssize(buffer)));
    Add(buffer);
    alone = Crc64(buffer, alone);
  }
  return alone;
}

absl::StatusOr<std::string> TextKey(const TextData& text, int version, const std::vector<DataFile>& files,
                                    std::vector<SeenFile>* seen) {
  TextChecksum sum;
  for (const int64_t choice : {int64_t{version}, static_cast<int64_t>(text.files.format),
                               static_cast<int64_t>(text.loss_on), static_cast<int64_t>(text.bad_lines),
                               static_cast<int64_t>(text.bad_bytes), static_cast<int64_t>(text.spelled_tokens),
                               int64_t{text.allow_dropped_text}, static_cast<int64_t>(text.date.size())}) {
    sum.AddNumber(choice);
  }
  sum.Add(text.date);
  std::vector<const char*> names = {"tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                                    "additional_chat_templates/default.jinja"};
  names.insert(names.end(), std::begin(kTokenizerSettingFiles), std::end(kTokenizerSettingFiles));
  for (const char* name : names) {
    const absl::StatusOr<std::string> bytes = ReadFile(JoinPath(text.tokenizer, name), kMaxTokenizerBytes);
    if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
    sum.AddNumber(bytes.ok() ? std::ssize(*bytes) : -1);
    if (bytes.ok()) sum.Add(*bytes);
  }
  for (const DataFile& one : files) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(one.path));
    // The name may decide how the bytes are read.
    sum.AddNumber(one.rows ? 1 : 0);
    sum.AddNumber(IsNamedJsonLines(one.path) ? 1 : 0);
    sum.AddNumber(file.size());
    SHALE_ASSIGN_OR_RETURN(const uint64_t crc64, sum.AddFile(file));
    seen->push_back({.path = one.path, .content = FileContent(file.identity(), 0, file.size(), crc64)});
  }
  return absl::StrFormat("%016x%08x", sum.crc64(), sum.crc32c());
}

}  // namespace shale

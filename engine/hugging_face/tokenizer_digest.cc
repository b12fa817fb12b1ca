#include "engine/hugging_face/tokenizer_digest.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/copied_files.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::string> TokenizerDigest(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<HfFile> files, ListCopiedHfFiles(folder));
  std::string digest;
  for (const absl::string_view name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}) {
    const auto file = std::find_if(files.begin(), files.end(), [&](const HfFile& f) { return f.name == name; });
    if (file == files.end()) continue;
    SHALE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file->path, kMaxTokenizerBytes));
    absl::StrAppendFormat(&digest, "%s%s %08x", digest.empty() ? "" : ", ", name, Crc32c(bytes));
  }
  return digest;
}

}  // namespace shale

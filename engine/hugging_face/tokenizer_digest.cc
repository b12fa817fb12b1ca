#include "engine/hugging_face/tokenizer_digest.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::string> TokenizerDigest(const std::string& folder) {
  std::string digest;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}) {
    const absl::StatusOr<std::string> bytes = ReadFile(JoinPath(folder, name), kMaxTokenizerBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    if (!bytes.ok()) return bytes.status();
    absl::StrAppendFormat(&digest, "%s%s %08x", digest.empty() ? "" : ", ", name, Crc32c(*bytes));
  }
  return digest;
}

}  // namespace shale

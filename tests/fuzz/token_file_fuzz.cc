// Fuzzes token files with each format that a job can ask for. The reader must accept exactly the files that the
// format's description allows, and return their tokens.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/data_format.h"
#include "engine/files/data/token_source.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr size_t kHeaderBytes = 1024;

std::vector<int32_t> Read(const TokenSource& source, int64_t begin, int64_t end) {
  std::vector<int32_t> tokens(end - begin);
  SHALE_CHECK(source.Read(begin, end - begin, tokens.data()).ok());
  return tokens;
}

// Returns the tokens of an llm.c file with this magic number and version. Returns none if the bytes are not such a
// file.
template <typename T>
std::vector<int64_t> Llmc(absl::string_view bytes, int32_t magic, int32_t version) {
  int32_t header[3];
  if (bytes.size() < kHeaderBytes) return {};
  std::memcpy(header, bytes.data(), sizeof(header));
  if (header[0] != magic || header[1] != version || header[2] < 0) return {};
  if (bytes.size() != kHeaderBytes + static_cast<size_t>(header[2]) * sizeof(T)) return {};
  std::vector<T> tokens(header[2]);
  std::copy(bytes.begin() + kHeaderBytes, bytes.end(), reinterpret_cast<char*>(tokens.data()));
  std::vector<int64_t> wide(tokens.begin(), tokens.end());
  const bool fits =
      std::all_of(wide.begin(), wide.end(), [](int64_t token) { return token <= std::numeric_limits<int32_t>::max(); });
  return fits ? wide : std::vector<int64_t>();
}

bool HasLlmcMagic(absl::string_view bytes) {
  int32_t magic = 0;
  if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
  return magic == kGpt2Magic || magic == kLlama3Magic;
}

// The tokens of an index of Megatron lie in another file, which is not there.
bool IsMegatron(absl::string_view bytes, DataFormat format) {
  return format == DataFormat::kMegatron ||
         (format == DataFormat::kByContent && absl::StartsWith(bytes, absl::string_view("MMIDIDX\0\0", 9)));
}

bool IsNpy(absl::string_view bytes, DataFormat format) {
  return format == DataFormat::kNpy || (format == DataFormat::kByContent && absl::StartsWith(bytes, "\x93NUMPY"));
}

// Returns whether an error says that a file has a form that is not read here, although its bytes may be text.
bool IsOfOtherForm(const absl::Status& status) {
  return absl::StrContains(status.message(), ", which is not read; ") ||
         absl::StrContains(status.message(), " has JSON Lines, which only a tokenizer ");
}

// Returns the tokens that the file holds, or none if it must be refused.
std::vector<int64_t> Expected(absl::string_view bytes, DataFormat format) {
  if (IsMegatron(bytes, format)) return {};
  const bool llmc = format == DataFormat::kLlmc || (format == DataFormat::kByContent && HasLlmcMagic(bytes));
  if (!llmc) {
    if (!IsUtf8(bytes)) return {};
    // A zero byte near the start makes a file binary, unless the format says that it is text.
    if (format == DataFormat::kByContent && absl::StrContains(bytes.substr(0, kHeadBytes), '\0')) return {};
    std::vector<int64_t> tokens;
    for (const char c : bytes) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }
  const std::vector<int64_t> gpt2 = Llmc<uint16_t>(bytes, kGpt2Magic, 1);
  return gpt2.empty() ? Llmc<uint32_t>(bytes, kLlama3Magic, 7) : gpt2;
}

void CheckTokens(const TokenSource& source, const std::vector<int64_t>& expected) {
  const int64_t size = source.size();
  SHALE_CHECK(size == static_cast<int64_t>(expected.size()));
  const std::vector<int32_t> tokens = Read(source, 0, size);
  SHALE_CHECK(std::equal(tokens.begin(), tokens.end(), expected.begin(), expected.end()));
  const int64_t largest = *std::max_element(expected.begin(), expected.end());
  SHALE_CHECK(source.vocabulary() > largest);
  SHALE_CHECK(source.CheckVocabulary(largest + 1).ok());
  SHALE_CHECK(!source.CheckVocabulary(largest).ok());
  SHALE_CHECK(source.CheckLength(size - 1).ok());
  SHALE_CHECK(!source.CheckLength(size).ok());
  const int64_t third = size / 3;
  SHALE_CHECK(Read(source.Slice(third, size), 0, size - third) == Read(source, third, size));
}

void CheckTokenFile(absl::string_view bytes) {
  static const MemoryFile file("");
  file.Write(bytes);
  for (const DataFormat format :
       {DataFormat::kByContent, DataFormat::kText, DataFormat::kLlmc, DataFormat::kMegatron, DataFormat::kNpy}) {
    const absl::StatusOr<TokenSource> source = TokenSource::Open(file.path(), format);
    if (IsNpy(bytes, format)) {
      if (!source.ok()) CheckRefusal(source.status());
      if (source.ok()) SHALE_CHECK(Read(*source, 0, source->size()).size() < bytes.size());
      continue;
    }
    const std::vector<int64_t> expected = Expected(bytes, format);
    SHALE_CHECK(source.ok() == !expected.empty() || IsOfOtherForm(source.status())) << source.status();
    if (!source.ok()) {
      if (!absl::IsNotFound(source.status()) || !IsMegatron(bytes, format)) CheckRefusal(source.status());
      continue;
    }
    CheckTokens(*source, expected);
    if (source->is_text()) continue;
    // Writes the tokens as an llm.c file and reads them back.
    static const MemoryFile written("");
    written.Write(source->tokenizer() == "GPT-2 (llm.c)"
                      ? LlmcBytes(std::vector<uint16_t>(expected.begin(), expected.end()))
                      : LlmcBytes(std::vector<uint32_t>(expected.begin(), expected.end())));
    const absl::StatusOr<TokenSource> again = TokenSource::Open(written.path(), DataFormat::kByContent);
    SHALE_CHECK(again.ok()) << again.status();
    CheckTokens(*again, expected);
  }
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckTokenFile({reinterpret_cast<const char*>(data), size});
  return 0;
}

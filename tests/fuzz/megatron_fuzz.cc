// Fuzzes the pair of files of Megatron. The reader must accept exactly the pairs that the format's description allows,
// and return their tokens and documents.
//
// An input is the number of bytes of the index in two bytes, the index, and the tokens.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/sample_sources.h"
#include "engine/files/data/token_source.h"
#include "kernels/check.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

struct Contents {
  std::vector<int32_t> tokens;
  std::vector<int64_t> begins;  // Of documents, but for the first, each once.
};

// Takes a number from the front. Returns none if there are too few bytes.
template <typename T>
std::optional<T> Take(absl::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof(T)) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

template <typename T>
std::vector<T> TakeAll(absl::string_view& bytes, uint64_t count) {
  std::vector<T> values;
  while (values.size() < count) {
    const std::optional<T> value = Take<T>(bytes);
    if (!value) break;
    values.push_back(*value);
  }
  return values;
}

template <typename T>
std::optional<std::vector<int32_t>> Widened(absl::string_view bytes, uint64_t count) {
  const std::vector<T> values = TakeAll<T>(bytes, count);
  std::vector<int32_t> tokens;
  for (const T value : values) {
    if (int64_t{value} > std::numeric_limits<int32_t>::max()) return std::nullopt;
    tokens.push_back(static_cast<int32_t>(value));
  }
  return tokens;
}

// Returns what the files hold, or none if they must be refused.
std::optional<Contents> Expected(absl::string_view index, absl::string_view tokens) {
  constexpr absl::string_view kMagic("MMIDIDX\0\0", 9);
  if (index.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  index.remove_prefix(kMagic.size());
  const auto version = Take<uint64_t>(index);
  const auto type = Take<uint8_t>(index);
  const auto sequences = Take<uint64_t>(index), documents = Take<uint64_t>(index);
  if (version != 1 || (type != 1 && type != 4 && type != 8) || !documents) return std::nullopt;
  const auto lengths = TakeAll<int32_t>(index, *sequences);
  const auto offsets = TakeAll<int64_t>(index, *sequences);
  const auto boundaries = TakeAll<int64_t>(index, *documents);
  if (lengths.size() != *sequences || offsets.size() != *sequences || boundaries.size() != *documents ||
      !index.empty() || boundaries.empty()) {
    return std::nullopt;
  }
  const int64_t bytes_per_token = type == 1 ? 1 : type == 8 ? 2 : 4;
  int64_t end = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || offsets[i] != end) return std::nullopt;
    end += lengths[i] * bytes_per_token;
  }
  if (boundaries.front() != 0 || boundaries.back() != static_cast<int64_t>(*sequences) ||
      !std::is_sorted(boundaries.begin(), boundaries.end()) || static_cast<int64_t>(tokens.size()) != end || end == 0) {
    return std::nullopt;
  }
  Contents contents;
  const uint64_t count = tokens.size() / bytes_per_token;
  const auto widened = type == 1   ? Widened<uint8_t>(tokens, count)
                       : type == 8 ? Widened<uint16_t>(tokens, count)
                                   : Widened<uint32_t>(tokens, count);
  if (!widened) return std::nullopt;
  contents.tokens = *widened;
  for (const int64_t boundary : boundaries) {
    const int64_t begin = boundary == static_cast<int64_t>(*sequences) ? end : offsets[boundary];
    const bool known = !contents.begins.empty() && contents.begins.back() == begin / bytes_per_token;
    if (begin > 0 && begin < end && !known) contents.begins.push_back(begin / bytes_per_token);
  }
  return contents;
}

void CheckMegatron(absl::string_view input) {
  static const MemoryFolder folder;
  const std::optional<uint16_t> size = Take<uint16_t>(input);
  if (!size) return;
  const absl::string_view index = input.substr(0, *size), tokens = input.substr(std::min<size_t>(*size, input.size()));
  folder.Write("a.idx", index);
  folder.Write("a.bin", tokens);
  const std::optional<Contents> expected = Expected(index, tokens);
  const absl::StatusOr<TokenSource> source = TokenSource::Open(folder.Path("a.idx"), DataFormat::kMegatron);
  SHALE_CHECK(source.ok() == expected.has_value()) << source.status();
  if (!source.ok()) return CheckRefusal(source.status());
  std::vector<int32_t> read(source->size());
  SHALE_CHECK(source->Read(0, source->size(), read.data()).ok());
  SHALE_CHECK(read == expected->tokens);
  const absl::StatusOr<std::vector<int64_t>> begins = source->DocumentBegins();
  SHALE_CHECK(begins.ok()) << begins.status();
  SHALE_CHECK(*begins == expected->begins);
  // Documents can be packed, or none has two tokens.
  const auto samples = DocumentSamples::Create(*source, Packing::kPack, {}, /*sequence_length=*/4);
  if (!samples.ok()) CheckRefusal(samples.status());
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckMegatron({reinterpret_cast<const char*>(data), size});
  return 0;
}

#include "engine/files/data/data_format.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"

namespace shale {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

constexpr int64_t kScanBytes = int64_t{1} << 18;

// Returns the largest of n > 0 tokens. Works in blocks of fixed length, which compile to vector code.
template <typename T>
T Largest(const T* tokens, int64_t n) {
  constexpr int64_t kBlock = 64;
  T lanes[kBlock] = {};
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) lanes[j] = std::max(lanes[j], tokens[i + j]);
  }
  T largest = *std::max_element(lanes, lanes + kBlock);
  for (; i < n; ++i) largest = std::max(largest, tokens[i]);
  return largest;
}

template <typename T>
absl::Status Scan(const InputFile& file, TokenContents* contents,
                  const std::function<absl::Status(absl::string_view bytes)>& visit) {
  std::vector<T> buffer(std::min<int64_t>(contents->count, kScanBytes / sizeof(T)));
  contents->largest = -1;
  contents->crc64 = 0;
  for (int64_t at = 0; at < contents->count;) {
    const int64_t n = std::min<int64_t>(buffer.size(), contents->count - at);
    SHALE_RETURN_IF_ERROR(file.ReadAt(contents->header_bytes + at * sizeof(T), buffer.data(), n * sizeof(T)));
    const absl::string_view bytes(reinterpret_cast<const char*>(buffer.data()), n * sizeof(T));
    contents->crc64 = Crc64(bytes, contents->crc64);
    if (visit != nullptr) SHALE_RETURN_IF_ERROR(visit(bytes));
    if (const T largest = Largest(buffer.data(), n); int64_t{largest} > contents->largest) {
      contents->largest = largest;
      contents->largest_position = at + (std::find(buffer.begin(), buffer.begin() + n, largest) - buffer.begin());
    }
    at += n;
  }
  if (contents->largest > std::numeric_limits<int32_t>::max()) {
    return absl::DataLossError(absl::StrCat(file.path(), " is damaged: token ", contents->largest, " at position ",
                                            contents->largest_position, " is outside every vocabulary"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ScanTokens(const InputFile& file, TokenContents* contents,
                        const std::function<absl::Status(absl::string_view bytes)>& visit) {
  switch (contents->encoding.bytes_per_token) {
    case 1: return Scan<uint8_t>(file, contents, visit);
    case 2: return Scan<uint16_t>(file, contents, visit);
    case 4: return Scan<uint32_t>(file, contents, visit);
  }
  return absl::InternalError("unknown token encoding");
}

absl::Status DamagedFile(const InputFile& file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file.path(), " is damaged or was cut short: ", what));
}

const DataFormatEntry* RecognizeFormat(absl::string_view head) {
  const auto found = std::find_if(std::rbegin(kDataFormats), std::rend(kDataFormats),
                                  [&](const DataFormatEntry* format) { return format->recognizes(head); });
  return found == std::rend(kDataFormats) ? nullptr : *found;
}

const DataFormatEntry& EntryOf(DataFormat format) {
  const auto found = std::find_if(std::begin(kDataFormats), std::end(kDataFormats),
                                  [&](const DataFormatEntry* entry) { return entry->format == format; });
  SHALE_CHECK(found != std::end(kDataFormats)) << "format " << static_cast<int>(format);
  return **found;
}

bool HoldsTokens(DataFormat format) {
  return std::any_of(std::begin(kDataFormats), std::end(kDataFormats),
                     [&](const DataFormatEntry* entry) { return entry->format == format && entry != &kTextFormat; });
}

}  // namespace shale

// Fuzzes the parser of a safetensors file's JSON header, without the length before it and the data after it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "engine/files/checkpoint/safetensors.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

// Returns how many bytes of data a header describes: the largest number just before a ']', where data_offsets has its
// end. Searches the text, so that the answer does not depend on the tested parser.
int64_t DataBytes(absl::string_view json) {
  int64_t largest = 0;
  for (size_t at = json.find(']'); at != absl::string_view::npos; at = json.find(']', at + 1)) {
    size_t begin = at;
    while (begin > 0 && json[begin - 1] >= '0' && json[begin - 1] <= '9') --begin;
    int64_t number = 0;
    if (absl::SimpleAtoi(json.substr(begin, at - begin), &number)) largest = std::max(largest, number);
  }
  return largest;
}

auto Fields(const SafetensorsTensor& t) { return std::tie(t.name, t.dtype, t.shape, t.begin, t.end); }

void CheckTensors(const SafetensorsHeader& header, int64_t data_bytes) {
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    SHALE_CHECK(tensor.begin == end);
    SHALE_CHECK(tensor.size_bytes() >= 0);
    SHALE_CHECK(tensor.shape.size() <= kMaxSafetensorsDimensions);
    unsigned __int128 elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    SHALE_CHECK(elements == static_cast<unsigned __int128>(tensor.elements()));
    SHALE_CHECK(elements * BitsPerElement(tensor.dtype) == static_cast<unsigned __int128>(tensor.size_bytes()) * 8);
    end = tensor.end;
  }
  SHALE_CHECK(end == data_bytes);
}

void CheckWith(absl::string_view json, int64_t data_bytes) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, data_bytes);
  if (!header.ok()) return CheckRefusal(header.status());
  CheckTensors(*header, data_bytes);
  const std::string text = SafetensorsHeaderText(*header);
  SHALE_CHECK(text.size() % 8 == 0);
  const absl::StatusOr<SafetensorsHeader> again = ParseSafetensorsHeader(text, data_bytes);
  SHALE_CHECK(again.ok()) << again.status() << "\n" << text;
  SHALE_CHECK(again->metadata == header->metadata) << text;
  SHALE_CHECK(std::equal(header->tensors.begin(), header->tensors.end(), again->tensors.begin(), again->tensors.end(),
                         [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return Fields(a) == Fields(b); }))
      << text;
  SHALE_CHECK(SafetensorsHeaderText(*again) == text);
}

void CheckSafetensorsHeader(absl::string_view json) {
  const int64_t data_bytes = DataBytes(json);
  CheckWith(json, data_bytes);
  if (data_bytes > 0) CheckWith(json, data_bytes - 1);
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckSafetensorsHeader({reinterpret_cast<const char*>(data), size});
  return 0;
}

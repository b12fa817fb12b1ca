// Parses and writes the JSON header of a safetensors file, without access to any file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/safetensors.h"

namespace shale {

// The largest header size, N, that implementations agree to accept.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr int kMaxSafetensorsDimensions = 64;
// Limits of the entries of __metadata__, of which real files have a few, and of the tensors. They bound memory, because
// an entry or a tensor takes up to ten times as much in memory as in the file. A mixture of experts of 670B parameters
// with one tensor per expert has 90,000 tensors.
constexpr int kMaxSafetensorsMetadata = 1 << 16;
constexpr int kMaxSafetensorsTensors = 1 << 18;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // In the order in which they lie in the data.
  SafetensorsMetadata metadata;
};

// Parses and checks a header that `data_bytes` bytes of data follow. Accepts any bytes. Returns InvalidArgument,
// without the path, for every header that SafetensorsReader::Open refuses.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes);

// Returns the dtype of that name, or nothing if the format has none of that name.
std::optional<SafetensorsDType> FindSafetensorsDType(absl::string_view name);

// Returns the size of a tensor in bytes. Returns InvalidArgument if it is not a whole number of bytes, or too large to
// count.
absl::StatusOr<int64_t> SafetensorsBytes(SafetensorsDType dtype, absl::Span<const int64_t> shape);

// Returns the header as JSON, padded with spaces so that the data after it is aligned to 8 bytes.
std::string SafetensorsHeaderText(const SafetensorsHeader& header);

}  // namespace shale

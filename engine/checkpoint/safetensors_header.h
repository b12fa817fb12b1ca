// The JSON header of a safetensors file, apart from any file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/safetensors.h"

namespace shale {

// What implementations agree to accept at most, N.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr int kMaxSafetensorsDimensions = 64;
// Entries of __metadata__, which real files have a few of, and tensors. They take up to ten times as much memory as
// text; a mixture of experts of 670B parameters with a tensor per expert has 90,000 tensors.
constexpr int kMaxSafetensorsMetadata = 1 << 16;
constexpr int kMaxSafetensorsTensors = 1 << 18;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // In the order of the data.
  SafetensorsMetadata metadata;
};

// Parses and checks N bytes of header for `data_bytes` of data. Any bytes are fine as input: what the format does not
// allow (see SafetensorsReader::Open) is InvalidArgument, without the path.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes);

// The dtype of that name; nothing if the format does not have it.
std::optional<SafetensorsDType> FindSafetensorsDType(absl::string_view name);

// The bytes that `shape` takes. InvalidArgument if they are no whole number, or too many to count.
absl::StatusOr<int64_t> SafetensorsBytes(SafetensorsDType dtype, absl::Span<const int64_t> shape);

// The header as text, padded so that the data behind it is aligned to 8 bytes.
std::string SafetensorsHeaderText(const SafetensorsHeader& header);

}  // namespace shale

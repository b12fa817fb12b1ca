// Types for the allowed values of the numbers in a job spec. engine/config/ranges.h returns the range of a field.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

// The allowed values of an integer field, both ends included.
struct IntRange {
  absl::string_view path;
  int64_t min;
  int64_t max;
  bool required = false;
};

// The allowed values of a floating-point field, both ends included.
struct RealRange {
  absl::string_view path;
  double min;
  double max;
};

// The ranges of several fields.
struct FieldRanges {
  absl::Span<const IntRange> integers;
  absl::Span<const RealRange> reals;
};

// Ends that several ranges share. The upper ends keep every product of up to four sizes below 2^127, so that
// engine/config/sizes.cc can check products in 128 bits.
inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxHidden = int64_t{1} << 26;
inline constexpr int64_t kMaxLayers = int64_t{1} << 16;
inline constexpr int64_t kMaxTokens = int64_t{1} << 24;
// The smallest value of fields with which a step computes in fp32. It is a normal number of fp32.
inline constexpr double kTiny = 1e-30;

inline constexpr bool kRequired = true;  // For IntRange::required.

}  // namespace shale

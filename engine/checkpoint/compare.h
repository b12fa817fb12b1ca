// What tells two checkpoints apart as states of training, whoever wrote them and in whatever form.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/reader.h"

namespace shale {

// What is compared of a parameter.
inline constexpr std::array<SavedPart, 3> kStateParts = {SavedPart::kValue, SavedPart::kFirstMoment,
                                                         SavedPart::kSecondMoment};

// One part of a parameter, a in the one checkpoint and b in the other, as fp32.
struct PartDifference {
  int64_t different = 0;  // Elements whose bits differ.
  double largest = 0;     // |a - b|, infinite if one of them is finite and the other is not; 0 for two NaN.
  double magnitude = 0;   // The largest finite |a| or |b| of all elements.

  // The largest difference measured by the magnitude of the part: differences of single elements by their own
  // magnitude say little, for those near zero are mostly rounding noise.
  double relative() const;
};

struct ParameterDifference {
  SavedParameter parameter;
  std::array<PartDifference, 3> parts;  // As in kStateParts.
};

struct FieldDifference {
  std::string field;
  std::string a, b;  // Empty: it has none.
};

struct CheckpointDifference {
  // Of the manifests: fields that are part of the state, parameters that only one has or that have another shape.
  std::vector<FieldDifference> state;
  // How they were written: ranks, strategy, schedule, form of the values, and the fields of the job.
  std::vector<FieldDifference> writing;
  std::vector<ParameterDifference> parameters;  // Those that both have, in the order of the first.

  // Whether the state is the same. `tolerance` 0: to the bit; else as far as no relative() is above it.
  bool Equal(double tolerance) const;
};

// Reads all of both, through a CheckpointValues of each. Errors as there.
absl::StatusOr<CheckpointDifference> CompareCheckpoints(const CheckpointReader& a, const CheckpointReader& b);

// Of the finite elements of a part, but for the last.
struct PartStatistics {
  double minimum = 0, maximum = 0, mean = 0, rms = 0;  // 0 if no element is finite.
  int64_t non_finite = 0;
};
absl::StatusOr<PartStatistics> StatisticsOf(CheckpointValues& values, SavedPart part, const SavedParameter& parameter);

}  // namespace shale

// Compares the training state in two checkpoints, independent of ranks, strategy and the form of the saved values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/manifest.h"

namespace shale {

// Says how one part of a parameter, read as fp32, differs between two checkpoints a and b.
struct PartDifference {
  int64_t elements = 0;   // Elements compared. 0 if not both checkpoints have this part of the parameter.
  int64_t different = 0;  // Elements whose bits differ.
  double largest = 0;     // Largest |a - b|. Infinite if a or b is not finite and they differ; 0 for two NaNs.
  double magnitude = 0;   // Largest finite |a| or |b| of all elements.

  // Returns largest / magnitude. Divides by the magnitude of the whole part instead of dividing each difference by its
  // element, because the relative differences of elements near zero are mostly rounding noise.
  double relative() const;
};

struct ParameterDifference {
  SavedParameter parameter;
  std::vector<PartDifference> parts;  // Indexed like CheckpointDifference::parts.
};

struct FieldDifference {
  std::string field;
  std::string a, b;  // Empty if that checkpoint does not have the field.
};

struct CheckpointDifference {
  // Differences between the manifests in fields that belong to the state, and parameters that only one checkpoint has
  // or that differ in shape.
  std::vector<FieldDifference> state;
  // Differences in how the checkpoints were written: ranks, strategy, accumulation, form of the values, and the fields
  // of the job.
  std::vector<FieldDifference> writing;
  // The parts compared: "value", and the states that both have: "m", or "m (f32)" if a has several of that name.
  std::vector<std::string> parts;
  std::vector<ParameterDifference> parameters;  // The parameters that both have with the same shape, in the order of a.

  // Returns whether the state is the same. With `tolerance` 0 all bits must be equal; otherwise no relative() may
  // exceed `tolerance`.
  bool Equal(double tolerance) const;
};

// Limits of the jobs that are compared field by field; real jobs stay far below them. If one of two jobs exceeds a
// limit and their texts differ, they are reported as different without a list of fields.
inline constexpr size_t kMaxComparedJobBytes = size_t{1} << 20;
inline constexpr size_t kMaxComparedJobDepth = 64;

// Compares the manifests and every parameter that both checkpoints have with the same shape. Returns the errors of
// CheckpointValues::Read.
absl::StatusOr<CheckpointDifference> CompareCheckpoints(const CheckpointReader& a, const CheckpointReader& b);

// Statistics of one part of a parameter. All but `non_finite` describe its finite elements.
struct PartStatistics {
  double minimum = 0, maximum = 0, mean = 0, rms = 0;  // 0 if no element is finite.
  int64_t non_finite = 0;
};
// Reads a part of a parameter and returns its statistics, or the errors of CheckpointValues::Read.
absl::StatusOr<PartStatistics> StatisticsOf(CheckpointValues& values, SavedPart part, const SavedParameter& parameter);

}  // namespace shale

// The values that a checkpoint of adapters leaves to their base: how they are recognized, and in which form they count.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/manifest.h"

namespace shale {

// A digest of the values of parameters: the sum, modulo 2^64, of a hash of each element's parameter, index and bits in
// fp32. The elements may be added in any order and any division, so ranks that read a part each need only add their
// sums. It does not depend on the form in which a job stores the values. It tells models apart; it is no protection
// against somebody who makes another model with the same digest.
class ValuesDigest {
 public:
  // Adds elements [begin, begin + values.size()) of a parameter.
  void Add(absl::string_view parameter, int64_t begin, absl::Span<const float> values);
  uint64_t value() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

// Returns a digest as people read it, 16 hexadecimal digits.
std::string DigestText(uint64_t digest);

// Returns OK if `digest` is that of the base of `manifest`. Otherwise returns FailedPrecondition, which names both.
// `checkpoint` and `folder` say where the manifest and the values lie, and `field` is how a user names another folder.
// REQUIRES: manifest.base.
absl::Status CheckBaseDigest(const Manifest& manifest, absl::string_view checkpoint, absl::string_view folder,
                             uint64_t digest, absl::string_view field);
// Adds to an error of reading the base which checkpoint needs it, and how a user names another folder.
absl::Status WithBase(const absl::Status& error, const Manifest& manifest, absl::string_view checkpoint,
                      absl::string_view field);

// Reads all parameters of the base of `manifest`, and returns their digest.
absl::StatusOr<uint64_t> DigestOfBase(const Manifest& manifest, const ReadBase& read);

// The values of one parameter of the base as a run computes with them: rounded to bf16, or quantized to 4 bits and
// back, if the run stores them so.
class StoredBaseValues {
 public:
  // REQUIRES: `form` is no SPLIT.
  StoredBaseValues(ReadBase read, SavedValues form, const SavedParameter& parameter)
      : read_(std::move(read)), form_(form), parameter_(parameter) {}
  const std::string& parameter() const { return parameter_.name; }

  // Fills `out` with elements [begin, begin + out.size()). The first call for NF4 reads the entire parameter, because
  // the scales of its blocks share a mean; it keeps four bytes for each 64 elements.
  absl::Status Read(int64_t begin, absl::Span<float> out);

 private:
  absl::Status ReadNf4(int64_t begin, absl::Span<float> out);
  // Reads the absmax of all blocks.
  absl::Status ReadAbsmax();

  ReadBase read_;
  SavedValues form_;
  SavedParameter parameter_;
  std::vector<float> absmax_;  // Of NF4; empty before the first call.
  float mean_ = 0;
};

}  // namespace shale

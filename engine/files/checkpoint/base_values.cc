#include "engine/files/checkpoint/base_values.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/shard_header.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/hash.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

// The finalizer of SplitMix64 (Steele et al., 2014): a bijection in which every bit of `x` affects all bits.
inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

void ValuesDigest::Add(absl::string_view parameter, int64_t begin, absl::Span<const float> values) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;  // Odd, so that no two elements of a parameter begin alike.
  const uint64_t first = Mix(Fnv1a(parameter)) + static_cast<uint64_t>(begin) * kGolden;
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += Mix((first + i * kGolden) ^ std::bit_cast<uint32_t>(values[i]));
  }
  sum_ += sum;
}

std::string DigestText(uint64_t digest) { return absl::StrCat(absl::Hex(digest, absl::kZeroPad16)); }

absl::Status CheckBaseDigest(const Manifest& manifest, absl::string_view checkpoint, absl::string_view folder,
                             uint64_t digest, absl::string_view field) {
  SHALE_CHECK(manifest.base);
  if (digest == manifest.base->digest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      checkpoint, " holds adapters of another base: they were trained on ", manifest.base->folder, " with digest ",
      DigestText(manifest.base->digest), ", and ", folder, " now has weights with digest ", DigestText(digest),
      "; name a folder with the weights of then (", field, ")"));
}

absl::Status WithBase(const absl::Status& error, const Manifest& manifest, absl::string_view checkpoint,
                      absl::string_view field) {
  if (error.ok()) return error;
  SHALE_CHECK(manifest.base);
  // A base that is missing or damaged is no damage of the checkpoint, which would make way for an older one.
  return absl::Status(
      IsDamage(error) ? absl::StatusCode::kFailedPrecondition : error.code(),
      absl::StrCat(checkpoint, " holds adapters alone, and their base cannot be read: ", error.message(),
                   "; it was in ", manifest.base->folder, " with digest ", DigestText(manifest.base->digest),
                   ": put it back, or name another folder (", field, ")"));
}

absl::StatusOr<uint64_t> DigestOfBase(const Manifest& manifest, const ReadBase& read) {
  constexpr int64_t kBatchElements = int64_t{1} << 20;
  ValuesDigest digest;
  std::vector<float> batch(kBatchElements);
  for (const SavedParameter& parameter : manifest.parameters) {
    if (!parameter.in_base) continue;
    for (int64_t begin = 0, end = parameter.elements(); begin < end; begin += kBatchElements) {
      const auto part = absl::MakeSpan(batch).subspan(0, std::min(kBatchElements, end - begin));
      SHALE_RETURN_IF_ERROR(read(parameter.name, begin, part));
      digest.Add(parameter.name, begin, part);
    }
  }
  return digest.value();
}

absl::Status StoredBaseValues::Read(int64_t begin, absl::Span<float> out) {
  if (form_ == SavedValues::kNf4) return ReadNf4(begin, out);
  SHALE_RETURN_IF_ERROR(read_(parameter_.name, begin, out));
  if (form_ == SavedValues::kFloat32) return absl::OkStatus();
  SHALE_CHECK(form_ == SavedValues::kBFloat16);
  for (float& value : out) value = ToFloat(RoundMaster(value));
  return absl::OkStatus();
}

absl::Status StoredBaseValues::ReadAbsmax() {
  std::vector<float> weights(kNf4GroupWeights);
  for (int64_t begin = 0, end = parameter_.elements(); begin < end; begin += kNf4GroupWeights) {
    const auto group = absl::MakeSpan(weights).subspan(0, std::min(kNf4GroupWeights, end - begin));
    SHALE_RETURN_IF_ERROR(read_(parameter_.name, begin, group));
    for (int64_t i = 0; i < std::ssize(group); i += kNf4BlockWeights) {
      absmax_.push_back(AbsmaxOfNf4Block(group.subspan(i, kNf4BlockWeights)));
    }
  }
  mean_ = MeanOfAbsmax(absmax_);
  return absl::OkStatus();
}

absl::Status StoredBaseValues::ReadNf4(int64_t begin, absl::Span<float> out) {
  if (absmax_.empty()) SHALE_RETURN_IF_ERROR(ReadAbsmax());
  std::vector<float> weights(kNf4GroupWeights);
  uint8_t codes[kNf4GroupWeights / 2], absmax[kNf4GroupBlocks];
  const int64_t end = begin + std::ssize(out), elements = parameter_.elements();
  for (int64_t first = RoundDown(begin, kNf4GroupWeights); first < end; first += kNf4GroupWeights) {
    const auto group = absl::MakeSpan(weights).subspan(0, std::min(kNf4GroupWeights, elements - first));
    SHALE_RETURN_IF_ERROR(read_(parameter_.name, first, group));
    for (int64_t i = 0; i < std::ssize(group); i += kNf4BlockWeights) {
      QuantizeNf4Block(group.subspan(i, kNf4BlockWeights), codes + i / 2);
    }
    const auto blocks = absl::MakeConstSpan(absmax_).subspan(first / kNf4BlockWeights, kNf4GroupBlocks);
    const float scale = QuantizeAbsmax(blocks, mean_, absmax);
    DequantizeNf4(codes, absmax, scale, mean_, group);
    const int64_t from = std::max(begin, first), to = std::min(end, first + std::ssize(group));
    std::copy(group.begin() + (from - first), group.begin() + (to - first), out.begin() + (from - begin));
  }
  return absl::OkStatus();
}

}  // namespace shale

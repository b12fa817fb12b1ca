#include "engine/run/state/filling.h"

#include <algorithm>
#include <cmath>

#include "engine/run/state/fill_loops.h"
#include "kernels/check.h"
#include "kernels/hash.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Fills `values` with normal values of standard deviation `deviation` (Box and Muller). Elements 2i and 2i + 1 share a
// pair.
void FillNormal(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  constexpr int64_t kPairs = 256;
  double u[kPairs], v[kPairs];
  float cosines[kPairs], sines[kPairs];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (int64_t first = begin / 2; 2 * first < end; first += kPairs) {
    const int64_t count = std::min(kPairs, (end + 1) / 2 - first);
    UniformPairs(key, first, count, u, v);
    NormalPairs(deviation, u, v, count, cosines, sines);
    if (2 * first >= begin && 2 * (first + count) <= end) {  // The usual case, without a look at every element.
      float* const to = values.data() + (2 * first - begin);
      for (int64_t i = 0; i < count; ++i) {
        to[2 * i] = cosines[i];
        to[2 * i + 1] = sines[i];
      }
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = 2 * (first + i);
      if (element >= begin) values[element - begin] = cosines[i];
      if (element + 1 < end) values[element + 1 - begin] = sines[i];
    }
  }
}

// Fills `values` with uniform values of standard deviation `deviation` around 0.
void FillUniform(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  const double bound = std::sqrt(3.0) * deviation;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(bound * (2 * UniformOf(MixCounter(key + static_cast<uint64_t>(begin) + i)) - 1));
  }
}

}  // namespace

StagedFill::StagedFill(RankRuntime& runtime, absl::Span<char> staging)
    : runtime_(runtime),
      staging_(reinterpret_cast<std::byte*>(staging.data())),
      half_bytes_(RoundDown(std::ssize(staging) / 2, kAlignment)),
      pinned_(runtime.IsPinned(staging.data(), std::ssize(staging))) {}

StagedFill::~StagedFill() {
  if (copying_) runtime_.stream(StreamId::kCopy).Synchronize().IgnoreError();
}

std::byte* StagedFill::Scratch(int64_t bytes) {
  std::byte* const place = staging_ + half_ * half_bytes_ + used_bytes_;
  used_bytes_ += RoundUp(bytes, kAlignment);
  SHALE_CHECK(used_bytes_ <= half_bytes_) << "a round of " << used_bytes_ << " bytes in a half of " << half_bytes_;
  return place;
}

std::byte* StagedFill::Place(std::byte* to, int64_t bytes) {
  if (runtime_.HostAccesses(to)) {
    runtime_.stream(StreamId::kCopy).Meter(to, bytes);
    return to;
  }
  std::byte* const place = Scratch(bytes);
  copies_.push_back({to, place, bytes});
  return place;
}

absl::Status StagedFill::Send() {
  used_bytes_ = 0;
  if (copies_.empty()) return absl::OkStatus();
  Stream& stream = runtime_.stream(StreamId::kCopy);
  // The copies of the other half, which is filled next. Those of this half follow them.
  if (copying_) SHALE_RETURN_IF_ERROR(stream.Synchronize());
  copying_ = pinned_;
  for (const Copy& copy : copies_) {
    SHALE_RETURN_IF_ERROR(pinned_ ? stream.Copy(copy.to, copy.from, copy.bytes)
                                  : runtime_.Write(copy.to, copy.from, copy.bytes));
  }
  copies_.clear();
  half_ = 1 - half_;
  return absl::OkStatus();
}

absl::Status StagedFill::Finish() {
  SHALE_CHECK(used_bytes_ == 0 && copies_.empty());
  copying_ = false;
  return runtime_.stream(StreamId::kCopy).Synchronize();
}

void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values) {
  const Initializer::Kind kind = parameter.initializer.kind;
  if (kind == Initializer::Kind::kOnes || kind == Initializer::Kind::kZeros) {
    std::fill(values.begin(), values.end(), kind == Initializer::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const auto fill = kind == Initializer::Kind::kNormal ? FillNormal : FillUniform;
  // The values of a parameter depend on its name, and not on its place in the model.
  fill(MixCounter(seed ^ Fnv1a(parameter.name)), begin, parameter.initializer.standard_deviation, values);
}

}  // namespace shale

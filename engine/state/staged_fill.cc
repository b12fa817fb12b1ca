#include "engine/state/staged_fill.h"

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {

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

}  // namespace shale

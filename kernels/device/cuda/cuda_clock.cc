#include "kernels/device/cuda/cuda_clock.h"

#include <chrono>
#include <utility>

#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kReferenceServes_ns = 1'000'000'000;
constexpr int kTries = 3;

int64_t HostNow() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaClock>> CudaClock::Create(CudaRuntime& runtime) {
  std::unique_ptr<CudaClock> clock(new CudaClock(runtime));
  SHALE_ASSIGN_OR_RETURN(clock->stream_, runtime.CreateStream(CudaStreamPriority::kHighest));
  return clock;
}

CudaClock::~CudaClock() {
  if (stream_ != nullptr) runtime_.DestroyStream(stream_).IgnoreError();
}

absl::StatusOr<std::shared_ptr<const CudaClock::Reference>> CudaClock::Now() {
  std::lock_guard lock(mutex_);
  if (latest_ == nullptr || HostNow() - latest_->host_ns > kReferenceServes_ns) {
    SHALE_ASSIGN_OR_RETURN(latest_, Measure());
  }
  return latest_;
}

// Takes the fastest of a few tries, because the host may be interrupted between its two readings of the clock.
absl::StatusOr<std::shared_ptr<const CudaClock::Reference>> CudaClock::Measure() {
  auto best = std::make_shared<Reference>();
  int64_t best_ns = 0;
  for (int i = 0; i < kTries; ++i) {
    SHALE_ASSIGN_OR_RETURN(CudaEventHandle event, CudaEventHandle::Create(runtime_, CudaEventKind::kTime));
    const int64_t before = HostNow();
    SHALE_RETURN_IF_ERROR(runtime_.RecordEvent(event.get(), stream_));
    SHALE_RETURN_IF_ERROR(runtime_.SynchronizeEvent(event.get()));
    const int64_t took = HostNow() - before;
    if (i > 0 && took >= best_ns) continue;
    best_ns = took;
    best->host_ns = before + took / 2;
    best->event = std::move(event);
  }
  return best;
}

}  // namespace shale

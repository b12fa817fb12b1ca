#include "kernels/device/cuda/turn_timer.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/device/cuda/cuda_stream.h"

namespace shale {

absl::StatusOr<TurnTimer> TurnTimer::Create(CudaRuntime& runtime, CudaDevice& device, int most) {
  SHALE_CHECK(most > 0) << most;
  TurnTimer timer(runtime);
  SHALE_ASSIGN_OR_RETURN(timer.stream_, device.CreateStream("turns"));
  for (int i = 0; i <= most; ++i) {
    SHALE_ASSIGN_OR_RETURN(CudaEventHandle event, CudaEventHandle::Create(runtime, CudaEventKind::kTime));
    timer.events_.push_back(std::move(event));
  }
  return timer;
}

absl::StatusOr<std::vector<double>> TurnTimer::Round(absl::Span<const Contestant> contestants, int launches,
                                                     absl::Status& refusal) {
  SHALE_CHECK(launches > 0 && contestants.size() < events_.size()) << launches << " launches";
  SHALE_ASSIGN_OR_RETURN(CudaStream * stream, CudaStream::From(*stream_));
  refusal = absl::OkStatus();
  SHALE_RETURN_IF_ERROR(stream->Enqueue([&](cuda::StreamHandle handle) -> absl::Status {
    SHALE_RETURN_IF_ERROR(runtime_->RecordEvent(events_[0].get(), handle));
    for (size_t i = 0; i < contestants.size() && refusal.ok(); ++i) {
      // A refusal is not returned to the stream, which would fail with it.
      if (contestants[i].prepare) refusal = contestants[i].prepare();
      for (int j = 0; j < launches && refusal.ok(); ++j) refusal = contestants[i].launch(handle);
      SHALE_RETURN_IF_ERROR(runtime_->RecordEvent(events_[i + 1].get(), handle));
    }
    return absl::OkStatus();
  }));
  SHALE_RETURN_IF_ERROR(stream_->Synchronize());
  std::vector<double> seconds;
  for (size_t i = 0; i < contestants.size() && refusal.ok(); ++i) {
    SHALE_ASSIGN_OR_RETURN(const double milliseconds,
                           runtime_->ElapsedMilliseconds(events_[i].get(), events_[i + 1].get()));
    seconds.push_back(milliseconds / 1e3 / launches);
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> TurnTimer::Medians(const std::vector<Contestant>& contestants, int rounds,
                                                       int launches) {
  const size_t n = contestants.size();
  std::vector<std::vector<double>> seconds(n);
  for (int round = 0; round < rounds; ++round) {
    std::vector<Contestant> turns(n);
    for (size_t i = 0; i < n; ++i) turns[i] = contestants[(round + i) % n];
    absl::Status refusal;
    SHALE_ASSIGN_OR_RETURN(const std::vector<double> of_round, Round(turns, launches, refusal));
    SHALE_RETURN_IF_ERROR(refusal);
    for (size_t i = 0; i < n; ++i) seconds[(round + i) % n].push_back(of_round[i]);
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : seconds) {
    std::nth_element(of_one.begin(), of_one.begin() + of_one.size() / 2, of_one.end());
    medians.push_back(of_one[of_one.size() / 2]);
  }
  return medians;
}

}  // namespace shale

#include "kernels/device/cuda/cuda_host_work.h"

#include <utility>

#include "kernels/device/host_work.h"

namespace shale {

void* CudaHostWork::Add(std::function<absl::Status()> work, bool captured) {
  return &(captured ? captured_ : once_).emplace_back(Item{std::move(work), failure_.get()});
}

void CudaHostWork::Call(void* item) {
  const auto& [work, failure] = *static_cast<const Item*>(item);
  failure->Run(work);
}

absl::Status CudaHostWork::Failure::status() const {
  if (!failed_.load(std::memory_order_relaxed)) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return status_;
}

void CudaHostWork::Failure::Run(const std::function<absl::Status()>& work) {
  if (failed_.load(std::memory_order_relaxed)) return;
  absl::Status result = RunHostWork(work, stream_);
  if (result.ok()) return;
  std::lock_guard lock(mutex_);
  status_ = std::move(result);
  failed_.store(true, std::memory_order_relaxed);
}

}  // namespace shale

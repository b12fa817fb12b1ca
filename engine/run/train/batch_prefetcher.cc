#include "engine/run/train/batch_prefetcher.h"

#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/sample_parts.h"
#include "kernels/check.h"

namespace shale {

SampleBatch::SampleBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks)
    : loader_(loader), micro_batches_(micro_batches), ranks_(std::move(ranks)) {
  if (ranks_.empty()) {
    ranks_.resize(loader.shape().ranks);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  PulledSample one;
  Resize(one, loader.description(), micro_batches * loader.shape().micro_batch * loader.shape().sequence_length);
  data_.assign(ranks_.size(), one);
}

absl::StatusOr<std::vector<StepInputs>> SampleBatch::Fill(const StepSamples& step) {
  std::vector<StepInputs> all(data_.size());
  for (int64_t k = 0; k < micro_batches_; ++k) {
    for (size_t i = 0; i < all.size(); ++i) {
      SHALE_ASSIGN_OR_RETURN(const BatchCounts counts,
                             loader_.Fill(step, ranks_[i], k, Piece(PartsOf(data_[i]), k, micro_batches_)));
      all[i].valid_tokens += counts.valid_tokens;
      all[i].weight_total += counts.weight_total;
    }
  }
  SHALE_RETURN_IF_ERROR(loader_.EndStep(step));
  for (size_t i = 0; i < all.size(); ++i) {
    ForEachPart([&](const auto& part) { all[i].Set(part.item, data_[i].*part.vector); });
  }
  return all;
}

BatchPrefetcher::BatchPrefetcher(ReadBatch first, ReadBatch second) : buffers_{std::move(first), std::move(second)} {}

absl::StatusOr<std::unique_ptr<BatchPrefetcher>> BatchPrefetcher::Create(const BatchLoader& loader,
                                                                         int64_t micro_batches,
                                                                         std::vector<int> ranks) {
  const auto reader = [&]() -> ReadBatch {
    return [batch = std::make_shared<SampleBatch>(loader, micro_batches, ranks)](const StepSamples& samples) {
      return batch->Fill(samples);
    };
  };
  return Create(reader(), reader());
}

absl::StatusOr<std::unique_ptr<BatchPrefetcher>> BatchPrefetcher::Create(ReadBatch first, ReadBatch second) {
  auto prefetcher = absl::WrapUnique(new BatchPrefetcher(std::move(first), std::move(second)));
  try {
    prefetcher->thread_ = std::thread([self = prefetcher.get()] { self->Loop(); });
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread that reads the data: ", e.what(),
                                                     "; raise the limit on threads (ulimit -u)"));
  }
  return prefetcher;
}

BatchPrefetcher::~BatchPrefetcher() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

absl::StatusOr<std::vector<StepInputs>> BatchPrefetcher::Take(const StepSamples& samples, const StepSamples& next) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return state_ != State::kReading; });
  const bool expected = state_ == State::kRead && samples_ == samples;
  state_ = State::kIdle;
  absl::StatusOr<std::vector<StepInputs>> inputs = expected ? std::move(result_) : Read(back_, samples);
  if (!inputs.ok()) return inputs;
  back_ = 1 - back_;
  if (next.count == 0) return inputs;
  samples_ = next;
  state_ = State::kReading;
  wake_.notify_one();
  return inputs;
}

void BatchPrefetcher::WaitForRead() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return state_ != State::kReading; });
}

absl::StatusOr<std::vector<StepInputs>> BatchPrefetcher::Read(int buffer, const StepSamples& samples) const {
  try {
    return buffers_[buffer](samples);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("cannot allocate memory to read the data; free some on this machine");
  }
}

void BatchPrefetcher::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || state_ == State::kReading; });
    if (stop_) return;
    const int buffer = back_;
    const StepSamples samples = samples_;
    lock.unlock();
    absl::StatusOr<std::vector<StepInputs>> inputs = Read(buffer, samples);
    lock.lock();
    result_ = std::move(inputs);
    state_ = State::kRead;
    finished_.notify_one();
  }
}

}  // namespace shale

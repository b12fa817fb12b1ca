#include "tools/bench/ops_runner.h"

#include <algorithm>
#include <chrono>

#include "kernels/check.h"
#include "kernels/integers.h"
#include "tools/bench/support.h"

namespace shale {
namespace {

constexpr int kRounds = 20;
constexpr int64_t kCopies = 4;      // Copies of each kind per round.
constexpr int64_t kWholeCopy = 64;  // After this many copies the full buffer has been copied.

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

absl::Status Append(const absl::StatusOr<std::vector<double>>& more, std::vector<double>& to) {
  if (more.ok()) to.insert(to.end(), more->begin(), more->end());
  return more.status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpRunner>> OpRunner::Create(OpsMachine& machine, const OpRunnerOptions& options,
                                                           const std::vector<OpCase>& cases) {
  std::unique_ptr<OpRunner> runner(new OpRunner(machine, options));
  int64_t bytes = 0, image_bytes = 0;
  for (const OpCase& c : cases) {
    bytes = std::max(bytes, runner->OperandBytes(c) + machine.ops().ScratchBytes(c.op));
    image_bytes = std::max(image_bytes, c.size_bytes());
  }
  Device& device = machine.device();
  SHALE_ASSIGN_OR_RETURN(runner->arena_, device.Allocate(bytes + 256));
  SHALE_ASSIGN_OR_RETURN(runner->copied_, device.Allocate(2 * options.copy_bytes + kStaggerBytes));
  if (!machine.host_memory()) {
    SHALE_ASSIGN_OR_RETURN(runner->image_, device.AllocatePinned(image_bytes + 256));
  }
  SHALE_ASSIGN_OR_RETURN(runner->stream_, device.CreateStream("bench"));
  // Writes both halves of the copied buffer: as long as a page was only read, it is one shared page of zeros, and stays
  // in the caches.
  if (machine.host_memory()) std::fill_n(runner->copied_->base(), runner->copied_->size_bytes(), std::byte{1});
  for (int i = 0; i < 2; ++i) SHALE_RETURN_IF_ERROR(runner->MeasureCopies(0).status());
  return runner;
}

absl::StatusOr<double> OpRunner::MeasureCopies(int kind) {
  const int64_t bytes = machine_.CopyBytes(kind, options_.copy_bytes, 2.0 * static_cast<double>(options_.copy_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> seconds, TimeCopies(kind, bytes, 3 * kWholeCopy, 1));
  return 2.0 * static_cast<double>(bytes) / Median(seconds);
}

absl::StatusOr<OpResult> OpRunner::Measure(const OpCase& c) {
  SHALE_RETURN_IF_ERROR(Validate(c.op));
  SHALE_RETURN_IF_ERROR(machine_.ops().Prepare(c.op, machine_.ops().ScratchBytes(c.op)));
  OpResult result{.test_case = &c, .kernels = machine_.ops().KernelsOf(c.op), .copies = Copies(c)};
  SHALE_ASSIGN_OR_RETURN(const std::vector<Op> ops, BindAndFill(c));
  // The first call also wakes threads and touches new scratch memory. Only the second one estimates the time.
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> first, TimeCalls(c, ops, 2, 1));
  const double call_seconds = std::max(1e-7, first.back());
  const int64_t together = machine_.CallsTogether(call_seconds);
  const double wanted = options_.seconds / (call_seconds * static_cast<double>(together));
  const int64_t samples = std::clamp<int64_t>(static_cast<int64_t>(wanted), 1, 4000);
  const int64_t round = CeilDivide(samples, kRounds);
  const int64_t copied[] = {machine_.CopyBytes(0, options_.copy_bytes, c.bytes),
                            machine_.CopyBytes(1, options_.copy_bytes, c.bytes)};
  std::vector<double> seconds, copies[2];
  for (int i = 0; i < kRounds; ++i) {
    for (int kind = 0; kind < 2 && c.flops == 0; ++kind) {
      SHALE_RETURN_IF_ERROR(Append(TimeCopies(kind, copied[kind], kCopies, together), copies[kind]));
    }
    SHALE_RETURN_IF_ERROR(Append(TimeCalls(c, ops, round, together), seconds));
  }
  result.calls = std::ssize(seconds) * together;
  result.seconds = Median(seconds);
  result.best_seconds = Least(seconds);
  if (c.flops == 0) {
    const double share[] = {c.bytes / (2.0 * static_cast<double>(copied[0])),
                            c.bytes / (2.0 * static_cast<double>(copied[1]))};
    result.of_copy = share[0] * Median(copies[0]) / result.seconds;
    result.best_of_copy = share[0] * Least(copies[0]) / result.best_seconds;
    result.of_second_copy = share[1] * Median(copies[1]) / result.seconds;
  }
  return result;
}

absl::StatusOr<double> OpRunner::MeasureSustained(const OpCase& c, double seconds) {
  using Clock = std::chrono::steady_clock;
  SHALE_RETURN_IF_ERROR(Validate(c.op));
  SHALE_RETURN_IF_ERROR(machine_.ops().Prepare(c.op, machine_.ops().ScratchBytes(c.op)));
  SHALE_ASSIGN_OR_RETURN(const std::vector<Op> ops, BindAndFill(c));
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> first, TimeCalls(c, ops, 2, 1));
  // Half a second between two synchronizations makes their pauses negligible.
  const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(0.5 / std::max(1e-7, first.back())));
  const Scratch scratch{arena_->base() + OperandBytes(c), machine_.ops().ScratchBytes(c.op)};
  const Clock::time_point begin = Clock::now();
  double measured = 0;
  int64_t count = 0;
  for (bool last = false; !last;) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    last = elapsed >= seconds;
    int64_t times[2] = {};
    SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[0]));
    for (int64_t i = 0; i < calls; ++i) {
      SHALE_RETURN_IF_ERROR(machine_.ops().Launch(ops[next_++ % ops.size()], scratch, *stream_));
    }
    SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[1]));
    SHALE_RETURN_IF_ERROR(stream_->Synchronize());
    if (elapsed < seconds / 2 && !last) continue;
    measured += 1e-9 * static_cast<double>(std::max<int64_t>(1, times[1] - times[0]));
    count += calls;
  }
  return c.flops * static_cast<double>(count) / measured;
}

int64_t OpRunner::Copies(const OpCase& c) const {
  return std::max<int64_t>(1, CeilDivide(options_.cold_bytes, c.size_bytes()));
}

absl::StatusOr<std::vector<Op>> OpRunner::BindAndFill(const OpCase& c) {
  if (image_ != nullptr) FillOperands(c, c.Bind(image_->base()));
  std::vector<Op> ops;
  for (int64_t i = 0; i < Copies(c); ++i) {
    std::byte* base = arena_->base() + i * c.size_bytes();
    ops.push_back(c.Bind(base));
    if (image_ == nullptr) {
      FillOperands(c, ops.back());
    } else {
      SHALE_RETURN_IF_ERROR(stream_->Copy(base, image_->base(), c.size_bytes()));
    }
  }
  SHALE_RETURN_IF_ERROR(stream_->Synchronize());
  return ops;
}

absl::StatusOr<std::vector<double>> OpRunner::TimeCalls(const OpCase& c, const std::vector<Op>& ops, int64_t samples,
                                                        int64_t together) {
  const Scratch scratch{arena_->base() + OperandBytes(c), machine_.ops().ScratchBytes(c.op)};
  return Time(samples, together, [&] { return machine_.ops().Launch(ops[next_++ % ops.size()], scratch, *stream_); });
}

absl::StatusOr<std::vector<double>> OpRunner::TimeCopies(int kind, int64_t size_bytes, int64_t samples,
                                                         int64_t together) {
  return Time(samples, together, [&] {
    if (next_copy_ + size_bytes > options_.copy_bytes) next_copy_ = 0;
    std::byte* from = copied_->base() + next_copy_;
    next_copy_ += size_bytes;
    return machine_.EnqueueCopy(kind, from + options_.copy_bytes + kStaggerBytes, from, size_bytes, *stream_);
  });
}

template <class Work>
absl::StatusOr<std::vector<double>> OpRunner::Time(int64_t samples, int64_t together, const Work& work) {
  std::vector<int64_t> times(2 * samples);
  for (int64_t i = 0; i < samples; ++i) {
    if (together > 1) {
      std::byte* from = copied_->base();
      SHALE_RETURN_IF_ERROR(stream_->Copy(from + options_.copy_bytes + kStaggerBytes, from, options_.copy_bytes));
    }
    SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[2 * i]));
    for (int64_t j = 0; j < together; ++j) SHALE_RETURN_IF_ERROR(work());
    SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[2 * i + 1]));
  }
  SHALE_RETURN_IF_ERROR(stream_->Synchronize());
  std::vector<double> seconds;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t nanoseconds = std::max<int64_t>(1, times[2 * i + 1] - times[2 * i]);
    seconds.push_back(1e-9 * static_cast<double>(nanoseconds) / static_cast<double>(together));
  }
  return seconds;
}

}  // namespace shale

#include "kernels/cuda/cublaslt/tuner.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/matmul_plan.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/integers.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

constexpr int kWarmUps = 2;

// Lays out the operands from `base` on, which may be null, and sets their addresses. Returns the bytes that they take.
int64_t Place(MatMul& op, std::byte* base) {
  int64_t bytes = 0;
  for (Tensor* t : {&op.a, &op.b, &op.c_MN, &op.bias_N}) {
    if (!t->present()) continue;
    // An operand is aligned as the key says, and no better.
    const int64_t skew = MatMulKey::AlignmentOf(*t) % MatMulKey::kMaxAlignment;
    t->data = base == nullptr ? nullptr : base + bytes + skew;
    bytes += RoundUp(t->extent_bytes() + skew, MatMulKey::kMaxAlignment);
  }
  return bytes;
}

}  // namespace

int64_t Tuner::OperandBytes(const MatMul& op) {
  MatMul copy = op;
  return Place(copy, nullptr);
}

absl::StatusOr<std::unique_ptr<Tuner>> Tuner::Create(CudaRuntime& runtime, CudaDevice& device,
                                                     const CublasLtFunctions& functions, int64_t operand_bytes,
                                                     const TunerOptions& options) {
  std::unique_ptr<Tuner> tuner(new Tuner(runtime, functions, options));
  SHALE_ASSIGN_OR_RETURN(tuner->operands_, device.Allocate(std::max<int64_t>(1, operand_bytes)));
  SHALE_ASSIGN_OR_RETURN(tuner->workspace_, device.Allocate(std::max<int64_t>(1, options.workspace_bytes)));
  SHALE_ASSIGN_OR_RETURN(tuner->flushed_, device.Allocate(std::max<int64_t>(1, options.flush_bytes)));
  SHALE_ASSIGN_OR_RETURN(tuner->stream_, device.CreateStream("compute"));
  SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(device, *tuner->stream_, tuner->operands_->base(), operand_bytes));
  SHALE_ASSIGN_OR_RETURN(tuner->begin_, CudaEventHandle::Create(runtime, CudaEventKind::kTime));
  SHALE_ASSIGN_OR_RETURN(tuner->end_, CudaEventHandle::Create(runtime, CudaEventKind::kTime));
  SHALE_RETURN_IF_ERROR(functions.StatusOf("cublasLtCreate", functions.Create(&tuner->handle_)));
  return tuner;
}

Tuner::~Tuner() {
  // A destructor cannot report an error.
  if (handle_ != nullptr) (void)functions_.Destroy(handle_);
}

absl::StatusOr<std::optional<double>> Tuner::Time(const std::function<absl::Status(StreamHandle)>& enqueue,
                                                  absl::Status& refusal) {
  SHALE_ASSIGN_OR_RETURN(CudaStream * stream, CudaStream::From(*stream_));
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + options_.repetitions; ++i) {
    SHALE_RETURN_IF_ERROR(stream->Enqueue([&](StreamHandle handle) -> absl::Status {
      if (options_.flush_bytes > 0) {
        SHALE_RETURN_IF_ERROR(runtime_.SetBytesAsync(flushed_->base(), 0, options_.flush_bytes, handle));
      }
      SHALE_RETURN_IF_ERROR(runtime_.RecordEvent(begin_.get(), handle));
      refusal = enqueue(handle);  // Not returned to the stream, which would fail with it.
      return runtime_.RecordEvent(end_.get(), handle);
    }));
    SHALE_RETURN_IF_ERROR(stream_->Synchronize());
    if (!refusal.ok()) return std::nullopt;
    SHALE_ASSIGN_OR_RETURN(const double milliseconds, runtime_.ElapsedMilliseconds(begin_.get(), end_.get()));
    if (i >= kWarmUps) seconds.push_back(milliseconds / 1e3);
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

absl::StatusOr<TunedMatMul> Tuner::Tune(const MatMul& op) {
  MatMul bound = op;
  const int64_t bytes = Place(bound, operands_->base());
  SHALE_CHECK(bytes <= operands_->size_bytes()) << bytes << " bytes of operands";
  TunedMatMul tuned{.key = MatMulKey::Of(op, options_.allow_tf32)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<MatMulPlan> plan,
                         MatMulPlan::Create(functions_, handle_, tuned.key, options_.workspace_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::vector<MatMulAlgorithm> candidates, plan->Candidates(options_.candidates));
  const Scratch workspace{workspace_->base(), options_.workspace_bytes};
  absl::Status refusal;
  for (const MatMulAlgorithm& candidate : candidates) {
    refusal = plan->Use(candidate);
    if (!refusal.ok()) continue;
    SHALE_ASSIGN_OR_RETURN(const std::optional<double> seconds,
                           Time([&](StreamHandle stream) { return plan->Enqueue(bound, workspace, stream); }, refusal));
    if (!seconds) continue;
    if (tuned.timed++ == 0) tuned.first_seconds = *seconds;
    if (tuned.timed > 1 && *seconds >= tuned.seconds) continue;
    tuned.seconds = *seconds;
    tuned.algorithm = candidate;
  }
  if (tuned.timed > 0) return tuned;
  return absl::UnimplementedError(absl::StrCat("none of the ", candidates.size(),
                                               " algorithms that cuBLASLt proposes for ", tuned.key.ToString(),
                                               " can run; error of the last: ", refusal.message()));
}

}  // namespace shale::cuda

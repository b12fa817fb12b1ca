#include "kernels/cuda/cublaslt/tuner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/integers.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

constexpr int kScreeningLaunches = 2;

// Lays out the operands from `base` on, which may be null, and sets their addresses. Returns the bytes that they take.
int64_t Place(MatMul& op, std::byte* base) {
  int64_t bytes = 0;
  for (Tensor* t : {&op.a, &op.b, &op.c_MN, &op.bias_N, &op.scale_a, &op.scale_b}) {
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
  SHALE_ASSIGN_OR_RETURN(TurnTimer timer, TurnTimer::Create(runtime, device, options.finalists));
  std::unique_ptr<Tuner> tuner(new Tuner(device, functions, options, std::move(timer)));
  SHALE_ASSIGN_OR_RETURN(tuner->operands_, device.Allocate(std::max<int64_t>(1, operand_bytes)));
  SHALE_ASSIGN_OR_RETURN(tuner->workspace_, device.Allocate(std::max<int64_t>(1, options.workspace_bytes)));
  SHALE_RETURN_IF_ERROR(functions.StatusOf("cublasLtCreate", functions.Create(&tuner->handle_)));
  return tuner;
}

Tuner::~Tuner() {
  // A destructor cannot report an error.
  if (handle_ != nullptr) (void)functions_.Destroy(handle_);
}

absl::Status Tuner::Fill(bool float8) {
  if (filled_for_float8_ == float8) return absl::OkStatus();
  const auto fill = float8 ? FillWithOrdinaryFloat8s : FillWithOrdinaryValues;
  SHALE_RETURN_IF_ERROR(fill(device_, timer_.stream(), operands_->base(), operands_->size_bytes()));
  filled_for_float8_ = float8;
  return absl::OkStatus();
}

Contestant Tuner::ContestantOf(MatMulPlan& plan, const MatMul& bound, const MatMulAlgorithm& algorithm) const {
  const Scratch workspace{workspace_->base(), options_.workspace_bytes};
  return {.prepare = [&plan, &algorithm] { return plan.Use(algorithm); },
          .launch = [&plan, &bound, workspace](StreamHandle stream) { return plan.Enqueue(bound, workspace, stream); }};
}

absl::StatusOr<std::vector<Tuner::Candidate>> Tuner::Screen(MatMulPlan& plan, const MatMul& bound,
                                                            const std::vector<MatMulAlgorithm>& algorithms,
                                                            absl::Status& refusal) {
  std::vector<Candidate> candidates;
  for (const MatMulAlgorithm& algorithm : algorithms) {
    const Contestant contestant = ContestantOf(plan, bound, algorithm);
    absl::Status refused;
    // The first launch may load a kernel, so it is not timed.
    SHALE_RETURN_IF_ERROR(timer_.Round({&contestant, 1}, 1, refused).status());
    if (refused.ok()) {
      SHALE_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                             timer_.Round({&contestant, 1}, kScreeningLaunches, refused));
      if (refused.ok()) candidates.push_back({algorithm, seconds[0]});
    }
    if (!refused.ok()) refusal = refused;
  }
  if (candidates.size() > 1) {
    std::stable_sort(candidates.begin() + 1, candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  }
  return candidates;
}

absl::StatusOr<TunedMatMul> Tuner::Tune(const MatMul& op) {
  MatMul bound = op;
  const int64_t bytes = Place(bound, operands_->base());
  SHALE_CHECK(bytes <= operands_->size_bytes()) << bytes << " bytes of operands";
  SHALE_RETURN_IF_ERROR(Fill(op.is_float8()));
  TunedMatMul tuned{.key = MatMulKey::Of(op, options_.allow_tf32)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<MatMulPlan> plan,
                         MatMulPlan::Create(functions_, handle_, tuned.key, options_.workspace_bytes));
  SHALE_ASSIGN_OR_RETURN(std::vector<MatMulAlgorithm> algorithms, plan->Candidates(options_.candidates));
  const size_t proposals = algorithms.size();
  const std::vector<MatMulAlgorithm> variants = plan->Variants(algorithms, options_.variants);
  algorithms.insert(algorithms.end(), variants.begin(), variants.end());
  absl::Status refusal;
  SHALE_ASSIGN_OR_RETURN(std::vector<Candidate> finalists, Screen(*plan, bound, algorithms, refusal));
  if (finalists.empty()) {
    return absl::UnimplementedError(absl::StrCat("none of the ", proposals, " algorithms that cuBLASLt proposes for ",
                                                 tuned.key.ToString(),
                                                 " can run; error of the last: ", refusal.message()));
  }
  tuned.timed = static_cast<int>(finalists.size());
  finalists.resize(std::min<size_t>(finalists.size(), options_.finalists));

  std::vector<Contestant> contestants;
  for (const Candidate& finalist : finalists) contestants.push_back(ContestantOf(*plan, bound, finalist.algorithm));
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> medians,
                         timer_.Medians(contestants, options_.rounds, options_.launches));
  for (size_t i = 0; i < finalists.size(); ++i) finalists[i].seconds = medians[i];
  const Candidate& fastest = *std::min_element(
      finalists.begin(), finalists.end(), [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  tuned.algorithm = fastest.algorithm;
  tuned.seconds = fastest.seconds;
  tuned.first_seconds = finalists[0].seconds;
  return tuned;
}

}  // namespace shale::cuda

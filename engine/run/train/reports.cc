#include "engine/run/train/reports.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "kernels/device/device.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/ops/matmul.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Returns the loss of a sum, or 0 if it is divided by nothing.
double LossOf(double sum, TargetWeights weights, int64_t tokens, double weight) {
  const double divisor = weights == TargetWeights::kOverWeights ? weight : static_cast<double>(tokens);
  return divisor > 0 ? sum / divisor : 0;
}

// The sizes of each dimension. A CPU reaches its peak at the least size, a GPU when a matmul takes milliseconds.
constexpr int64_t kLeastSize = 1024, kLargestSize = 8192;
constexpr double kLongMatMulSeconds = 2e-3;
constexpr double kSeconds = 0.3;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Multiplies square matrices of `size` rows for kSeconds and returns the seconds that the fastest matmul took.
absl::StatusOr<double> MatMulSeconds(Device& device, Ops& ops, DType dtype, int64_t size) {
  MatMul matmul{.a = Tensor::Contiguous(dtype, {size, size}),
                .b = Tensor::Contiguous(dtype, {size, size}),
                .c_MN = Tensor::Contiguous(dtype, {size, size}),
                .transpose_b = true};
  const int64_t matrix_bytes = size * size * SizeOf(dtype), scratch_bytes = ops.ScratchBytes(matmul);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(3 * matrix_bytes + scratch_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("matmuls"));
  std::byte* at = arena->base();
  SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(device, *stream, at, 3 * matrix_bytes));
  for (Tensor* t : {&matmul.a, &matmul.b, &matmul.c_MN}) {
    t->data = at;
    at += matrix_bytes;
  }
  SHALE_RETURN_IF_ERROR(ops.Prepare(matmul, scratch_bytes));
  double best = std::numeric_limits<double>::infinity();
  const auto start = std::chrono::steady_clock::now();
  do {
    const auto begin = std::chrono::steady_clock::now();
    SHALE_RETURN_IF_ERROR(ops.Launch(matmul, {at, scratch_bytes}, *stream));
    SHALE_RETURN_IF_ERROR(stream->Synchronize());
    best = std::min(best, Seconds(begin));
  } while (Seconds(start) < kSeconds);
  return best;
}

}  // namespace

bool IsFinite(const StepOutputs& outputs) { return outputs.totals[kTotalNonFinite] == 0; }

StepReport MakeStepReport(const StepOutputs& outputs, const RunStepFacts& facts) {
  StepReport report;
  report.step = facts.step;
  report.tokens = facts.tokens;
  report.step_tokens = outputs.global_tokens;
  report.processed_tokens = facts.processed_tokens;
  report.learning_rate = facts.learning_rate;
  report.step_weight = outputs.global_weight;
  report.loss = LossOf(outputs.totals[kTotalLoss], facts.target_weights, outputs.global_tokens, outputs.global_weight);
  report.gradient_norm = std::sqrt(outputs.totals[kTotalSquaredNorm]);
  const bool weighted = facts.target_weights == TargetWeights::kNone || outputs.global_weight > 0;
  report.updated = IsFinite(outputs) && outputs.global_tokens > 0 && weighted;
  report.seconds = facts.seconds;
  report.predicted_seconds = facts.predicted_seconds;
  report.tokens_per_second = static_cast<double>(facts.processed_tokens) / report.seconds;
  report.peak_bytes_planned = facts.peak_bytes_planned;
  report.peak_bytes_measured = facts.peak_bytes_measured;
  report.loss_scale = outputs.loss_scale[kLossScaleFactor];
  report.skips = static_cast<int64_t>(outputs.loss_scale[kLossScaleSkips]);
  if (IsFinite(outputs)) return report;
  report.gradient_norm = std::nan("");
  if (report.loss_scale == 0) report.loss = std::nan("");  // A scaled gradient may overflow where the loss does not.
  return report;
}

void EvaluationSum::Add(const StepOutputs& outputs) {
  loss_ += outputs.totals[kTotalLoss];
  tokens_ += outputs.global_tokens;
  weight_ += outputs.global_weight;
}

EvaluationReport EvaluationSum::Report(int64_t step) const {
  return {.step = step, .loss = LossOf(loss_, target_weights_, tokens_, weight_), .tokens = tokens_};
}

absl::Status UserMetrics::Add(absl::string_view name, double value) {
  const auto allowed = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::StrContains("_./-", c);
  };
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a metric is ", Quoted(name), "; allowed: 1 to ",
                                                   kLongestName, " of the characters a-z 0-9 _ . / -"));
  }
  if (!std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("metric ", name, " is ", value, "; wanted a finite number"));
  }
  if (const auto found = values_.find(name); found != values_.end()) {
    found->second = value;
    return absl::OkStatus();
  }
  if (values_.size() == kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("metric ", name, " is one too many: a report has at most ", kMost, " of them"));
  }
  values_.emplace(name, value);
  return absl::OkStatus();
}

std::vector<UserMetric> UserMetrics::Take() {
  std::vector<UserMetric> taken;
  for (const auto& [name, value] : values_) taken.push_back({name, value});
  values_.clear();
  return taken;
}

double Float8PeakFlops(const Backend& backend, int64_t ranks) {
  return backend.NominalPeakFlops(DType::kFloat8E4M3) / static_cast<double>(backend.RanksSharing(ranks));
}

absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks) {
  const auto sharing = static_cast<double>(backend.RanksSharing(ranks));
  if (const double nominal = backend.NominalPeakFlops(dtype); nominal > 0) return nominal / sharing;
  // Measure on a separate device, with the ops of one of `ranks` ranks.
  SHALE_ASSIGN_OR_RETURN(const auto devices, backend.CreateDevices(/*ranks=*/1, /*synchronous=*/false));
  const std::unique_ptr<Ops> ops = backend.CreateOps(ranks, devices[0].get());
  for (int64_t size = kLeastSize;; size *= 2) {
    SHALE_ASSIGN_OR_RETURN(const double seconds, MatMulSeconds(*devices[0], *ops, dtype, size));
    const auto rows = static_cast<double>(size);
    if (seconds >= kLongMatMulSeconds || size == kLargestSize) return 2 * rows * rows * rows / seconds / sharing;
  }
}

}  // namespace shale

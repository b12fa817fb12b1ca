#include "tools/bench/format_matmuls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/matmul_key.h"
#include "kernels/device/ordinary_values.h"

namespace shale {
namespace {

using cuda::CublasLtFunctions;
using cuda::MatMulKey;
using cuda::MatMulPlan;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
constexpr FormatMatMul kFormats[] = {
    {},
    {kE4M3, kE4M3, /*fast_accumulation=*/true},
    {kE4M3, kE4M3, /*fast_accumulation=*/false},
    {kE5M2, kE4M3, /*fast_accumulation=*/true},
    {kE5M2, kE4M3, /*fast_accumulation=*/false},
    {kE4M3, kE4M3, /*fast_accumulation=*/false, /*blockwise=*/true},
    {kE5M2, kE4M3, /*fast_accumulation=*/false, /*blockwise=*/true},
};

absl::string_view NameOf(DType dtype) { return dtype == kE4M3 ? "e4m3" : dtype == kE5M2 ? "e5m2" : ToString(dtype); }

}  // namespace

std::string FormatMatMul::ToString() const {
  if (!IsFloat8(a)) return std::string(NameOf(a));
  return absl::StrCat(NameOf(a), " x ", NameOf(b), fast_accumulation ? ", fast" : "", blockwise ? ", blockwise" : "");
}

absl::StatusOr<std::unique_ptr<FormatMatMuls>> FormatMatMuls::Create(CudaRuntime& runtime, CudaDevice& device,
                                                                     const CublasLtFunctions& functions) {
  SHALE_ASSIGN_OR_RETURN(TurnTimer timer, TurnTimer::Create(runtime, device, std::size(kFormats)));
  std::unique_ptr<FormatMatMuls> made(new FormatMatMuls(device, functions, std::move(timer)));
  SHALE_ASSIGN_OR_RETURN(made->workspace_, device.Allocate(kWorkspaceBytes));
  SHALE_ASSIGN_OR_RETURN(made->scales_, device.Allocate(2 * sizeof(float)));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> ones, device.AllocatePinned(2 * sizeof(float)));
  std::fill_n(reinterpret_cast<float*>(ones->base()), 2, 1.0f);
  Stream& stream = made->timer_.stream();
  SHALE_RETURN_IF_ERROR(stream.Copy(made->scales_->base(), ones->base(), 2 * sizeof(float)));
  SHALE_RETURN_IF_ERROR(stream.Synchronize());
  SHALE_RETURN_IF_ERROR(functions.StatusOf("cublasLtCreate", functions.Create(&made->handle_)));
  return made;
}

FormatMatMuls::~FormatMatMuls() {
  // A destructor cannot report an error.
  if (handle_ != nullptr) (void)functions_.Destroy(handle_);
}

absl::StatusOr<std::unique_ptr<Arena>> FormatMatMuls::Filled(DType dtype, int64_t elements) {
  const int64_t size_bytes = elements * SizeOf(dtype);
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, device_.Allocate(size_bytes));
  const auto fill = IsFloat8(dtype) ? FillWithOrdinaryFloat8s : FillWithOrdinaryValues;
  SHALE_RETURN_IF_ERROR(fill(device_, timer_.stream(), arena->base(), size_bytes));
  return arena;
}

absl::Status FormatMatMuls::SetScales(const FormatMatMul& format, MatMul& op,
                                      std::vector<std::unique_ptr<Arena>>& arenas) {
  if (!op.is_float8()) return absl::OkStatus();
  if (!format.blockwise) {
    op.scale_a = Tensor::Contiguous(DType::kFloat32, {1}, scales_->base());
    op.scale_b = Tensor::Contiguous(DType::kFloat32, {1}, scales_->base() + sizeof(float));
    return absl::OkStatus();
  }
  op.scales = op.c_MN.dtype == DType::kFloat32 ? Float8Scales::kTiles : Float8Scales::kBlocks;
  for (const bool of_a : {true, false}) {
    const Float8ScaleMatrix matrix = of_a ? op.scales_of_a() : op.scales_of_b();
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Filled(DType::kFloat32, matrix.elements()));
    (of_a ? op.scale_a : op.scale_b) =
        Tensor::Contiguous(DType::kFloat32, {matrix.rows, matrix.columns}, arena->base());
    arenas.push_back(std::move(arena));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MatMulPlan>> FormatMatMuls::PlanOf(const MatMul& op) const {
  SHALE_ASSIGN_OR_RETURN(
      std::unique_ptr<MatMulPlan> plan,
      MatMulPlan::Create(functions_, handle_, MatMulKey::Of(op, /*allow_tf32=*/false), kWorkspaceBytes));
  SHALE_ASSIGN_OR_RETURN(const std::vector<cuda::MatMulAlgorithm> candidates, plan->Candidates(1));
  SHALE_RETURN_IF_ERROR(plan->UseFirstOf(candidates));
  return plan;
}

absl::StatusOr<std::vector<FormatRate>> FormatMatMuls::Measure(int64_t m, int64_t n, int64_t k, DType c_dtype,
                                                               int rounds, int launches) {
  std::map<DType, std::unique_ptr<Arena>> a, b;  // The operands of each format, once.
  std::vector<std::unique_ptr<Arena>> scales;    // Those of tiles and blocks.
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> c, device_.Allocate(m * n * SizeOf(c_dtype)));
  const auto operand = [&](DType dtype, int64_t rows, auto& arenas) -> absl::StatusOr<Tensor> {
    std::unique_ptr<Arena>& arena = arenas[dtype];
    if (arena == nullptr) {
      SHALE_ASSIGN_OR_RETURN(arena, Filled(dtype, rows * k));
    }
    return Tensor::Contiguous(dtype, {rows, k}, arena->base());
  };
  std::vector<FormatRate> rates;
  std::vector<std::unique_ptr<MatMulPlan>> plans;
  std::vector<Contestant> contestants;
  std::vector<size_t> measured;  // The places of the contestants in `rates`.
  for (const FormatMatMul& format : kFormats) {
    FormatRate& rate = rates.emplace_back();
    rate.matmul = format;
    MatMul op{.c_MN = Tensor::Contiguous(c_dtype, {m, n}, c->base()),
              .transpose_b = true,
              .fast_accumulation = format.fast_accumulation};
    SHALE_ASSIGN_OR_RETURN(op.a, operand(format.a, m, a));
    SHALE_ASSIGN_OR_RETURN(op.b, operand(format.b, n, b));
    SHALE_RETURN_IF_ERROR(SetScales(format, op, scales));
    absl::StatusOr<std::unique_ptr<MatMulPlan>> plan = PlanOf(op);
    absl::Status refusal = plan.status();
    if (plan.ok()) {
      const Contestant contestant = {
          .launch = [plan = plan->get(), op, workspace = workspace_->base()](cuda::StreamHandle stream) {
            return plan->Enqueue(op, {workspace, kWorkspaceBytes}, stream);
          }};
      // The first launch may load a kernel, or be refused.
      SHALE_RETURN_IF_ERROR(timer_.Round({&contestant, 1}, 1, refusal).status());
      if (refusal.ok()) {
        contestants.push_back(contestant);
        plans.push_back(*std::move(plan));
        measured.push_back(rates.size() - 1);
      }
    }
    if (!refusal.ok()) rate.why_not = std::string(refusal.message());
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> medians, timer_.Medians(contestants, rounds, launches));
  for (size_t i = 0; i < measured.size(); ++i) rates[measured[i]].seconds = medians[i];
  return rates;
}

}  // namespace shale

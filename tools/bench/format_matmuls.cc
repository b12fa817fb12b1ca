#include "tools/bench/format_matmuls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/ordinary_values.h"
#include "tools/bench/float8.h"

namespace shale {
namespace {

using cuda::CublasLtFunctions;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// Operands repeat after so many bytes. That is random enough for the power that a matmul draws.
constexpr int64_t kPatternBytes = 1 << 20;

constexpr FormatMatMul kFormats[] = {
    {},
    {OperandFormat::kE4M3, OperandFormat::kE4M3, /*fast_accumulation=*/true},
    {OperandFormat::kE4M3, OperandFormat::kE4M3, /*fast_accumulation=*/false},
    {OperandFormat::kE5M2, OperandFormat::kE4M3, /*fast_accumulation=*/true},
    {OperandFormat::kE5M2, OperandFormat::kE4M3, /*fast_accumulation=*/false},
};

int64_t BytesOf(OperandFormat format) { return format == OperandFormat::kBFloat16 ? 2 : 1; }

cudaDataType_t TypeOf(OperandFormat format) {
  switch (format) {
    case OperandFormat::kBFloat16: return CUDA_R_16BF;
    case OperandFormat::kE4M3: return CUDA_R_8F_E4M3;
    case OperandFormat::kE5M2: return CUDA_R_8F_E5M2;
  }
  return CUDA_R_16BF;
}

absl::string_view NameOf(OperandFormat format) {
  switch (format) {
    case OperandFormat::kBFloat16: return "bf16";
    case OperandFormat::kE4M3: return "e4m3";
    case OperandFormat::kE5M2: return "e5m2";
  }
  return "";
}

}  // namespace

std::string FormatMatMul::ToString() const {
  if (a == OperandFormat::kBFloat16) return "bf16";
  return absl::StrCat(NameOf(a), " x ", NameOf(b), fast_accumulation ? ", fast" : "");
}

// The descriptors of one matmul, and the algorithm that the library proposes first. The library stores matrices by
// columns: its A is our b, its B is our a, and both have K rows.
class FormatMatMuls::Plan {
 public:
  static absl::StatusOr<std::unique_ptr<Plan>> Create(const CublasLtFunctions& functions, cublasLtHandle_t handle,
                                                      const FormatMatMul& matmul, int64_t m, int64_t n, int64_t k,
                                                      DType c_dtype) {
    std::unique_ptr<Plan> plan(new Plan(functions, handle));
    const auto layout = [&](cudaDataType_t type, int64_t rows, int64_t columns, cublasLtMatrixLayout_t& to) {
      return functions.StatusOf("cublasLtMatrixLayoutCreate",
                                functions.MatrixLayoutCreate(&to, type, rows, columns, rows));
    };
    SHALE_RETURN_IF_ERROR(functions.StatusOf(
        "cublasLtMatmulDescCreate", functions.MatmulDescCreate(&plan->matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    SHALE_RETURN_IF_ERROR(plan->Set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T}));
    SHALE_RETURN_IF_ERROR(plan->Set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_N}));
    if (matmul.a != OperandFormat::kBFloat16) {
      SHALE_RETURN_IF_ERROR(plan->Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(matmul.fast_accumulation)));
    }
    SHALE_RETURN_IF_ERROR(layout(TypeOf(matmul.b), k, n, plan->a_));
    SHALE_RETURN_IF_ERROR(layout(TypeOf(matmul.a), k, m, plan->b_));
    SHALE_RETURN_IF_ERROR(layout(c_dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F, n, m, plan->c_));
    SHALE_RETURN_IF_ERROR(plan->Choose());
    return plan;
  }
  ~Plan() {
    // A destructor cannot report an error.
    for (cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
      if (layout != nullptr) (void)functions_.MatrixLayoutDestroy(layout);
    }
    if (matmul_ != nullptr) (void)functions_.MatmulDescDestroy(matmul_);
  }

  absl::Status Launch(const std::byte* a, const std::byte* b, std::byte* c, std::byte* workspace,
                      cuda::StreamHandle stream) const {
    const float alpha = 1, beta = 0;
    return functions_.StatusOf(
        "cublasLtMatmul",
        functions_.Matmul(handle_, matmul_, &alpha, b, a_, a, b_, &beta, c, c_, c, c_, &algorithm_, workspace,
                          static_cast<size_t>(kWorkspaceBytes), static_cast<cudaStream_t>(stream)));
  }

 private:
  Plan(const CublasLtFunctions& functions, cublasLtHandle_t handle) : functions_(functions), handle_(handle) {}

  template <class Value>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    return functions_.StatusOf("cublasLtMatmulDescSetAttribute",
                               functions_.MatmulDescSetAttribute(matmul_, attribute, &value, sizeof(value)));
  }

  absl::Status Choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    SHALE_RETURN_IF_ERROR(
        functions_.StatusOf("cublasLtMatmulPreferenceCreate", functions_.MatmulPreferenceCreate(&preference)));
    const auto workspace = static_cast<uint64_t>(kWorkspaceBytes);
    absl::Status status =
        functions_.StatusOf("cublasLtMatmulPreferenceSetAttribute",
                            functions_.MatmulPreferenceSetAttribute(
                                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    if (status.ok()) {
      status = functions_.StatusOf(
          "cublasLtMatmulAlgoGetHeuristic",
          functions_.MatmulAlgoGetHeuristic(handle_, matmul_, a_, b_, c_, c_, preference, 1, &result, &found));
    }
    (void)functions_.MatmulPreferenceDestroy(preference);
    SHALE_RETURN_IF_ERROR(status);
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
      return absl::UnimplementedError("cuBLASLt has no algorithm for it");
    }
    algorithm_ = result.algo;
    return absl::OkStatus();
  }

  const CublasLtFunctions& functions_;
  const cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

absl::StatusOr<std::unique_ptr<FormatMatMuls>> FormatMatMuls::Create(CudaRuntime& runtime, CudaDevice& device,
                                                                     const CublasLtFunctions& functions) {
  SHALE_ASSIGN_OR_RETURN(TurnTimer timer, TurnTimer::Create(runtime, device, std::size(kFormats)));
  std::unique_ptr<FormatMatMuls> made(new FormatMatMuls(device, functions, std::move(timer)));
  SHALE_ASSIGN_OR_RETURN(made->workspace_, device.Allocate(kWorkspaceBytes));
  SHALE_RETURN_IF_ERROR(functions.StatusOf("cublasLtCreate", functions.Create(&made->handle_)));
  return made;
}

FormatMatMuls::~FormatMatMuls() {
  // A destructor cannot report an error.
  if (handle_ != nullptr) (void)functions_.Destroy(handle_);
}

absl::Status FormatMatMuls::Fill(OperandFormat format, std::byte* to, int64_t size_bytes) {
  if (format == OperandFormat::kBFloat16) {
    return FillWithOrdinaryValues(device_, timer_.stream(), to, size_bytes);
  }
  const Float8 float8 = format == OperandFormat::kE4M3 ? Float8::kE4M3 : Float8::kE5M2;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-4, 0);
  std::array<uint8_t, 1 << 12> codes;  // Conversion is slow, so the pattern draws from so many.
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = NearestFloat8(float8, (i % 2 == 0 ? 1 : -1) * std::exp2(exponent(random)));
  }
  const int64_t pattern_bytes = std::min(size_bytes, kPatternBytes);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> pattern, device_.AllocatePinned(pattern_bytes));
  for (int64_t i = 0; i < pattern_bytes; ++i) {
    const uint8_t code = codes[random() % codes.size()];
    std::memcpy(pattern->base() + i, &code, 1);
  }
  for (int64_t at = 0; at < size_bytes; at += kPatternBytes) {
    SHALE_RETURN_IF_ERROR(timer_.stream().Copy(to + at, pattern->base(), std::min(kPatternBytes, size_bytes - at)));
  }
  return timer_.stream().Synchronize();
}

absl::StatusOr<std::vector<FormatRate>> FormatMatMuls::Measure(int64_t m, int64_t n, int64_t k, DType c_dtype,
                                                               int rounds, int launches) {
  // The operands of each format, once.
  std::array<std::unique_ptr<Arena>, 3> a, b;
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> c, device_.Allocate(m * n * SizeOf(c_dtype)));
  const auto operand = [&](OperandFormat format, int64_t rows, auto& arenas) -> absl::StatusOr<const std::byte*> {
    std::unique_ptr<Arena>& arena = arenas[static_cast<int>(format)];
    if (arena == nullptr) {
      SHALE_ASSIGN_OR_RETURN(arena, device_.Allocate(rows * k * BytesOf(format)));
      SHALE_RETURN_IF_ERROR(Fill(format, arena->base(), rows * k * BytesOf(format)));
    }
    return arena->base();
  };
  std::vector<FormatRate> rates;
  std::vector<std::unique_ptr<Plan>> plans;
  std::vector<Contestant> contestants;
  std::vector<size_t> measured;  // The places of the contestants in `rates`.
  for (const FormatMatMul& format : kFormats) {
    FormatRate& rate = rates.emplace_back();
    rate.matmul = format;
    absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Create(functions_, handle_, format, m, n, k, c_dtype);
    absl::Status refusal = plan.status();
    if (plan.ok()) {
      SHALE_ASSIGN_OR_RETURN(const std::byte* from_a, operand(format.a, m, a));
      SHALE_ASSIGN_OR_RETURN(const std::byte* from_b, operand(format.b, n, b));
      const Contestant contestant = {.launch = [plan = plan->get(), from_a, from_b, to = c->base(),
                                                workspace = workspace_->base()](cuda::StreamHandle stream) {
        return plan->Launch(from_a, from_b, to, workspace, stream);
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

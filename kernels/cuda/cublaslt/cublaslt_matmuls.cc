#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/matmul_key.h"
#include "kernels/cuda/cublaslt/matmul_plan.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

// The number of algorithms to request from the heuristic. The matmul uses the first of them that can be used.
constexpr int kCandidates = 8;

class CublasLtMatMuls final : public MatMulBackend {
 public:
  CublasLtMatMuls(std::function<absl::StatusOr<CublasLtFunctions>()> load, CublasLtMatMulOptions options)
      : load_(std::move(load)), options_(std::move(options)) {}
  ~CublasLtMatMuls() override {
    plans_.clear();
    // A destructor cannot report an error.
    if (handle_ != nullptr) (void)functions_->Destroy(handle_);
  }

  int64_t ScratchBytes(const MatMul&) const override { return options_.workspace_bytes; }

  absl::Status Prepare(const MatMul& op) override { return Find(op).status(); }

  absl::Status Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream) override {
    if (op.bias_N.present() && !MatMulKey::AddsBias(op)) {
      SHALE_RETURN_IF_ERROR(BroadcastBias(op.bias_N, op.c_MN, stream));
    }
    SHALE_ASSIGN_OR_RETURN(MatMulPlan * plan, Find(op));
    return plan->Enqueue(op, scratch, stream);
  }

 private:
  absl::Status Open() {
    if (handle_ != nullptr) return absl::OkStatus();
    if (!functions_.has_value()) {
      SHALE_ASSIGN_OR_RETURN(functions_, load_());
    }
    const cublasStatus_t status = functions_->Create(&handle_);
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    handle_ = nullptr;
    const absl::Status error = functions_->StatusOf("cublasLtCreate", status);
    return absl::Status(error.code(), absl::StrCat("MatMul: ", error.message(), " (cuBLASLt ", functions_->GetVersion(),
                                                   " cannot start on this device: it needs a GPU, a driver for its ",
                                                   "version of CUDA, and free memory)"));
  }

  absl::StatusOr<MatMulPlan*> Find(const MatMul& op) {
    const MatMulKey key = MatMulKey::Of(op, options_.allow_tf32);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    SHALE_RETURN_IF_ERROR(Open());
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<MatMulPlan> plan,
                           MatMulPlan::Create(*functions_, handle_, key, options_.workspace_bytes));
    SHALE_RETURN_IF_ERROR(Choose(key, *plan));
    return plans_.emplace(key, std::move(plan)).first->second.get();
  }

  absl::Status Choose(const MatMulKey& key, MatMulPlan& plan) {
    if (options_.tuning != nullptr) {
      const int64_t version = static_cast<int64_t>(functions_->GetVersion());
      const MatMulAlgorithm* tuned = options_.tuning->Find({.gpu = options_.gpu, .library_version = version}, key);
      if (tuned != nullptr) {
        const absl::Status status = plan.Use(*tuned);
        if (status.ok()) return status;
        return absl::Status(status.code(),
                            absl::StrCat(status.message(), "; the tuning table names this algorithm: tune ",
                                         "again on this machine, or run without the table"));
      }
    }
    SHALE_ASSIGN_OR_RETURN(const std::vector<MatMulAlgorithm> candidates, plan.Candidates(kCandidates));
    return plan.UseFirstOf(candidates);
  }

  const std::function<absl::StatusOr<CublasLtFunctions>()> load_;
  const CublasLtMatMulOptions options_;
  std::optional<CublasLtFunctions> functions_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<MatMulKey, std::unique_ptr<MatMulPlan>> plans_;
};

}  // namespace

std::unique_ptr<MatMulBackend> CreateCublasLtMatMuls(std::function<absl::StatusOr<CublasLtFunctions>()> load,
                                                     CublasLtMatMulOptions options) {
  SHALE_CHECK(load != nullptr);
  SHALE_CHECK(options.workspace_bytes >= 0) << options.workspace_bytes;
  return std::make_unique<CublasLtMatMuls>(std::move(load), std::move(options));
}

}  // namespace shale::cuda

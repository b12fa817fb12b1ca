// Tests what cuBLASLt is asked to do. The conformance suite (matmul_test) shows that the results are those of the op.
#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float8.h"
#include "kernels/integers.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"

namespace shale::testing {
namespace {

using cuda::CublasLtMatMulOptions;
using cuda::MatMulBackend;
using cuda::MatMulKey;
using cuda::TuningTable;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

class CublasLtMatMulsTest : public ::testing::Test {
 protected:
  ~CublasLtMatMulsTest() override {
    backend_.reset();
    EXPECT_EQ(library_.alive, 0) << "descriptors are left";
  }

  MatMulBackend& Backend(CublasLtMatMulOptions options = {.workspace_bytes = 1024}) {
    backend_ = cuda::CreateCublasLtMatMuls([this] { return library_.functions(); }, std::move(options));
    return *backend_;
  }

  // Returns a contiguous tensor of ones, 256-byte aligned.
  Tensor Ones(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = Tensor::Contiguous(dtype, shape);
    t.data = &memory_[used_];
    for (int64_t i = 0; i < t.elements(); ++i) {
      if (dtype == DType::kFloat32) t.as<float>()[i] = 1;
      if (dtype == DType::kBFloat16) t.as<BFloat16>()[i] = RoundToBFloat16(1);
      if (dtype == DType::kFloat16) t.as<Float16>()[i] = RoundToFloat16(1);
      if (dtype == DType::kFloat8E4M3) t.as<Float8E4M3>()[i] = RoundToFloat8E4M3(1);
      if (dtype == DType::kFloat8E5M2) t.as<Float8E5M2>()[i] = RoundToFloat8E5M2(1);
    }
    used_ += RoundUp(t.extent_bytes(), 256);
    EXPECT_LE(used_, static_cast<int64_t>(sizeof(memory_)));
    return t;
  }
  MatMul Float8Op(DType a, DType b, DType c) {
    MatMul op{.a = Ones(a, {4, 32}),
              .b = Ones(b, {48, 32}),
              .c_MN = Ones(c, {4, 48}),
              .scale_a = Ones(DType::kFloat32, {1}),
              .scale_b = Ones(DType::kFloat32, {1}),
              .transpose_b = true};
    *op.scale_a.as<float>() = 2;
    *op.scale_b.as<float>() = 0.25f;
    return op;
  }
  MatMul Op(int64_t m, int64_t n, int64_t k, DType act = DType::kBFloat16, DType c = DType::kFloat32) {
    return {.a = Ones(act, {m, k}), .b = Ones(act, {k, n}), .c_MN = Ones(c, {m, n})};
  }

  absl::Status Run(MatMulBackend& backend, const MatMul& op) {
    EXPECT_TRUE(Validate(op).ok()) << Validate(op);
    return backend.Enqueue(op, {workspace_, backend.ScratchBytes(op)}, /*stream=*/nullptr);
  }
  // Prepares the op with a table that names this algorithm for it.
  absl::Status PrepareTuned(const MatMul& op, const cuda::MatMulAlgorithm& algorithm) {
    auto table = std::make_shared<TuningTable>();
    EXPECT_TRUE(table->Set({"GPU", CublasLtStandIn::kVersion}, MatMulKey::Of(op, false), algorithm).ok());
    return Backend({.workspace_bytes = 1024, .tuning = table, .gpu = "GPU"}).Prepare(op);
  }
  // Runs the op and returns the one call that it becomes.
  LtCall CallOf(MatMulBackend& backend, const MatMul& op) {
    library_.calls.clear();
    const absl::Status status = Run(backend, op);
    EXPECT_TRUE(status.ok()) << status << " " << library_.misuse;
    EXPECT_EQ(library_.calls.size(), 1u);
    return library_.calls.empty() ? LtCall() : library_.calls[0];
  }

  CublasLtStandIn library_;

 private:
  alignas(256) std::byte memory_[1 << 16];
  alignas(256) std::byte workspace_[1 << 12];
  int64_t used_ = 0;
  std::unique_ptr<MatMulBackend> backend_;
};

TEST_F(CublasLtMatMulsTest, ScratchIsTheWorkspaceAndIsKnownWithoutTheLibrary) {
  const auto backend = cuda::CreateCublasLtMatMuls([] { return absl::NotFoundError("no such library here"); }, {});
  const MatMul op = Op(4, 6, 8);
  EXPECT_EQ(backend->ScratchBytes(op), int64_t{32} << 20);
  const absl::Status status = backend->Prepare(op);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(status), "no such library here");
}

TEST_F(CublasLtMatMulsTest, OurRowsAreItsColumnsAndOurSecondOperandIsItsFirst) {
  const MatMul op = Op(4, 6, 8);
  const LtCall call = CallOf(Backend(), op);
  EXPECT_EQ(call.a_data, op.b.data);
  EXPECT_EQ(call.b_data, op.a.data);
  EXPECT_EQ(call.c_data, op.c_MN.data);
  EXPECT_EQ(call.d_data, op.c_MN.data);
  EXPECT_EQ(call.a, (LtLayout{CUDA_R_16BF, 6, 8, 6}));
  EXPECT_EQ(call.b, (LtLayout{CUDA_R_16BF, 8, 4, 8}));
  EXPECT_EQ(call.d, (LtLayout{CUDA_R_32F, 6, 4, 6}));
  EXPECT_EQ(call.matmul, LtMatMul{});
  EXPECT_EQ(call.alpha, 1);
  EXPECT_EQ(call.beta, 0);
  EXPECT_EQ(call.workspace_bytes, 1024u);
}

TEST_F(CublasLtMatMulsTest, TransposesAndStridedRowsStayWhereTheyAre) {
  MatMul op = Op(4, 6, 8, DType::kFloat32);
  op.transpose_a = op.transpose_b = true;
  op.a = Ones(DType::kFloat32, {8, 12}).Slice(1, 3, 4);
  op.b = Ones(DType::kFloat32, {6, 20}).Slice(1, 4, 8);
  op.c_MN = Ones(DType::kFloat32, {4, 10}).Slice(1, 2, 6);
  const LtCall call = CallOf(Backend(), op);
  EXPECT_EQ(call.a, (LtLayout{CUDA_R_32F, 8, 6, 20}));
  EXPECT_EQ(call.b, (LtLayout{CUDA_R_32F, 4, 8, 12}));
  EXPECT_EQ(call.d, (LtLayout{CUDA_R_32F, 6, 4, 10}));
  EXPECT_EQ(call.matmul.transpose_a, CUBLAS_OP_T);
  EXPECT_EQ(call.matmul.transpose_b, CUBLAS_OP_T);
}

TEST_F(CublasLtMatMulsTest, AccumulatingIsBetaOfOneInPlace) {
  MatMul op = Op(4, 6, 8);
  op.accumulate = true;
  const LtCall call = CallOf(Backend(), op);
  EXPECT_EQ(call.beta, 1);
  EXPECT_EQ(call.c_data, call.d_data);
  EXPECT_EQ(op.c_MN.as<float>()[0], 9);
}

TEST_F(CublasLtMatMulsTest, TheScaleIsAlpha) {
  MatMul op = Op(4, 6, 8);
  op.accumulate = true;
  op.scale = 0.5f;
  EXPECT_EQ(CallOf(Backend(), op).alpha, 0.5f);
  EXPECT_EQ(op.c_MN.as<float>()[0], 5);
}

TEST_F(CublasLtMatMulsTest, TheHeuristicIsToldWhatIsTrue) {
  MatMul op = Op(4, 6, 8);
  op.a = Ones(DType::kBFloat16, {4, 64}).Slice(1, 4, 8);     // Starts at byte 8.
  op.b = Ones(DType::kBFloat16, {8, 64}).Slice(1, 48, 6);    // 96
  op.c_MN = Ones(DType::kBFloat16, {4, 64}).Slice(1, 8, 6);  // 16
  op.bias_N = Ones(DType::kBFloat16, {8}).Slice(0, 2, 6);    // 4
  (void)CallOf(Backend(), op);
  ASSERT_EQ(library_.queries.size(), 1u);
  const LtQuery& query = library_.queries[0];
  EXPECT_EQ(query.preference.workspace_bytes, 1024u);
  EXPECT_EQ(query.preference.reduction_schemes, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_EQ(query.preference.align_a, 32u);
  EXPECT_EQ(query.preference.align_b, 8u);
  EXPECT_EQ(query.preference.align_c, 16u);
  EXPECT_EQ(query.preference.align_d, 16u);
  EXPECT_EQ(query.matmul.bias, reinterpret_cast<const void*>(4));
}

TEST_F(CublasLtMatMulsTest, ABiasOfTheResultsTypeIsAddedByTheMatMul) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    MatMul op = Op(4, 8, 8, dtype, dtype);
    op.bias_N = Ones(dtype, {8});
    MatMulBackend& backend = Backend();
    const LtCall call = CallOf(backend, op);
    EXPECT_EQ(call.matmul.epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    EXPECT_EQ(call.matmul.bias, op.bias_N.data);
    EXPECT_EQ(call.beta, 0);
    // Another bias at another address is another call of the same kind.
    op.bias_N = Ones(dtype, {8});
    EXPECT_EQ(CallOf(backend, op).matmul.bias, op.bias_N.data);
  }
  EXPECT_EQ(library_.queries.size(), 2u);
}

TEST_F(CublasLtMatMulsTest, ABiasOfAnotherTypeIsWhatTheMatMulIsAddedTo) {
  MatMul op = Op(4, 6, 8);
  op.bias_N = Ones(DType::kBFloat16, {6});
  op.c_MN.as<float>()[23] = 5;  // Old contents do not count.
  const LtCall call = CallOf(Backend(), op);
  EXPECT_EQ(call.matmul.epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_DEFAULT));
  EXPECT_EQ(call.beta, 1);
  EXPECT_EQ(op.c_MN.as<float>()[23], 9);
}

// Regression: on an H200, a product of 131 columns was rounded to bf16 before the bias was added, and then again.
TEST_F(CublasLtMatMulsTest, ABiasOfRowsThatAreNotAlignedIsWhatTheMatMulIsAddedTo) {
  for (const int64_t column : {0, 4}) {
    MatMul op = Op(4, column == 0 ? 6 : 8, 8, DType::kBFloat16, DType::kBFloat16);
    op.c_MN = Ones(DType::kBFloat16, {4, column == 0 ? 6 : 16}).Slice(1, column, op.n());
    op.bias_N = Ones(DType::kBFloat16, {op.n()});
    const LtCall call = CallOf(Backend(), op);
    EXPECT_EQ(call.matmul.epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_DEFAULT));
    EXPECT_EQ(call.beta, 1);
  }
}

TEST_F(CublasLtMatMulsTest, OperandsOfF32AreRoundedOnlyWhenAllowed) {
  const MatMul f32 = Op(4, 6, 8, DType::kFloat32), bf16 = Op(4, 6, 8);
  EXPECT_EQ(CallOf(Backend(), f32).matmul.compute, CUBLAS_COMPUTE_32F);
  MatMulBackend& allowed = Backend({.workspace_bytes = 1024, .allow_tf32 = true});
  EXPECT_EQ(CallOf(allowed, f32).matmul.compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  EXPECT_EQ(CallOf(allowed, bf16).matmul.compute, CUBLAS_COMPUTE_32F);
}

TEST_F(CublasLtMatMulsTest, OperandsOfFloat8BringTheirScales) {
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  MatMulBackend& backend = Backend();
  for (const bool fast : {false, true}) {
    MatMul op = Float8Op(kE5M2, kE4M3, DType::kFloat32);
    op.fast_accumulation = fast;
    const LtCall call = CallOf(backend, op);
    EXPECT_EQ(call.a, (LtLayout{CUDA_R_8F_E4M3, 32, 48, 32}));
    EXPECT_EQ(call.b, (LtLayout{CUDA_R_8F_E5M2, 32, 4, 32}));
    EXPECT_EQ(call.matmul.transpose_a, CUBLAS_OP_T);
    EXPECT_EQ(call.matmul.transpose_b, CUBLAS_OP_N);
    EXPECT_EQ(call.matmul.fast_accumulation, fast);
    EXPECT_EQ(call.matmul.a_scale, op.scale_b.data);
    EXPECT_EQ(call.matmul.b_scale, op.scale_a.data);
    EXPECT_EQ(op.c_MN.as<float>()[5], 16);
    // Other scales at other addresses are another call of the same kind.
    MatMul other = Float8Op(kE5M2, kE4M3, DType::kFloat32);
    other.fast_accumulation = fast;
    EXPECT_EQ(CallOf(backend, other).matmul.a_scale, other.scale_b.data);
    other.accumulate = true;
    EXPECT_EQ(CallOf(backend, other).beta, 1);
    EXPECT_EQ(other.c_MN.as<float>()[5], 32);
  }
  EXPECT_EQ(library_.queries.size(), 4u);
}

// Rows of our scales are columns of the library's, too.
TEST_F(CublasLtMatMulsTest, BlockwiseScalesAreModesOfTheOperands) {
  constexpr DType kE4M3 = DType::kFloat8E4M3;
  MatMulBackend& backend = Backend();
  for (const Float8Scales scales : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
    const bool blocks = scales == Float8Scales::kBlocks;
    MatMul op{.a = Ones(kE4M3, {4, 144}),
              .b = Ones(kE4M3, {48, 144}),
              .c_MN = Ones(DType::kFloat32, {4, 48}),
              .scale_a = Ones(DType::kFloat32, {2, 4}),
              .scale_b = blocks ? Ones(DType::kFloat32, {1, 4}) : Ones(DType::kFloat32, {2, 48}),
              .transpose_b = true,
              .scales = scales};
    op.scale_a.as<float>()[4 + 2] = 2;                // Of row 2, from column 128 on.
    op.scale_b.as<float>()[blocks ? 1 : 48 + 5] = 4;  // From column 128 on, of row 5 or of all.
    const LtCall call = CallOf(backend, op);
    EXPECT_EQ(call.matmul.a_scale_mode,
              blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    EXPECT_EQ(call.matmul.b_scale_mode, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    EXPECT_EQ(call.matmul.a_scale, op.scale_b.data);
    EXPECT_EQ(call.matmul.fast_accumulation, 0);
    EXPECT_EQ(op.c_MN.as<float>()[2 * 48 + 5], 128 + 2 * 4 * 16);
    EXPECT_EQ(op.c_MN.as<float>()[48 + 4], 128 + (blocks ? 4 : 1) * 16);
  }
  EXPECT_EQ(library_.queries.size(), 2u);
}

// The library's matmuls of fp8 add a bias in bf16 or f16 to a result of the same dtype.
TEST_F(CublasLtMatMulsTest, ABiasOfFloat8IsAddedByTheMatMulOrBefore) {
  for (const auto& [bias, c] : {std::pair(DType::kBFloat16, DType::kBFloat16),
                                {DType::kFloat16, DType::kFloat16},
                                {DType::kFloat32, DType::kFloat32},
                                {DType::kBFloat16, DType::kFloat32}}) {
    MatMul op = Float8Op(DType::kFloat8E4M3, DType::kFloat8E4M3, c);
    op.bias_N = Ones(bias, {48});
    const LtCall call = CallOf(Backend(), op);
    const bool wide = c == DType::kFloat32;
    EXPECT_EQ(call.matmul.epilogue, static_cast<uint32_t>(wide ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS));
    EXPECT_EQ(call.beta, wide ? 1 : 0);
    EXPECT_EQ(wide ? op.c_MN.as<float>()[5] : c == DType::kBFloat16 ? ToFloat(op.c_MN.as<BFloat16>()[5]) : 17, 17);
  }
}

// A recomputation writes to another address, and must use the algorithm of what it repeats.
TEST_F(CublasLtMatMulsTest, MatMulsOfOneKindHaveOneAlgorithm) {
  MatMulBackend& backend = Backend();
  MatMul op = Op(4, 6, 8);
  ASSERT_TRUE(backend.Prepare(op).ok());
  EXPECT_EQ(library_.queries.size(), 1u);
  const LtCall first = CallOf(backend, op);
  const LtCall second = CallOf(backend, Op(4, 6, 8));
  EXPECT_EQ(library_.queries.size(), 1u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(first.algorithm.data[i], second.algorithm.data[i]);
  op.accumulate = true;
  (void)CallOf(backend, op);
  (void)CallOf(backend, Op(4, 6, 16));
  EXPECT_EQ(library_.queries.size(), 3u);
}

TEST_F(CublasLtMatMulsTest, TheFirstAlgorithmThatCanRunIsUsed) {
  library_.algorithms = 3;
  library_.unusable = 2;
  EXPECT_EQ(CallOf(Backend(), Op(4, 6, 8)).algorithm.data[1], 2u);
}

TEST_F(CublasLtMatMulsTest, AProposalThatIsRefusedIsPassedOver) {
  library_.algorithms = 2;
  library_.refused = 1;
  EXPECT_EQ(CallOf(Backend(), Op(4, 6, 8)).algorithm.data[1], 1u);
  library_.algorithms = 4;
  library_.unusable = library_.oversized = 1;
  EXPECT_EQ(CallOf(Backend(), Op(4, 6, 8)).algorithm.data[1], 3u);
}

TEST_F(CublasLtMatMulsTest, IfEveryProposalIsRefusedTheErrorNamesThemAll) {
  library_.algorithms = 2;
  library_.refused = library_.oversized = 1;
  const absl::Status status = Backend().Prepare(Op(4, 6, 8));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(
      MessageOf(status),
      AllOf(HasSubstr("none of the 2 algorithms"), HasSubstr("1: cublasLtMatmulAlgoCheck: CUBLAS_STATUS_NOT_SUPPORTED"),
            HasSubstr("2: the algorithm needs 1025 bytes of workspace"), HasSubstr("m=4 n=6 k=8")));
}

TEST_F(CublasLtMatMulsTest, WithoutAnAlgorithmTheErrorNamesTheMatMulAndTheWorkspace) {
  const auto message = [&](CublasLtMatMulOptions options) {
    const absl::Status status = Run(Backend(std::move(options)), Op(4, 6, 8));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return MessageOf(status);
  };
  library_.wanted_workspace_bytes = 2048;
  EXPECT_THAT(message({.workspace_bytes = 1024}),
              AllOf(HasSubstr("1024 bytes of workspace"), HasSubstr("m=4 n=6 k=8"), HasSubstr("NOT_SUPPORTED")));
  library_.wanted_workspace_bytes = 0;
  library_.algorithms = library_.unusable = 1;
  EXPECT_THAT(message({.workspace_bytes = 0}), HasSubstr("0 bytes of workspace"));
}

TEST_F(CublasLtMatMulsTest, ATunedAlgorithmIsUsedOnItsGpuAndVersion) {
  const MatMul op = Op(4, 6, 8);
  const auto used = [&](const TuningTable::Machine& measured) {
    auto table = std::make_shared<TuningTable>();
    EXPECT_TRUE(table->Set(measured, MatMulKey::Of(op, false), CublasLtStandIn::Algorithm(77)).ok());
    return CallOf(Backend({.workspace_bytes = 1024, .tuning = table, .gpu = "NVIDIA H200"}), op).algorithm.data[1];
  };
  EXPECT_EQ(used({"NVIDIA H200", CublasLtStandIn::kVersion}), 77u);
  EXPECT_EQ(library_.queries.size(), 0u);
  EXPECT_EQ(used({"NVIDIA H100", CublasLtStandIn::kVersion}), 0u);
  EXPECT_EQ(used({"NVIDIA H200", CublasLtStandIn::kVersion + 1}), 0u);
}

TEST_F(CublasLtMatMulsTest, ATunedAlgorithmThatCannotBeUsedIsAnErrorAndNotReplaced) {
  const MatMul op = Op(4, 6, 8);
  const auto refusal = [&](const cuda::MatMulAlgorithm& algorithm) {
    const absl::Status status = PrepareTuned(op, algorithm);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("the tuning table names this algorithm"), HasSubstr("m=4 n=6 k=8"),
                                         HasSubstr("tune again")));
    return MessageOf(status);
  };
  EXPECT_THAT(refusal({1, 2, 3}), HasSubstr("cublasLtMatmulAlgoCheck: CUBLAS_STATUS_INVALID_VALUE"));
  EXPECT_THAT(refusal(CublasLtStandIn::Algorithm(7, CUBLASLT_REDUCTION_SCHEME_NONE, 1025)), HasSubstr("1025 bytes"));
  for (const uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE}) {
    EXPECT_THAT(refusal(CublasLtStandIn::Algorithm(7, scheme)), HasSubstr("adds the parts of a split K in c's dtype"));
  }
}

// [Note: lost tails] in matmul_plan.h.
TEST_F(CublasLtMatMulsTest, AnAlgorithmThatWouldLeaveOutTheEndOfKIsRefused) {
  library_.most_splits = 16;
  const auto prepared = [&](DType act, int64_t k, uint64_t splits) {
    return PrepareTuned(Op(1, 1, k, act),
                        CublasLtStandIn::Algorithm(7, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0, splits));
  };
  EXPECT_THAT(MessageOf(prepared(DType::kBFloat16, 18 * 64 + 8, 9)), HasSubstr("may leave out its last elements"));
  EXPECT_FALSE(prepared(DType::kFloat32, 18 * 32 + 8, 9).ok());
  EXPECT_TRUE(prepared(DType::kBFloat16, 18 * 64, 9).ok());       // Nothing is left over,
  EXPECT_TRUE(prepared(DType::kBFloat16, 18 * 64 + 8, 8).ok());   // or the blocks cannot be divided,
  EXPECT_TRUE(prepared(DType::kBFloat16, 18 * 64 + 16, 9).ok());  // or as much is left over as there are parts,
  EXPECT_TRUE(prepared(DType::kBFloat16, 18 * 64 + 8, 1).ok());   // or there is one part.
}

TEST_F(CublasLtMatMulsTest, EveryFailedCallIsAnErrorThatNamesItAndTheMatMul) {
  for (const char* function : {"MatrixLayoutCreate", "MatmulDescCreate", "MatmulDescSetAttribute",
                               "MatmulPreferenceCreate", "MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic",
                               "MatmulAlgoCheck", "MatmulAlgoConfigGetAttribute", "Matmul"}) {
    SCOPED_TRACE(function);
    library_.failing = function;
    const absl::Status status = Run(Backend(), Op(4, 6, 8));
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(std::string("cublasLt") + function),
                                         HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED"), HasSubstr("m=4 n=6 k=8")));
  }
}

TEST_F(CublasLtMatMulsTest, ALibraryThatCannotStartIsAnErrorAndMayStartLater) {
  library_.failing = "Create";
  library_.failure = CUBLAS_STATUS_NOT_INITIALIZED;
  MatMulBackend& backend = Backend();
  const absl::Status status = backend.Prepare(Op(4, 6, 8));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"), HasSubstr("driver")));
  library_.failing.clear();
  EXPECT_TRUE(backend.Prepare(Op(4, 6, 8)).ok());
}

// The tests above rest on what the stand-in refuses.
TEST_F(CublasLtMatMulsTest, TheStandInRefusesTypesThatTheLibraryDoesNotSupport) {
  const cuda::CublasLtFunctions lt = library_.functions();
  const auto ask = [&](cublasComputeType_t compute, cudaDataType a, cudaDataType b, cudaDataType d,
                       uint32_t align_a = 256, cublasLtMatmulDescAttributes_t scale = CUBLASLT_MATMUL_DESC_TRANSA,
                       uint64_t scale_value = 0) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layouts[3];
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    EXPECT_EQ(lt.Create(&handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(lt.MatmulDescCreate(&matmul, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    const size_t scale_bytes = scale == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ? sizeof(void*) : sizeof(int32_t);
    EXPECT_EQ(lt.MatmulDescSetAttribute(matmul, scale, &scale_value, scale_bytes), CUBLAS_STATUS_SUCCESS);
    const cudaDataType types[] = {a, b, d};
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(lt.MatrixLayoutCreate(&layouts[i], types[i], 8, 8, 8), CUBLAS_STATUS_SUCCESS);
    }
    EXPECT_EQ(lt.MatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    const uint64_t workspace_bytes = 1024;
    EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                              sizeof(workspace_bytes)),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a,
                                              sizeof(align_a)),
              CUBLAS_STATUS_SUCCESS);
    const cublasStatus_t status = lt.MatmulAlgoGetHeuristic(handle, matmul, layouts[0], layouts[1], layouts[2],
                                                            layouts[2], preference, 1, &result, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS);
    (void)lt.MatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : layouts) (void)lt.MatrixLayoutDestroy(layout);
    (void)lt.MatmulDescDestroy(matmul);
    (void)lt.Destroy(handle);
    return status;
  };
  for (const auto compute : {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_16F}) {
    for (const auto a : {CUDA_R_16BF, CUDA_R_32F}) {
      for (const auto b : {CUDA_R_16BF, CUDA_R_32F}) {
        for (const auto d : {CUDA_R_16BF, CUDA_R_32F}) {
          const bool all_f32 = a == CUDA_R_32F && b == CUDA_R_32F && d == CUDA_R_32F;
          const bool supported = (compute != CUBLAS_COMPUTE_16F && all_f32) ||
                                 (compute == CUBLAS_COMPUTE_32F && a == CUDA_R_16BF && b == CUDA_R_16BF);
          EXPECT_EQ(ask(compute, a, b, d), supported ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED)
              << compute << " " << a << " " << b << " " << d;
        }
      }
    }
  }
  for (const uint32_t alignment : {0u, 1u, 24u, 512u}) {
    EXPECT_EQ(ask(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, alignment), CUBLAS_STATUS_INVALID_VALUE);
  }
  EXPECT_EQ(
      ask(CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, 256, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 256),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(ask(CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, 256, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtMatMulsTest, TheStandInOverwritesAllWorkspaceAndRefusesOperandsBetweenElements) {
  MatMulBackend& backend = Backend();
  MatMul op = Op(4, 6, 8);
  const LtCall call = CallOf(backend, op);
  const auto* bytes = static_cast<const std::byte*>(call.workspace);
  EXPECT_EQ(std::count(bytes, bytes + 1024, std::byte{0xAB}), 1024);
  const Scratch scratch{static_cast<std::byte*>(call.workspace), 1024};
  MatMul between = op;
  between.a.data = static_cast<std::byte*>(op.a.data) + 1;
  EXPECT_FALSE(backend.Enqueue(between, scratch, /*stream=*/nullptr).ok());
  EXPECT_EQ(library_.misuse, "an alignment that is no power of two from the size of an element to 256");
  between = op;
  between.bias_N = Ones(DType::kFloat32, {7});
  between.bias_N.data = static_cast<std::byte*>(between.bias_N.data) + 1;
  between.bias_N.shape[0] = 6;
  EXPECT_FALSE(backend.Enqueue(between, scratch, /*stream=*/nullptr).ok());
  EXPECT_EQ(library_.misuse, "an operand between elements");
}

}  // namespace
}  // namespace shale::testing

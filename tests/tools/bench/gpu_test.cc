// Runs the benches of ops and of collectives on a simulated GPU whose memory the host cannot access. Checks that what
// they enqueue is correct, not what they measure.
#include "tools/bench/gpu.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/backends/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/backends.h"
#include "kernels/ops/matmul.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tools/bench/comm.h"
#include "tools/bench/ops.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Comm(int argc, char** argv, const std::vector<CommKind>& kinds) { return BenchComm(argc, argv, kinds); }

// Refuses fp8 matrices with blockwise scales, as cuBLASLt does on GPUs other than Hopper's.
class WithoutBlockwise final : public cuda::MatMulBackend {
 public:
  explicit WithoutBlockwise(std::unique_ptr<cuda::MatMulBackend> all) : all_(std::move(all)) {}

  int64_t ScratchBytes(const MatMul& op) const override { return all_->ScratchBytes(op); }
  absl::Status Prepare(const MatMul& op) override {
    return op.scales == Float8Scales::kOne ? all_->Prepare(op) : absl::UnimplementedError("no algorithm");
  }
  absl::Status Enqueue(const MatMul& op, Scratch scratch, cuda::StreamHandle stream) override {
    return all_->Enqueue(op, scratch, stream);
  }

 private:
  const std::unique_ptr<cuda::MatMulBackend> all_;
};

class BenchGpuTest : public ::testing::Test {
 protected:
  ~BenchGpuTest() override {
    EXPECT_THAT(runtime_->misuse(), ::testing::IsEmpty());
    EXPECT_TRUE(runtime_->CheckAllReleased().ok()) << runtime_->CheckAllReleased();
  }

  CreateGpuBackend Create() {
    return [this](const GpuBackendOptions& options) -> absl::StatusOr<std::unique_ptr<Backend>> {
      asked_ = options;
      const auto matmuls = [this](const CudaDeviceProperties*) -> std::unique_ptr<cuda::MatMulBackend> {
        auto all = *cuda_on_host::CreateHostMatMuls(CreateReferenceOps());
        if (takes_blockwise_) return all;
        return std::make_unique<WithoutBlockwise>(std::move(all));
      };
      return CreateCudaBackend(runtime_, {.ranks_per_device = options.ranks_per_device, .create_matmuls = matmuls});
    };
  }

  // Calls a tool's main with these arguments and returns its exit code. Stores the JSON that it wrote in written_.
  template <class Main, class Kinds>
  int Call(const Main& main, std::vector<std::string> arguments, const Kinds& kinds) {
    const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/out.json";
    arguments.insert(arguments.begin(), "bench");
    arguments.push_back("--json=" + path);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const int code = main(static_cast<int>(arguments.size()), argv.data(), kinds);
    std::ifstream file(path);
    written_.assign(std::istreambuf_iterator<char>(file), {});
    return code;
  }

  const std::shared_ptr<cuda_on_host::StandInRuntime> runtime_ = std::make_shared<cuda_on_host::StandInRuntime>();
  GpuBackendOptions asked_;
  bool takes_blockwise_ = true;
  std::string written_;
};

TEST_F(BenchGpuTest, OpsRunInDeviceMemoryOnNumbersThatWereCopiedThere) {
  ASSERT_EQ(Call(BenchOps,
                 {"--tokens=8", "--sequence=4", "--width=12", "--hidden=10", "--vocabulary=33", "--heads=2",
                  "--kv_heads=1", "--head_tokens=3", "--parameters=101", "--square=16", "--warm", "--copy_mib=1",
                  "--seconds=0", "--dtype=bf16", "--only=rmsnormforward|embeddingbackward|crossentropy|down forward",
                  "--sustained_seconds=0.01", "--tuning_table=table"},
                 std::vector<OpsMachineKind>{GpuOps(Create())}),
            0);
  EXPECT_EQ(asked_.tuning_table, "table");
  EXPECT_FALSE(asked_.own_attention);
  for (const char* wanted : {"\"device\": \"cuda\"", "RmsNormForward residual", "CrossEntropy", "MatMul down forward",
                             "\"of_large_copy\": ", "\"of_sustained\": "}) {
    EXPECT_THAT(written_, HasSubstr(wanted));
  }
  EXPECT_THAT(written_, Not(HasSubstr("of_nontemporal_copy")));
  EXPECT_THAT(written_, Not(HasSubstr("null")));
}

TEST_F(BenchGpuTest, AttentionOfOurOwnIsAskedOfTheBackendAndHasAWindowAndASoftCap) {
  ASSERT_EQ(Call(BenchOps,
                 {"--tokens=8", "--sequence=8", "--width=16", "--hidden=16", "--vocabulary=33", "--heads=2",
                  "--kv_heads=1", "--head_tokens=3", "--parameters=101", "--square=16", "--warm", "--copy_mib=1",
                  "--seconds=0", "--dtype=bf16", "--only=^attention", "--own_attention"},
                 std::vector<OpsMachineKind>{GpuOps(Create())}),
            0);
  EXPECT_TRUE(asked_.own_attention);
  for (const char* wanted : {"AttentionForward window", "AttentionBackward window", "AttentionBackward soft cap"}) {
    EXPECT_THAT(written_, HasSubstr(wanted));
  }
}

TEST_F(BenchGpuTest, MatMulsThatTheGpuRefusesAreNamedAndTheOthersMeasured) {
  takes_blockwise_ = false;
  ASSERT_EQ(Call(BenchOps,
                 {"--tokens=16", "--sequence=4", "--width=16", "--hidden=16", "--vocabulary=33", "--heads=1",
                  "--kv_heads=1", "--head_tokens=3", "--parameters=101", "--square=16", "--warm", "--copy_mib=1",
                  "--seconds=0", "--dtype=bf16", "--only=matmul down"},
                 std::vector<OpsMachineKind>{GpuOps(Create())}),
            0);
  EXPECT_THAT(written_, HasSubstr("\"not_measured\": [{\"op\": \"MatMul down blockwise fp8 forward\""));
  EXPECT_THAT(written_, HasSubstr("\"why\": \"no algorithm\""));
  EXPECT_THAT(written_, HasSubstr("\"results\": [\n  {\"op\": \"MatMul square\""));
  EXPECT_THAT(written_, HasSubstr("{\"op\": \"MatMul down fp8 wgrad accumulate\""));
}

TEST_F(BenchGpuTest, RanksOfOneDeviceMeetFromThreadsOfTheirOwn) {
  ASSERT_EQ(
      Call(Comm, {"--device=cuda", "--ranks=2,3", "--smallest_kib=1", "--largest_kib=4", "--rounds=2", "--seconds=0"},
           GpuComms(Create())),
      0);
  EXPECT_EQ(asked_.ranks_per_device, 3);
  for (const char* wanted : {"AllGather", "ReduceScatterSum", "AllReduceSum", "{\"ranks\": 3, \"about\": \"GPU 0: "}) {
    EXPECT_THAT(written_, HasSubstr(wanted));
  }
}

TEST_F(BenchGpuTest, NcclHasARankOnEachGpu) {
  EXPECT_EQ(Call(Comm, {"--device=nccl", "--ranks=2"}, GpuComms(Create())), 1);
  EXPECT_TRUE(asked_.nccl);
  EXPECT_EQ(asked_.ranks_per_device, 1);
}

TEST_F(BenchGpuTest, NcclIsRefusedRanksThatShareAGpu) {
  EXPECT_EQ(Call(Comm, {"--device=nccl", "--ranks=2", "--ranks_per_device=2"}, GpuComms(Create())), 2);
  EXPECT_FALSE(asked_.nccl);
}

}  // namespace
}  // namespace shale

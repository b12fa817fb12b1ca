#include "kernels/cpu/measure_matmuls.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/onednn.h"
#include "kernels/integers.h"
#include "kernels/op_backend.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Increase it when the speed of the packed kernels changes.
constexpr int kPackedKernelsVersion = 1;
constexpr int64_t kM = 512, kN = 512, kK = 768;
constexpr double kSeconds = 0.2;
constexpr int kLeastRounds = 3;
// oneDNN is taken if the packed kernels are not faster by this factor, so that noise does not decide.
constexpr double kLeastGain = 1.05;

// Returns the seconds that this thread has computed so far. Unlike the time of day, they do not pass while other
// programs have the processor.
double Now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Memory of a matmul, with numbers of ordinary size.
class Buffer {
 public:
  Buffer(int64_t bytes, DType dtype) : bytes_(RoundUp(bytes, 256) + 256) {
    for (int64_t i = 0; i < bytes / SizeOf(dtype); ++i) {
      const float value = static_cast<float>(i % 251) / 256 - 0.5f;
      if (dtype == DType::kFloat32) reinterpret_cast<float*>(data())[i] = value;
      if (dtype == DType::kBFloat16) reinterpret_cast<BFloat16*>(data())[i] = RoundToBFloat16(value);
    }
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<intptr_t>(bytes_.data()), 256)); }

 private:
  std::vector<std::byte> bytes_;
};

struct Contestant {
  cpu::Context context;
  std::vector<double> best;  // Seconds of each matmul.
};

std::string Processor() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  std::string vendor;
  if (__get_cpuid(0, &a, &b, &c, &d) != 0) {
    for (const unsigned part : {b, d, c}) {
      for (int i = 0; i < 4; ++i) {
        const char letter = static_cast<char>(part >> 8 * i);
        vendor += absl::ascii_isalnum(letter) ? letter : '_';
      }
    }
  }
  __get_cpuid(1, &a, &b, &c, &d);
  const unsigned family = a >> 8 & 15, more_family = a >> 20 & 255;
  return absl::StrCat(vendor, "-family", family == 15 ? family + more_family : family, "-model",
                      (a >> 12 & 240) | (a >> 4 & 15), "-stepping", a & 15);
#else
  return "other";
#endif
}

}  // namespace

absl::StatusOr<MeasuredMatMuls> MeasureCpuMatMuls(DType dtype) {
  const MatMul forward{.a = Tensor::Contiguous(dtype, {kM, kK}),
                       .b = Tensor::Contiguous(dtype, {kN, kK}),
                       .c_MN = Tensor::Contiguous(dtype, {kM, kN}),
                       .transpose_b = true};
  const MatMul gradient{.a = Tensor::Contiguous(dtype, {kM, kN}),
                        .b = Tensor::Contiguous(dtype, {kM, kK}),
                        .c_MN = Tensor::Contiguous(DType::kFloat32, {kN, kK}),
                        .transpose_a = true,
                        .accumulate = true};
  const auto team = std::make_shared<cpu::Team>(/*threads=*/1);
  const auto onednn = std::make_shared<cpu::OneDnnMatMuls>(team);
  if (dtype == DType::kBFloat16 && !onednn->has_bfloat16()) return MeasuredMatMuls{CpuMatMuls::kPacked};
  std::vector<MatMul> matmuls = {forward, gradient};
  std::vector<Contestant> contestants;
  for (const CpuMatMuls cpu_matmuls : {CpuMatMuls::kOneDnn, CpuMatMuls::kPacked}) {
    Contestant& contestant = contestants.emplace_back();
    contestant.context = {.team = team, .cpu_matmuls = cpu_matmuls, .onednn = onednn};
    contestant.best.assign(matmuls.size(), std::numeric_limits<double>::infinity());
  }
  int64_t scratch_bytes = 0;
  std::vector<Buffer> buffers;
  buffers.reserve(3 * matmuls.size());
  for (MatMul& matmul : matmuls) {
    for (const Contestant& contestant : contestants) {
      scratch_bytes = std::max(scratch_bytes, cpu::ScratchBytesOf(matmul, contestant.context));
    }
    for (Tensor* tensor : {&matmul.a, &matmul.b, &matmul.c_MN}) {
      tensor->data = buffers.emplace_back(tensor->extent_bytes(), tensor->dtype).data();
    }
  }
  cpu::UsedInstructionSet();  // Limits the instructions of the kernels.
  Buffer scratch(scratch_bytes, DType::kInt16);
  const double begin = Now();
  for (int round = 0; round < kLeastRounds || Now() - begin < kSeconds; ++round) {
    for (size_t i = 0; i < matmuls.size(); ++i) {
      for (Contestant& contestant : contestants) {
        const double from = Now();
        SHALE_RETURN_IF_ERROR(cpu::Run(matmuls[i], {scratch.data(), scratch_bytes}, contestant.context));
        if (round > 0) contestant.best[i] = std::min(contestant.best[i], Now() - from);
      }
    }
  }
  const auto total = [](const Contestant& contestant) {
    return std::accumulate(contestant.best.begin(), contestant.best.end(), 0.0);
  };
  const double speed = total(contestants[0]) / total(contestants[1]);
  return MeasuredMatMuls{speed > kLeastGain ? CpuMatMuls::kPacked : CpuMatMuls::kOneDnn, speed};
}

std::string CpuMatMulsKey(DType dtype) {
  const dnnl_version_t& version = *dnnl_version();
  cpu::OneDnnEngine();  // Applies the limit on instruction sets.
  return absl::StrCat(Processor(), "-", cpu::ToString(cpu::UsedInstructionSet()), "-onednn", version.major, ".",
                      version.minor, ".", version.patch, "-isa", static_cast<int>(dnnl::get_effective_cpu_isa()),
                      "-packed", kPackedKernelsVersion, "-", ToString(dtype));
}

}  // namespace shale

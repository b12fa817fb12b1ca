#include "tools/bench/formats.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device/cuda/cudart.h"
#include "kernels/dtype.h"
#include "kernels/float8.h"
#include "kernels/ops/float8.h"
#include "tools/bench/format_matmuls.h"
#include "tools/bench/planned_job.h"
#include "tools/bench/result_lines.h"
#include "tools/bench/step_work.h"
#include "tools/command_line.h"

namespace shale {
namespace {

using cuda::CublasLtFunctions;

struct Flags {
  std::vector<std::string> jobs, overrides;
  int64_t gpu = 0, rounds = 5, launches = 20;
  std::string json;
};

struct Size {
  int64_t m, n, k;
  DType c_dtype;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  auto operator<=>(const Size&) const = default;
};

// Returns the sizes of the jobs' matmuls, those with most FLOPs first.
absl::StatusOr<std::vector<Size>> SizesOf(const Flags& flags) {
  std::set<Size> sizes;
  for (const std::string& path : flags.jobs) {
    SHALE_ASSIGN_OR_RETURN(const ResolvedJob resolved, ResolveBenchJob(path, flags.overrides));
    for (const MatMulSize& size : WorkOf(resolved.plan.train.step.program).shapes) {
      sizes.insert({size.m, size.n, size.k, size.c_dtype});
    }
  }
  std::vector<Size> ordered(sizes.begin(), sizes.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const Size& a, const Size& b) { return a.flops() > b.flops(); });
  return ordered;
}

constexpr int64_t kBFloat16s = 1 << 16;

// Returns the codes that the kernel of QuantizeFloat8 makes of all bf16 numbers, in the order of their bits.
absl::StatusOr<std::vector<uint8_t>> CodesOfAll(DType format, CudaDevice& device) {
  constexpr int64_t kNumberBytes = kBFloat16s * sizeof(BFloat16), kScalarBytes = 256;
  constexpr int64_t kBytes = kNumberBytes + kBFloat16s + 2 * kScalarBytes;
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> on_device, device.Allocate(kBytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> on_host, device.AllocatePinned(kBytes));
  std::byte *const at = on_device->base(), *const codes = on_host->base() + kNumberBytes;
  for (int64_t i = 0; i < kBFloat16s; ++i) {
    reinterpret_cast<BFloat16*>(on_host->base())[i] = {static_cast<uint16_t>(i)};
  }
  // With this maximum the factor is 1.
  *reinterpret_cast<float*>(codes + kBFloat16s) = LargestFloat8(format);
  const QuantizeFloat8 op{
      .x_RC = Tensor::Contiguous(DType::kBFloat16, {256, 256}, at),
      .maximum_1 = Tensor::Contiguous(DType::kFloat32, {1}, at + kNumberBytes + kBFloat16s),
      .out_RC = Tensor::Contiguous(format, {256, 256}, at + kNumberBytes),
      .scale_1 = Tensor::Contiguous(DType::kFloat32, {1}, at + kNumberBytes + kBFloat16s + kScalarBytes)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(*stream));
  SHALE_RETURN_IF_ERROR(stream->Copy(at, on_host->base(), kBytes));
  SHALE_RETURN_IF_ERROR(
      cuda_stream->Enqueue([&](cuda::StreamHandle handle) { return cuda::Run(op, Scratch(), handle); }));
  SHALE_RETURN_IF_ERROR(stream->Copy(codes, at + kNumberBytes, kBFloat16s));
  SHALE_RETURN_IF_ERROR(stream->Synchronize());
  const auto* first = reinterpret_cast<const uint8_t*>(codes);
  return std::vector<uint8_t>(first, first + kBFloat16s);
}

// Returns whether a code is the exact one. NaN may become any NaN.
template <class Format>
bool IsExact(float number, uint8_t code) {
  return std::isnan(number) ? std::isnan(ToFloat(Format{code})) : code == SaturateToFloat8<Format>(number).bits;
}

// Compares the GPU's conversion of every bf16 value with the exact one.
absl::Status CompareConversions(CudaDevice& device, ResultLines& report) {
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<uint8_t> codes, CodesOfAll(format, device));
    int64_t different = 0;
    std::string first;
    for (int64_t i = 0; i < kBFloat16s; ++i) {
      const float number = ToFloat(BFloat16{static_cast<uint16_t>(i)});
      if (WithFloat8(format, [&](auto as) { return IsExact<decltype(as)>(number, codes[i]); })) continue;
      if (different++ == 0) first = absl::StrCat("; first: bf16 code ", i, " became ", static_cast<int>(codes[i]));
    }
    const std::string name(format == DType::kFloat8E4M3 ? "e4m3" : "e5m2");
    SHALE_RETURN_IF_ERROR(report.Add(absl::StrCat("bf16 to ", name, ": ", different, " of ", kBFloat16s,
                                                  " values differ from the exact conversion", first),
                                     JsonObject().Add("conversion", name).Add("different", different)));
  }
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<Size> sizes, SizesOf(flags));
  ResultLines report;
  SHALE_RETURN_IF_ERROR(report.Open(flags.json));
  const std::unique_ptr<CudaRuntime> runtime = CreateCudart();
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device,
                         CudaDevice::Create(*runtime, {.ordinal = static_cast<int>(flags.gpu)}));
  SHALE_ASSIGN_OR_RETURN(const CublasLtFunctions functions, CublasLtFunctions::Load(LibrarySearch::FromEnvironment()));
  std::printf("%s, cuBLASLt %d\n", device->properties().name.c_str(), static_cast<int>(functions.GetVersion()));
  SHALE_RETURN_IF_ERROR(CompareConversions(*device, report));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<FormatMatMuls> matmuls,
                         FormatMatMuls::Create(*runtime, *device, functions));
  for (const Size& size : sizes) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<FormatRate> rates,
                           matmuls->Measure(size.m, size.n, size.k, size.c_dtype, static_cast<int>(flags.rounds),
                                            static_cast<int>(flags.launches)));
    for (const FormatRate& rate : rates) {
      const std::string format = rate.matmul.ToString();
      const std::string where =
          absl::StrFormat("%7d %7d %7d  %-5s %-18s", size.m, size.n, size.k, ToString(size.c_dtype), format);
      JsonObject line = JsonObject()
                            .Add("gpu", device->properties().name)
                            .Add("m", size.m)
                            .Add("n", size.n)
                            .Add("k", size.k)
                            .Add("result", ToString(size.c_dtype))
                            .Add("format", format);
      if (rate.seconds == 0) {
        SHALE_RETURN_IF_ERROR(
            report.Add(absl::StrCat(where, " not measured: ", rate.why_not), line.Add("not_measured", rate.why_not)));
        continue;
      }
      const double tflops = size.flops() / rate.seconds * 1e-12;
      SHALE_RETURN_IF_ERROR(report.Add(absl::StrFormat("%s %9.1f us %7.1f TFLOP/s", where, 1e6 * rate.seconds, tflops),
                                       line.Add("seconds", rate.seconds).Add("tflops_per_second", tflops)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int BenchFormats(int argc, char** argv) {
  Flags flags;
  CommandLine line("formats",
                   "Times the matmuls of some jobs on a GPU with operands in bf16 and in 8-bit formats, with and "
                   "without fast accumulation and with blockwise scales, side by side while the GPU is hot. Before "
                   "that, compares the GPU's conversion of every bf16 value to both 8-bit formats with the exact one.");
  line.List("job", "FILE", "A job spec, whose data need not exist.", &flags.jobs).Required();
  line.List("set", "PATH=VALUE", "Sets a field of every job.", &flags.overrides);
  line.Integer("gpu", "Which GPU, as CUDA counts the visible ones.", 0, 1023, &flags.gpu);
  line.Integer("rounds", "How many rounds; the median counts.", 1, 100000, &flags.rounds);
  line.Integer("launches", "How often each is launched in a round, back to back.", 1, 100000, &flags.launches);
  line.Text("json", "FILE", "Writes a line of JSON for each result, too.", &flags.json);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = Run(flags);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "formats: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsNotFound(status)
             ? kExitUsage
             : kExitFailed;
}

}  // namespace shale

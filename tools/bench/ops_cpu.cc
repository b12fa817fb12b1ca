#include "tools/bench/ops_cpu.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tools/bench/copy.h"
#include "tools/bench/support.h"

namespace shale {
namespace {

class CpuMachine : public OpsMachine {
 public:
  explicit CpuMachine(int threads)
      : threads_(threads), device_(CreateCpuDevice()), ops_(CreateCpuOps({.threads = threads})) {}

  std::string name() const override { return ProcessorName(); }
  Device& device() override { return *device_; }
  Ops& ops() override { return *ops_; }
  bool host_memory() const override { return true; }
  double target() const override { return 0.8; }

  std::array<CopyWords, 2> copies() const override {
    return {{{.about = "plain", .column = "of copy", .json = "of_copy"},
             {.about = "non-temporal stores", .column = "of n.t. copy", .json = "of_nontemporal_copy"}}};
  }
  // Each copy takes 1/64 of the buffer. The full buffer is larger than the caches.
  int64_t CopyBytes(int /*kind*/, int64_t buffer_bytes, double /*op_bytes*/) const override {
    return buffer_bytes / 64;
  }
  absl::Status EnqueueCopy(int kind, std::byte* to, const std::byte* from, int64_t size_bytes,
                           Stream& stream) override {
    SHALE_ASSIGN_OR_RETURN(CpuStream * cpu_stream, CpuStream::From(stream));
    return cpu_stream->Enqueue([this, kind, to, from, size_bytes] {
      CopyMemory(kind == 0 ? CopyKind::kPlain : CopyKind::kNonTemporal, to, from, size_bytes, threads_);
      return absl::OkStatus();
    });
  }

 private:
  const int threads_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Ops> ops_;
};

}  // namespace

OpsMachineKind CpuOpsMachine() {
  const auto create = [](const OpsMachineOptions& options) -> absl::StatusOr<std::unique_ptr<OpsMachine>> {
    return std::make_unique<CpuMachine>(options.threads);
  };
  return {.device = "cpu", .create = create};
}

}  // namespace shale

#include "engine/run/backends/cuda_backend.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/run/backends/gpu_peaks.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device/cpu/physical_memory.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"
#include "sharding/comm/stream_ordered.h"

namespace shale {
namespace {

constexpr int kOldestMajor = 8;  // Major compute capability. The kernels are compiled for it, and bf16 matmuls need it.
// What stays free of a GPU's memory beside the arenas, for what is taken after they are checked: windows of NCCL,
// graphs of CUDA, and whatever a library allocates late.
constexpr int64_t kLateBytes = int64_t{256} << 20;

// Collects the attention ops that the library for attention declined to compute. Thread-safe.
class DeclinedAttention {
 public:
  void Add(const Op& op) {
    std::lock_guard lock(mutex_);
    if (const auto* forward = op.As<AttentionForward>()) declined_.insert(TextOf(*forward));
    if (const auto* backward = op.As<AttentionBackward>()) gradients_.insert(TextOf(*backward));
  }
  // Names the gradients only where the library computes the attention itself.
  std::string Describe() const {
    std::lock_guard lock(mutex_);
    std::set<std::string> declined = declined_;
    for (const std::string& text : gradients_) {
      if (declined_.count(text) == 0) declined.insert(absl::StrCat("gradients of ", text));
    }
    if (declined.empty()) return "";
    return absl::StrCat(
        "attention by the engine's own kernels, because cuDNN does not support it or was measured to "
        "be slower: ",
        absl::StrJoin(declined, "; "));
  }

 private:
  template <class Attention>
  static std::string TextOf(const Attention& op) {
    const Tensor& q = op.q_BSHD;
    return absl::StrCat(ToString(q.dtype), " ", q.dim(0), " x ", q.dim(1), " positions, ", q.dim(2), " heads of width ",
                        q.dim(3), " (", op.k_BSGD.dim(2), " of keys)",
                        op.position_ids_BS.present() ? ", packed documents" : "");
  }

  mutable std::mutex mutex_;
  std::set<std::string> declined_, gradients_;
};

// Owns a device and the runtime that it borrows.
struct OwnedDevice {
  std::shared_ptr<CudaRuntime> runtime;
  std::unique_ptr<CudaDevice> device;
};

absl::Status SumOnStream(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                         Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
  return cuda_stream->Enqueue(
      [&](cuda::StreamHandle handle) { return cuda::SumRanks(dtype, inputs, out, elements, handle); });
}

const CudaDevice& ToCuda(const Device& device) { return static_cast<const CudaDevice&>(device); }

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options)
      : runtime_(std::move(runtime)), options_(std::move(options)) {}

  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    const CudaDeviceProperties* gpu = device == nullptr ? nullptr : &ToCuda(*device).properties();
    CudaOpsOptions ops{.matmuls = options_.create_matmuls(gpu),
                       .attention = options_.create_attention ? options_.create_attention(gpu) : nullptr,
                       .host = options_.create_host_ops ? options_.create_host_ops(ranks) : nullptr};
    // A plan is for the first GPU, if there is one.
    const CudaDeviceProperties known = gpu != nullptr ? *gpu : FirstGpu();
    ops.gpu = {.major = known.compute_major, .minor = known.compute_minor};
    if (device != nullptr) {
      ops.on_declined = [declined = declined_](const Op& op) { declined->Add(op); };
      ops.use_device = [runtime = runtime_, ordinal = ToCuda(*device).ordinal()] {
        return runtime->SetDevice(ordinal);
      };
    }
    return CreateCudaOps(std::move(ops));
  }

  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    SHALE_ASSIGN_OR_RETURN(const GpuRange gpus, Gpus(ranks));
    std::vector<std::shared_ptr<Device>> devices;
    for (int ordinal = gpus.begin; ordinal < gpus.end; ++ordinal) {
      auto owned = std::make_shared<OwnedDevice>();
      owned->runtime = runtime_;
      const CudaDeviceOptions device_options{
          .ordinal = ordinal, .synchronous = synchronous, .marks = true, .memory = options_.memory};
      SHALE_ASSIGN_OR_RETURN(owned->device, CudaDevice::Create(*runtime_, device_options));
      const CudaDeviceProperties& gpu = owned->device->properties();
      if (gpu.compute_major < kOldestMajor) {
        return absl::FailedPreconditionError(
            absl::StrCat("GPU ", ordinal, " (", gpu.name, ") is too old: wanted compute capability ", kOldestMajor,
                         ".0 (Ampere) or newer, found ", gpu.compute_major, ".", gpu.compute_minor,
                         "; choose others with CUDA_VISIBLE_DEVICES, or set runtime.device=CPU"));
      }
      SHALE_RETURN_IF_ERROR(runtime_->SetDevice(ordinal));
      for (int peer = gpus.begin; peer < gpus.end && !options_.create_group; ++peer) {
        if (peer == ordinal) continue;
        if (const absl::Status status = runtime_->EnablePeerAccess(peer); !status.ok()) {
          return absl::FailedPreconditionError(
              absl::StrCat("collectives IN_PROCESS on several GPUs want each to reach the others' memory, and GPU ",
                           ordinal, " does not reach that of GPU ", peer, " (", status.message(),
                           "); set runtime.collectives=NCCL, or run all ranks on one GPU (runtime.ranks_per_device)"));
        }
      }
      const std::shared_ptr<Device> device(owned, owned->device.get());
      for (int i = 0; i < options_.ranks_per_device && std::ssize(devices) < ranks; ++i) devices.push_back(device);
    }
    return devices;
  }

  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    if (!options_.create_group) {
      SHALE_RETURN_IF_ERROR(group.CheckOneProcess());
      return CreateStreamOrderedGroup(group.devices, {.sum_ranks = SumOnStream});
    }
    std::vector<int> ordinals;
    for (const auto& device : group.devices) ordinals.push_back(ToCuda(*device).ordinal());
    return options_.create_group(group, ordinals);
  }

  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override {
    const bool alone = options_.share.ranks == 0;
    SHALE_ASSIGN_OR_RETURN(const GpuRange gpus, Gpus(alone ? ranks : options_.share.ranks));
    const int64_t sharing = RanksSharing(ranks);
    // How many have the libraries on one GPU.
    const int64_t processes = options_.processes_share ? sharing : 1;
    const bool nccl = (gpus.end - gpus.begin > 1 || processes > 1 || !alone) && options_.create_group != nullptr;
    int64_t least = kNoBudget, left = 0;
    for (int ordinal = gpus.begin; ordinal < gpus.end; ++ordinal) {
      SHALE_ASSIGN_OR_RETURN(const CudaDeviceProperties gpu, runtime_->Properties(ordinal));
      const int64_t libraries = GpuLibraryBytes(nccl, gpu.compute_major);
      const int64_t bytes = std::max<int64_t>(0, gpu.total_bytes / processes - libraries);
      if (bytes < least) left = libraries;
      least = std::min(least, bytes);
    }
    const auto divided = [](int64_t by, absl::string_view who = " ranks") {
      return by > 1 ? absl::StrCat(", divided by ", by, who) : "";
    };
    const std::string libraries = absl::StrCat(left >> 30, " GiB for CUDA and its libraries", nccl ? " with NCCL" : "");
    return Budget{.bytes = least / (sharing / processes),
                  .origin = processes > 1 ? absl::StrCat("the GPU's memory", divided(processes, " processes"),
                                                         ", less ", libraries)
                                          : absl::StrCat("the GPU's memory less ", libraries, divided(sharing)),
                  .host_bytes = PhysicalMemoryBytes() / 5 * 4 / std::max<int64_t>(1, ranks),
                  .host_origin = absl::StrCat("80 % of this machine's memory", divided(ranks))};
  }

  int64_t RanksSharing(int64_t ranks) const override {
    return std::max<int64_t>(1, std::min<int64_t>(ranks, options_.ranks_per_device));
  }

  std::string device_name() const override { return FirstGpu().name; }

  std::pair<int, int> compute_capability() const override {
    const CudaDeviceProperties gpu = FirstGpu();
    return {gpu.compute_major, gpu.compute_minor};
  }

  double NominalPeakFlops(DType dtype) const override {
    return NominalPeakOf(device_name(), dtype, options_.allow_tf32);
  }

  bool warms_up() const override { return true; }

  int64_t late_bytes() const override {
    // What another process takes of a GPU looks as if this one had taken it.
    return options_.processes_share ? std::numeric_limits<int64_t>::max() : kLateBytes;
  }

  absl::Status CheckMemory(const std::vector<std::shared_ptr<Device>>& devices, int64_t arena_bytes) const override {
    for (size_t first = 0; first < devices.size();) {
      const CudaDevice& device = ToCuda(*devices[first]);
      int64_t sharing = 0;
      for (; first < devices.size() && devices[first].get() == &device; ++first) ++sharing;
      SHALE_ASSIGN_OR_RETURN(const DeviceMemory memory, device.Memory());
      const int64_t free_bytes = memory.free_bytes;
      const int64_t most = std::max<int64_t>(0, free_bytes - kLateBytes) / sharing;
      if (arena_bytes <= most) continue;
      const CudaDeviceProperties& gpu = device.properties();
      return absl::ResourceExhaustedError(absl::StrCat(
          "GPU ", device.ordinal(), " (", gpu.name, ") has ", FormatBytes(free_bytes), " free of ",
          FormatBytes(gpu.total_bytes), ", and ", sharing == 1 ? "a rank wants" : absl::StrCat(sharing, " ranks want"),
          " an arena of ", FormatBytes(arena_bytes), sharing == 1 ? "" : " each", ", and ", FormatBytes(kLateBytes),
          " must stay free for windows, graphs and what libraries allocate late; end what else uses it, or set "
          "memory.budget_bytes to at most ",
          most, " to see what would fit"));
    }
    return absl::OkStatus();
  }

  std::string Describe(const std::vector<std::shared_ptr<Device>>& devices) const override {
    std::string text;
    const Device* last = nullptr;
    for (const auto& shared : devices) {
      if (shared.get() == last) continue;
      last = shared.get();
      const absl::StatusOr<DeviceMemory> memory = last->Memory();
      if (!memory.ok()) continue;  // The next call that needs this GPU reports the error.
      const CudaDeviceProperties& gpu = ToCuda(*last).properties();
      absl::StrAppend(&text, text.empty() ? "" : "; ", "GPU ", ToCuda(*last).ordinal(), ": ", gpu.name, ", ",
                      FormatBytes(gpu.total_bytes - memory->free_bytes), " of ", FormatBytes(gpu.total_bytes),
                      " in use outside the arenas, by CUDA, its libraries and other programs");
      if (const std::string& why = ToCuda(*last).why_no_marks(); !why.empty()) {
        absl::StrAppend(&text, "; an error will not say how far its streams came: ", why);
      }
    }
    const std::string libraries = options_.describe_libraries ? options_.describe_libraries() : "";
    for (const std::string& line : {libraries, declined_->Describe()}) {
      if (!line.empty()) absl::StrAppend(&text, "\n", line);
    }
    return text;
  }

 private:
  struct GpuRange {
    int begin = 0, end = 0;
  };

  // Returns the properties of the first GPU, or none if there is no GPU.
  CudaDeviceProperties FirstGpu() const {
    const absl::StatusOr<int> gpus = runtime_->DeviceCount();
    if (!gpus.ok() || *gpus == 0) return {};
    return runtime_->Properties(0).value_or(CudaDeviceProperties());
  }

  // Returns the GPUs that `ranks` ranks of this process use, or FailedPrecondition if it does not see enough of them.
  absl::StatusOr<GpuRange> Gpus(int64_t ranks) const {
    SHALE_ASSIGN_OR_RETURN(const int found, runtime_->DeviceCount());
    const int64_t wanted = CeilDivide(ranks, options_.ranks_per_device);
    const HostShare& share = options_.share;
    const int64_t before = share.ranks_before / options_.ranks_per_device;
    const int64_t mine = CeilDivide(std::max(ranks, share.ranks), options_.ranks_per_device);
    const int64_t on_host = std::max(mine, CeilDivide(share.ranks_on_host, options_.ranks_per_device));
    if (options_.processes_share && share.ranks_on_host > 1 && found >= share.ranks_on_host) {
      return absl::FailedPreconditionError(
          absl::StrCat("runtime.nccl_shares_gpus is for tests on a host with fewer GPUs than ranks, and this one has ",
                       found, " for ", share.ranks_on_host,
                       "; leave it out, with ranks_per_device 1, or hide GPUs (CUDA_VISIBLE_DEVICES)"));
    }
    if (on_host <= found) return GpuRange{static_cast<int>(before), static_cast<int>(before + wanted)};
    if (mine == found) return GpuRange{0, static_cast<int>(wanted)};  // The launcher shows each process its own.
    if (on_host > mine) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the processes of this host want ", on_host, " GPUs, and this process ", mine, " of them; found ", found,
          ". Let every process see all GPUs of the host, or only its own (CUDA_VISIBLE_DEVICES), or start fewer "
          "processes on this host"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(ranks, " ranks with ", options_.ranks_per_device, " on a GPU want ", wanted, " GPUs; found ",
                     found, ". Run fewer ranks (sharding.ranks), or more on each GPU (runtime.ranks_per_device)"));
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  const CudaBackendOptions options_;
  const std::shared_ptr<DeclinedAttention> declined_ = std::make_shared<DeclinedAttention>();
};

}  // namespace

std::unique_ptr<Backend> CreateCudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options) {
  SHALE_CHECK(options.create_matmuls != nullptr && options.ranks_per_device >= 1);
  return std::make_unique<CudaBackend>(std::move(runtime), std::move(options));
}

}  // namespace shale

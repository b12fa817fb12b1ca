#include "tools/bench/gpu.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Several calls are timed as one sample of about this length, at most kMostTogether of them: recording an event takes
// about a microsecond, too much for a kernel of a few microseconds.
constexpr double kSampleSeconds = 2e-4;
constexpr int64_t kMostTogether = 50;

std::string OneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", "; "}}); }

class GpuMachine : public OpsMachine {
 public:
  static absl::StatusOr<std::unique_ptr<OpsMachine>> Create(const CreateGpuBackend& create,
                                                            const OpsMachineOptions& options) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                           create({.tuning_table = options.tuning_table, .own_attention = options.own_attention}));
    SHALE_ASSIGN_OR_RETURN(auto devices, backend->CreateDevices(1, false));
    return std::unique_ptr<OpsMachine>(new GpuMachine(std::move(backend), std::move(devices)));
  }

  std::string name() const override { return OneLine(backend_->Describe(devices_)); }
  Device& device() override { return *devices_.front(); }
  Ops& ops() override { return *ops_; }
  bool host_memory() const override { return false; }
  double target() const override { return 0.85; }

  std::array<CopyWords, 2> copies() const override {
    return {{{.about = "cudaMemcpyAsync of as many bytes", .column = "of copy", .json = "of_copy"},
             {.about = "of a whole buffer", .column = "of large copy", .json = "of_large_copy"}}};
  }
  int64_t CopyBytes(int kind, int64_t buffer_bytes, double op_bytes) const override {
    if (kind == 1) return buffer_bytes;
    return std::clamp<int64_t>(RoundDown(static_cast<int64_t>(op_bytes / 2), 64), 64, buffer_bytes);
  }
  absl::Status EnqueueCopy(int /*kind*/, std::byte* to, const std::byte* from, int64_t size_bytes,
                           Stream& stream) override {
    return stream.Copy(to, from, size_bytes);
  }
  int64_t CallsTogether(double seconds) const override {
    return std::clamp<int64_t>(static_cast<int64_t>(kSampleSeconds / seconds), 2, kMostTogether);
  }

 private:
  GpuMachine(std::unique_ptr<Backend> backend, std::vector<std::shared_ptr<Device>> devices)
      : backend_(std::move(backend)),
        devices_(std::move(devices)),
        ops_(backend_->CreateOps(/*ranks=*/1, devices_.front().get())) {}

  const std::unique_ptr<Backend> backend_;
  const std::vector<std::shared_ptr<Device>> devices_;
  const std::unique_ptr<Ops> ops_;
};

absl::StatusOr<CommRanks> CreateRanks(const CreateGpuBackend& create, const GpuBackendOptions& options, int process) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, create(options));
  const bool alone = options.place.store == nullptr;
  CommRanks made;
  SHALE_ASSIGN_OR_RETURN(made.devices, backend->CreateDevices(alone ? options.ranks : 1, false));
  GroupMembers group = GroupMembers::OfOneProcess(made.devices);
  if (!alone) {
    group.name = "all";
    group.size = options.ranks;
    group.places = {process};
  }
  SHALE_ASSIGN_OR_RETURN(made.communicators, backend->CreateGroup(group));
  made.about = OneLine(backend->Describe(made.devices));
  return made;
}

}  // namespace

OpsMachineKind GpuOps(CreateGpuBackend create) {
  return {.device = "cuda", .create = [create = std::move(create)](const OpsMachineOptions& options) {
            return GpuMachine::Create(create, options);
          }};
}

std::vector<CommKind> GpuComms(CreateGpuBackend create, JoinedProcesses* joined) {
  if (joined != nullptr && !joined->alone()) {
    const int process = joined->place().process;
    const GpuBackendOptions options = {
        .nccl = true,
        .place = {
            .store = &joined->store(),
            .share = {.ranks = 1, .ranks_before = joined->ranks_before_here(), .ranks_on_host = joined->ranks_here()}}};
    const auto rank = [create, options, process](int ranks, int ranks_per_device) {
      GpuBackendOptions mine = options;
      mine.ranks = ranks;
      mine.ranks_per_device = ranks_per_device;
      return CreateRanks(create, mine, process);
    };
    return {{.device = "nccl",
             .shares_devices = true,
             .usual_ranks_per_device = 1,
             .host_memory = false,
             .thread_per_rank = true,
             .create = rank}};
  }
  std::vector<CommKind> kinds;
  for (const bool nccl : {false, true}) {
    const auto ranks = [create, nccl](int ranks, int ranks_per_device) {
      return CreateRanks(create, {.ranks = ranks, .ranks_per_device = nccl ? 1 : ranks_per_device, .nccl = nccl}, 0);
    };
    kinds.push_back({.device = nccl ? "nccl" : "cuda",
                     .shares_devices = !nccl,
                     .host_memory = false,
                     .thread_per_rank = true,
                     .create = ranks});
  }
  return kinds;
}

}  // namespace shale

#include "sharding/comm/nccl/nccl.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/nccl/nccl_group.h"

namespace shale {
namespace {

NcclType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return NcclType::kFloat32;
    case DType::kFloat64: return NcclType::kFloat64;
    default: SHALE_CHECK(dtype == DType::kInt64) << "a sum of " << ToString(dtype); return NcclType::kInt64;
  }
}

class NcclCommunicator : public Communicator {
 public:
  // `index` is the index of the rank among those of this process.
  NcclCommunicator(std::shared_ptr<NcclApi> nccl, std::shared_ptr<NcclGroup> group, int index, bool windows)
      : nccl_(std::move(nccl)), group_(std::move(group)), index_(index), windows_(windows) {}
  ~NcclCommunicator() override { group_->Leave(index_); }

  int rank() const override { return group_->rank(index_).rank(); }
  int size() const override { return group_->rank(index_).size(); }

  absl::Status RegisterMemory(std::byte* memory, int64_t size_bytes) override {
    if (!windows_) return absl::OkStatus();
    absl::Status status = group_->rank(index_).RegisterWindow(memory, size_bytes);
    if (!status.ok()) group_->Fail(status);
    return status;
  }
  absl::Status DeregisterMemory() override {
    absl::Status status = group_->rank(index_).DeregisterWindow();
    if (!status.ok()) group_->Fail(status);
    return status;
  }

  void Abort(absl::Status reason) override { group_->Fail(AbortedBy(rank(), std::move(reason))); }

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllGather(shard, full, rank(), size()));
    return Enqueue(CollectiveKind::kAllGather, full, stream, [&](NcclComm comm, cuda::StreamHandle handle) {
      return nccl_->AllGather(shard.data, full.data, shard.extent_bytes(), NcclType::kBytes, comm, handle);
    });
  }
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckReduceScatterSum(full, shard, rank(), size()));
    return Enqueue(CollectiveKind::kReduceScatterSum, full, stream, [&](NcclComm comm, cuda::StreamHandle handle) {
      return nccl_->ReduceScatterSum(full.data, shard.data, shard.elements(), TypeOf(full.dtype), comm, handle);
    });
  }
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllReduceSum(data));
    return Enqueue(CollectiveKind::kAllReduceSum, data, stream, [&](NcclComm comm, cuda::StreamHandle handle) {
      return nccl_->AllReduceSum(data.data, data.data, data.elements(), TypeOf(data.dtype), comm, handle);
    });
  }

 private:
  // `full` is the entire vector: `data` of an all-reduce. Does nothing if it has no elements, which is so on all ranks
  // or on none.
  absl::Status Enqueue(CollectiveKind kind, const Tensor& full, Stream& stream,
                       absl::FunctionRef<NcclResult(NcclComm, cuda::StreamHandle)> enqueue) {
    SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
    if (full.elements() == 0) return absl::OkStatus();
    return group_->Launch(index_, {.kind = kind, .dtype = full.dtype, .elements = full.elements()}, *cuda_stream,
                          enqueue);
  }

  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<NcclGroup> group_;
  const int index_;
  const bool windows_;
};

absl::Status CheckOptions(NcclApi& nccl, const NcclOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckTimeout(options.timeout_seconds));
  if (!options.windows || nccl.has_windows()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this NCCL has no symmetric windows; install NCCL 2.27 or newer, or remove runtime.nccl_windows");
}

// Creates the communicators of this process: ranks first_rank, first_rank + 1, ... of `size`, one per ordinal.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateRanks(const std::shared_ptr<NcclApi>& nccl,
                                                                       const std::shared_ptr<CudaRuntime>& runtime,
                                                                       const NcclUniqueId& id, int first_rank, int size,
                                                                       absl::Span<const int> ordinals,
                                                                       const NcclOptions& options) {
  std::vector<std::unique_ptr<NcclRank>> ranks;
  absl::Status begun;
  for (int index = 0; index < std::ssize(ordinals) && begun.ok(); ++index) {
    ranks.push_back(std::make_unique<NcclRank>(nccl, runtime,
                                               NcclRank::Options{.rank = first_rank + index,
                                                                 .size = size,
                                                                 .ordinal = ordinals[index],
                                                                 .timeout_seconds = options.timeout_seconds}));
    begun = ranks.back()->BeginInit(id);
  }
  if (!begun.ok()) {
    for (const auto& rank : ranks) rank->Abort();
    return begun;
  }
  SHALE_ASSIGN_OR_RETURN(std::shared_ptr<NcclGroup> group,
                         NcclGroup::Create(std::move(ranks), {.timeout_seconds = options.timeout_seconds,
                                                              .agreement = options.check_agreement}));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int index = 0; index < std::ssize(ordinals); ++index) {
    communicators.push_back(std::make_unique<NcclCommunicator>(nccl, group, index, options.windows));
  }
  return communicators;
}

}  // namespace

CudaMemorySource CreateNcclMemory(std::shared_ptr<NcclApi> nccl) {
  return {.allocate = [nccl](int64_t size_bytes) -> absl::StatusOr<void*> {
            void* memory = nullptr;
            const NcclResult result = nccl->MemAlloc(memory, size_bytes);
            if (result == NcclResult::kSuccess) return memory;
            return absl::ResourceExhaustedError(absl::StrCat(
                "ncclMemAlloc of ", size_bytes, " bytes: ", nccl->ErrorString(result), " ", nccl->LastError()));
          },
          .free = [nccl](void* memory) -> absl::Status {
            const NcclResult result = nccl->MemFree(memory);
            if (result == NcclResult::kSuccess) return absl::OkStatus();
            return absl::InternalError(absl::StrCat("ncclMemFree: ", nccl->ErrorString(result)));
          }};
}

absl::StatusOr<NcclUniqueId> CreateNcclUniqueId(NcclApi& nccl) {
  NcclUniqueId id;
  if (const NcclResult result = nccl.GetUniqueId(id); result != NcclResult::kSuccess) {
    return absl::InternalError(absl::StrCat("ncclGetUniqueId: ", nccl.ErrorString(result), " ", nccl.LastError(),
                                            "; NCCL_DEBUG=INFO tells more"));
  }
  return id;
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(std::shared_ptr<NcclApi> nccl,
                                                                     std::shared_ptr<CudaRuntime> runtime,
                                                                     const NcclUniqueId& id, int rank, int size,
                                                                     int ordinal, const NcclOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(*nccl, options));
  if (rank < 0 || rank >= size) return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size));
  if (options.check_agreement) {
    return absl::InvalidArgumentError("check_agreement requires all ranks to be threads of one process");
  }
  SHALE_ASSIGN_OR_RETURN(auto communicators, CreateRanks(nccl, runtime, id, rank, size, {ordinal}, options));
  return std::move(communicators[0]);
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           absl::Span<const int> ordinals,
                                                                           const NcclOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(*nccl, options));
  if (ordinals.empty()) return absl::InvalidArgumentError("a group has at least 1 rank, not 0");
  SHALE_ASSIGN_OR_RETURN(const NcclUniqueId id, CreateNcclUniqueId(*nccl));
  return CreateRanks(nccl, runtime, id, /*first_rank=*/0, static_cast<int>(ordinals.size()), ordinals, options);
}

}  // namespace shale

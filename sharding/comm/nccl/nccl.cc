#include "sharding/comm/nccl/nccl.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/nccl/nccl_group.h"

namespace shale {
namespace {

// How long a group without a time-out waits for the process of its rank 0.
constexpr double kLongestWaitSeconds = 24 * 3600;

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

  // A rank without elements takes part too, because others may have some.
  absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllToAll(sent, received, rank(), size()));
    SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
    const NcclCollective collective = {.kind = CollectiveKind::kAllToAll, .dtype = sent.vector.dtype};
    const std::vector<NcclPiece> from = PiecesOf(sent), to = PiecesOf(received);
    return group_->Launch(
        index_, collective, *cuda_stream,
        [&](NcclComm comm, cuda::StreamHandle handle) { return nccl_->AllToAll(from, to, comm, handle); },
        Rendezvous::Exchange::Of(sent, received));
  }

 private:
  static std::vector<NcclPiece> PiecesOf(const RankPieces& pieces) {
    const int64_t element_bytes = SizeOf(pieces.vector.dtype);
    std::vector<NcclPiece> found;
    for (const auto& [begin, end] : pieces.ranges) {
      found.push_back({pieces.vector.as<std::byte>() + begin * element_bytes, (end - begin) * element_bytes});
    }
    return found;
  }

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

// Creates the communicators of the members.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateRanks(const std::shared_ptr<NcclApi>& nccl,
                                                                       const std::shared_ptr<CudaRuntime>& runtime,
                                                                       const NcclUniqueId& id,
                                                                       const NcclMembers& members,
                                                                       const NcclOptions& options) {
  std::vector<std::unique_ptr<NcclRank>> ranks;
  absl::Status begun;
  for (size_t index = 0; index < members.ranks.size() && begun.ok(); ++index) {
    ranks.push_back(std::make_unique<NcclRank>(nccl, runtime,
                                               NcclRank::Options{.rank = members.ranks[index],
                                                                 .size = members.size,
                                                                 .ordinal = members.ordinals[index],
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
  for (int index = 0; index < std::ssize(members.ranks); ++index) {
    communicators.push_back(std::make_unique<NcclCommunicator>(nccl, group, index, options.windows));
  }
  return communicators;
}

absl::StatusOr<NcclUniqueId> CreateId(NcclApi& nccl) {
  NcclUniqueId id;
  if (const NcclResult result = nccl.GetUniqueId(id); result != NcclResult::kSuccess) {
    return absl::InternalError(absl::StrCat("ncclGetUniqueId: ", nccl.ErrorString(result), " ", nccl.LastError(),
                                            "; NCCL_DEBUG=INFO tells more"));
  }
  return id;
}

// Returns the group's id, which the process of rank 0 creates for all.
absl::StatusOr<NcclUniqueId> ShareId(NcclApi& nccl, Store& store, const NcclMembers& members, double timeout_seconds) {
  const std::string key = absl::StrCat("nccl/", members.name);
  NcclUniqueId id;
  if (members.ranks[0] == 0) {
    SHALE_ASSIGN_OR_RETURN(id, CreateId(nccl));
    SHALE_RETURN_IF_ERROR(store.Put(key, std::string(id.bytes.begin(), id.bytes.end())));
    return id;
  }
  SHALE_ASSIGN_OR_RETURN(const std::string bytes,
                         store.Get(key, timeout_seconds > 0 ? timeout_seconds : kLongestWaitSeconds));
  if (bytes.size() != id.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("group ", members.name, ": wanted an id of NCCL of ",
                                                   id.bytes.size(), " bytes, found ", bytes.size()));
  }
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

// Checks the members of a group of several processes.
absl::Status CheckMembers(const NcclMembers& members, const NcclOptions& options) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("group ", members.name, " of ", members.size, " ranks: ", why));
  };
  if (options.check_agreement) return refuse("check_agreement requires all ranks to be threads of one process");
  if (members.ranks.empty()) return refuse("this process holds none of them");
  if (members.ranks.size() != members.ordinals.size()) return refuse("a rank has no GPU");
  int last = -1;
  for (const int rank : members.ranks) {
    if (rank <= last || rank >= members.size) return refuse(absl::StrCat("rank ", rank, " after ", last));
    last = rank;
  }
  return absl::OkStatus();
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

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           Store& store, const NcclMembers& members,
                                                                           const NcclOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(*nccl, options));
  SHALE_RETURN_IF_ERROR(CheckMembers(members, options));
  SHALE_ASSIGN_OR_RETURN(const NcclUniqueId id, ShareId(*nccl, store, members, options.timeout_seconds));
  return CreateRanks(nccl, runtime, id, members, options);
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           absl::Span<const int> ordinals,
                                                                           const NcclOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(*nccl, options));
  if (ordinals.empty()) return absl::InvalidArgumentError("a group has at least 1 rank, not 0");
  NcclMembers all = {.size = static_cast<int>(ordinals.size()), .ordinals = {ordinals.begin(), ordinals.end()}};
  for (int rank = 0; rank < all.size; ++rank) all.ranks.push_back(rank);
  SHALE_ASSIGN_OR_RETURN(const NcclUniqueId id, CreateId(*nccl));
  return CreateRanks(nccl, runtime, id, all, options);
}

}  // namespace shale

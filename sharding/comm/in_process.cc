#include "sharding/comm/in_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/rendezvous.h"
#include "sharding/comm/sum_ranks.h"

namespace shale {
namespace {

constexpr double kMaxTimeoutSeconds = 1e9;

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Rendezvous> rendezvous, int rank)
      : rendezvous_(std::move(rendezvous)), rank_(rank), inputs_(rendezvous_->size()) {}
  ~InProcessCommunicator() override { rendezvous_->Abort(absl::AbortedError(absl::StrCat("rank ", rank_, " left"))); }

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_->size(); }

  void Abort(absl::Status reason) override {
    // Aborted marks what only repeats another rank's error; such an error is passed on as it is.
    if (reason.code() != absl::StatusCode::kAborted) {
      reason = absl::AbortedError(absl::StrCat("rank ", rank_, " aborted: ", reason.ToString()));
    }
    rendezvous_->Abort(std::move(reason));
  }

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllGather(shard, full, rank_, size()));
    return Enqueue(CollectiveKind::kAllGather, full, shard, full, &InProcessCommunicator::AllGatherWork, stream);
  }
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckReduceScatterSum(full, shard, rank_, size()));
    return Enqueue(CollectiveKind::kReduceScatterSum, full, full, shard, &InProcessCommunicator::ReduceScatterWork,
                   stream);
  }
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllReduceSum(data));
    return Enqueue(CollectiveKind::kAllReduceSum, data, data, data, &InProcessCommunicator::AllReduceWork, stream);
  }

 private:
  using Work = void (InProcessCommunicator::*)();

  // `whole`: the vector of all ranks' slices.
  absl::Status Enqueue(CollectiveKind kind, const Tensor& whole, const Tensor& input, const Tensor& output, Work work,
                       Stream& stream) {
    SHALE_ASSIGN_OR_RETURN(CpuStream * cpu_stream, CpuStream::From(stream));
    const Rendezvous::Call call{.kind = kind,
                                .dtype = whole.dtype,
                                .elements = whole.elements(),
                                .input = input.as<std::byte>(),
                                .output = output.as<std::byte>()};
    return cpu_stream->Enqueue([this, call, work] {
      SHALE_RETURN_IF_ERROR(rendezvous_->Meet(rank_, call));
      (this->*work)();
      rendezvous_->Sync();
      return absl::OkStatus();
    });
  }

  // The calls below run in the stream's thread, between Meet and Sync.
  const Rendezvous::Call& mine() const { return rendezvous_->call(rank_); }

  // Each rank begins with its own shard, so that not all read the same one.
  void AllGatherWork() {
    const int64_t slice_bytes = mine().elements / size() * SizeOf(mine().dtype);
    for (int i = 0; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      const std::byte* from = rendezvous_->call(peer).input;
      std::byte* to = mine().output + peer * slice_bytes;
      if (from != to && slice_bytes > 0) std::memcpy(to, from, slice_bytes);
    }
  }

  void ReduceScatterWork() {
    const int64_t slice = mine().elements / size();
    SumSlice(rank_ * slice, slice, mine().output);
  }

  // Each rank sums its part of the vector, then everybody copies everybody's part.
  void AllReduceWork() {
    const int64_t element_bytes = SizeOf(mine().dtype);
    const int64_t line = kCacheLineBytes / element_bytes;
    const int64_t part = ((mine().elements + size() * line - 1) / (size() * line)) * line;
    const auto begin = [&](int rank) { return std::min(mine().elements, rank * part); };
    SumSlice(begin(rank_), begin(rank_ + 1) - begin(rank_), mine().output + begin(rank_) * element_bytes);
    rendezvous_->Sync();
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      const int64_t offset = begin(peer) * element_bytes, bytes = (begin(peer + 1) - begin(peer)) * element_bytes;
      if (bytes > 0) std::memcpy(mine().output + offset, rendezvous_->call(peer).output + offset, bytes);
    }
  }

  // out = sum over ranks, in rank order, of elements [begin, begin + count) of their inputs.
  void SumSlice(int64_t begin, int64_t count, std::byte* out) {
    if (count == 0) return;
    for (int rank = 0; rank < size(); ++rank) {
      inputs_[rank] = rendezvous_->call(rank).input + begin * SizeOf(mine().dtype);
    }
    SumRanks(mine().dtype, inputs_, out, count);
  }

  static constexpr int64_t kCacheLineBytes = 64;  // Two ranks never write the same line.

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_;
  std::vector<const std::byte*> inputs_;  // By rank; the stream thread's, kept to allocate nothing in a collective.
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroup(int size,
                                                                                const InProcessGroupOptions& options) {
  if (size < 1) return absl::InvalidArgumentError(absl::StrCat("a group has at least 1 rank, not ", size));
  if (!(options.timeout_seconds >= 0 && options.timeout_seconds <= kMaxTimeoutSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a time-out is 0 (none) to ", kMaxTimeoutSeconds, " seconds, not ", options.timeout_seconds));
  }
  auto rendezvous = std::make_shared<Rendezvous>(size, options.timeout_seconds);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < size; ++rank) group.push_back(std::make_unique<InProcessCommunicator>(rendezvous, rank));
  return group;
}

}  // namespace shale

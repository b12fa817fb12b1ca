#include "sharding/comm/stream_ordered.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/rendezvous.h"

namespace shale {
namespace {

// What a rank's peers wait for.
struct RankEvents {
  std::shared_ptr<Device> device;  // Outlives its events.
  std::unique_ptr<Event> ready;   // What it brings may be read.
  std::unique_ptr<Event> summed;  // Its part of an all-reduce may be.
  std::unique_ptr<Event> done;    // It has read what its peers brought.
};

struct SharedGroup {
  SharedGroup(int size, const StreamOrderedGroupOptions& options)
      : sum_ranks(options.sum_ranks), rendezvous(size, options.timeout_seconds), events(size) {}
  const EnqueueSumRanks sum_ranks;
  Rendezvous rendezvous;
  std::vector<RankEvents> events;  // By rank.
};

class StreamOrderedCommunicator : public Communicator {
 public:
  StreamOrderedCommunicator(std::shared_ptr<SharedGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), inputs_(group_->rendezvous.size()) {}
  ~StreamOrderedCommunicator() override {
    group_->rendezvous.Abort(absl::AbortedError(absl::StrCat("rank ", rank_, " left")));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->rendezvous.size(); }

  void Abort(absl::Status reason) override {
    // Aborted marks what only repeats another rank's error; such an error is passed on as it is.
    if (reason.code() != absl::StatusCode::kAborted) {
      reason = absl::AbortedError(absl::StrCat("rank ", rank_, " aborted: ", reason.ToString()));
    }
    group_->rendezvous.Abort(std::move(reason));
  }

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllGather(shard, full, rank_, size()));
    return Enqueue(CollectiveKind::kAllGather, full, shard, full, &StreamOrderedCommunicator::AllGatherWork, stream);
  }
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckReduceScatterSum(full, shard, rank_, size()));
    return Enqueue(CollectiveKind::kReduceScatterSum, full, full, shard, &StreamOrderedCommunicator::ReduceScatterWork,
                   stream);
  }
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(CheckAllReduceSum(data));
    return Enqueue(CollectiveKind::kAllReduceSum, data, data, data, &StreamOrderedCommunicator::AllReduceWork, stream);
  }

 private:
  using Work = absl::Status (StreamOrderedCommunicator::*)(Stream&);

  // `whole`: the vector of all ranks' slices.
  absl::Status Enqueue(CollectiveKind kind, const Tensor& whole, const Tensor& input, const Tensor& output, Work work,
                       Stream& stream) {
    SHALE_RETURN_IF_ERROR(stream.Record(*group_->events[rank_].ready));
    SHALE_RETURN_IF_ERROR(group_->rendezvous.Meet(rank_, {.kind = kind,
                                                          .dtype = whole.dtype,
                                                          .elements = whole.elements(),
                                                          .input = input.as<std::byte>(),
                                                          .output = output.as<std::byte>()}));
    absl::Status status = WaitForPeers(&RankEvents::ready, stream);
    // Whatever fails here, the peers count on this rank to come to every Sync.
    status.Update((this->*work)(stream));
    return Pass(&RankEvents::done, std::move(status), stream);
  }

  // Between Meet and Sync.
  const Rendezvous::Call& call(int rank) const { return group_->rendezvous.call(rank); }
  const Rendezvous::Call& mine() const { return call(rank_); }

  absl::Status WaitForPeers(std::unique_ptr<Event> RankEvents::* event, Stream& stream) {
    for (int i = 1; i < size(); ++i) {
      SHALE_RETURN_IF_ERROR(stream.Wait(*(group_->events[(rank_ + i) % size()].*event)));
    }
    return absl::OkStatus();
  }

  // All ranks' streams have come this far before this one goes on.
  absl::Status Pass(std::unique_ptr<Event> RankEvents::* event, absl::Status status, Stream& stream) {
    status.Update(stream.Record(*(group_->events[rank_].*event)));
    group_->rendezvous.Sync();
    status.Update(WaitForPeers(event, stream));
    return status;
  }

  absl::Status AllGatherWork(Stream& stream) {
    const int64_t slice_bytes = mine().elements / size() * SizeOf(mine().dtype);
    for (int i = 0; i < size() && slice_bytes > 0; ++i) {
      const int peer = (rank_ + i) % size();
      const std::byte* from = call(peer).input;
      std::byte* to = mine().output + peer * slice_bytes;
      if (from != to) SHALE_RETURN_IF_ERROR(stream.Copy(to, from, slice_bytes));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatterWork(Stream& stream) {
    const int64_t slice = mine().elements / size();
    return SumSlice(rank_ * slice, slice, mine().output, stream);
  }

  // Each rank sums its part of the vector, then everybody copies everybody's part.
  absl::Status AllReduceWork(Stream& stream) {
    const int64_t element_bytes = SizeOf(mine().dtype);
    const int64_t line = kLineBytes / element_bytes;
    const int64_t part = (mine().elements + size() * line - 1) / (size() * line) * line;
    const auto begin = [&](int rank) { return std::min(mine().elements, rank * part); };
    absl::Status status = SumSlice(begin(rank_), begin(rank_ + 1) - begin(rank_),
                                   mine().output + begin(rank_) * element_bytes, stream);
    SHALE_RETURN_IF_ERROR(Pass(&RankEvents::summed, std::move(status), stream));
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      const int64_t offset = begin(peer) * element_bytes, bytes = (begin(peer + 1) - begin(peer)) * element_bytes;
      if (bytes > 0) SHALE_RETURN_IF_ERROR(stream.Copy(mine().output + offset, call(peer).output + offset, bytes));
    }
    return absl::OkStatus();
  }

  // out = sum over ranks, in rank order, of elements [begin, begin + count) of their inputs.
  absl::Status SumSlice(int64_t begin, int64_t count, std::byte* out, Stream& stream) {
    if (count == 0) return absl::OkStatus();
    for (int rank = 0; rank < size(); ++rank) inputs_[rank] = call(rank).input + begin * SizeOf(mine().dtype);
    return group_->sum_ranks(mine().dtype, inputs_, out, count, stream);
  }

  static constexpr int64_t kLineBytes = 128;  // Parts begin at multiples of it.

  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  std::vector<const std::byte*> inputs_;  // By rank; kept to allocate nothing in a collective.
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateStreamOrderedGroup(
    const std::vector<std::shared_ptr<Device>>& devices, const StreamOrderedGroupOptions& options) {
  const int size = static_cast<int>(devices.size());
  if (size < 1) return absl::InvalidArgumentError("a group has at least 1 rank, not 0");
  SHALE_CHECK(options.sum_ranks != nullptr);
  auto group = std::make_shared<SharedGroup>(size, options);
  for (int rank = 0; rank < size; ++rank) {
    RankEvents& events = group->events[rank];
    events.device = devices[rank];
    SHALE_ASSIGN_OR_RETURN(events.ready, events.device->CreateEvent());
    SHALE_ASSIGN_OR_RETURN(events.summed, events.device->CreateEvent());
    SHALE_ASSIGN_OR_RETURN(events.done, events.device->CreateEvent());
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<StreamOrderedCommunicator>(group, rank));
  }
  return communicators;
}

}  // namespace shale

#include "sharding/comm/stream_ordered.h"

#include <utility>

#include "kernels/check.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/rendezvous.h"
#include "sharding/comm/rendezvous_communicator.h"

namespace shale {
namespace {

// The events of one rank that its peers wait for.
struct RankEvents {
  std::shared_ptr<Device> device;  // Must outlive the events.
  std::unique_ptr<Event> ready;    // Peers may read the rank's inputs.
  std::unique_ptr<Event> summed;   // Peers may read the rank's part of an all-reduce.
  std::unique_ptr<Event> done;     // The rank has read its peers' buffers, so peers may overwrite them.
};

struct SharedGroup {
  SharedGroup(int size, EnqueueSumRanks sum_ranks) : sum_ranks(std::move(sum_ranks)), events(size) {}
  const EnqueueSumRanks sum_ranks;
  std::vector<RankEvents> events;  // By rank.
};

// The ranks meet in the threads that enqueue. Events order the work of their streams.
class StreamOrderedCommunicator : public RendezvousCommunicator {
 public:
  StreamOrderedCommunicator(std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<SharedGroup> group, int rank)
      : RendezvousCommunicator(std::move(rendezvous), rank), group_(std::move(group)) {}

 protected:
  absl::Status Enqueue(const Rendezvous::Call& call, Stream& stream) override {
    SHALE_RETURN_IF_ERROR(stream.Record(*group_->events[rank()].ready));
    SHALE_RETURN_IF_ERROR(rendezvous().Meet(rank(), call));
    absl::Status status = WaitForPeers(&RankEvents::ready, stream);
    // Goes on after an error, because the peers wait for this rank in every Sync.
    status.Update(Work(stream));
    status.Update(Pass(&RankEvents::done, stream));
    return status;
  }
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes, Stream& stream) override {
    return stream.Copy(to, from, size_bytes);
  }
  absl::Status Sum(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                   Stream& stream) override {
    return group_->sum_ranks(dtype, inputs, out, elements, stream);
  }
  absl::Status Barrier(Stream& stream) override { return Pass(&RankEvents::summed, stream); }

 private:
  absl::Status WaitForPeers(std::unique_ptr<Event> RankEvents::*event, Stream& stream) {
    for (int i = 1; i < size(); ++i) {
      SHALE_RETURN_IF_ERROR(stream.Wait(*(group_->events[(rank() + i) % size()].*event)));
    }
    return absl::OkStatus();
  }

  // Makes this stream wait until the streams of all ranks have reached this point.
  absl::Status Pass(std::unique_ptr<Event> RankEvents::*event, Stream& stream) {
    absl::Status status = stream.Record(*(group_->events[rank()].*event));
    rendezvous().Sync();
    status.Update(WaitForPeers(event, stream));
    return status;
  }

  const std::shared_ptr<SharedGroup> group_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateStreamOrderedGroup(
    const std::vector<std::shared_ptr<Device>>& devices, const StreamOrderedGroupOptions& options) {
  const int size = static_cast<int>(devices.size());
  if (size < 1) return absl::InvalidArgumentError("a group has at least 1 rank, not 0");
  SHALE_RETURN_IF_ERROR(CheckTimeout(options.timeout_seconds));
  SHALE_CHECK(options.sum_ranks != nullptr);
  auto rendezvous = std::make_shared<Rendezvous>(size, options.timeout_seconds);
  auto group = std::make_shared<SharedGroup>(size, options.sum_ranks);
  for (int rank = 0; rank < size; ++rank) {
    RankEvents& events = group->events[rank];
    events.device = devices[rank];
    SHALE_ASSIGN_OR_RETURN(events.ready, events.device->CreateEvent());
    SHALE_ASSIGN_OR_RETURN(events.summed, events.device->CreateEvent());
    SHALE_ASSIGN_OR_RETURN(events.done, events.device->CreateEvent());
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<StreamOrderedCommunicator>(rendezvous, group, rank));
  }
  return communicators;
}

}  // namespace shale

#include "sharding/comm/in_process.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/dtype.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/rendezvous.h"
#include "sharding/comm/rendezvous_communicator.h"
#include "sharding/comm/sum_ranks.h"

namespace shale {
namespace {

// The ranks meet, copy and sum in the threads of their streams.
class InProcessCommunicator : public RendezvousCommunicator {
 public:
  using RendezvousCommunicator::RendezvousCommunicator;

 protected:
  absl::Status Enqueue(const Rendezvous::Call& call, Stream& stream) override {
    SHALE_ASSIGN_OR_RETURN(CpuStream * cpu_stream, CpuStream::From(stream));
    return cpu_stream->Enqueue([this, call, &stream] {
      SHALE_RETURN_IF_ERROR(rendezvous().Meet(rank(), call));
      absl::Status status = Work(stream);
      rendezvous().Sync();
      return status;
    });
  }
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes, Stream& stream) override {
    CopyBytes(to, from, size_bytes);
    return absl::OkStatus();
  }
  absl::Status Sum(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                   Stream& stream) override {
    SumRanks(dtype, inputs, out, elements);
    return absl::OkStatus();
  }
  absl::Status Barrier(Stream& stream) override {
    rendezvous().Sync();
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroup(int size,
                                                                                const InProcessGroupOptions& options) {
  if (size < 1) return absl::InvalidArgumentError(absl::StrCat("a group has at least 1 rank, not ", size));
  SHALE_RETURN_IF_ERROR(CheckTimeout(options.timeout_seconds));
  auto rendezvous = std::make_shared<Rendezvous>(size, options.timeout_seconds);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < size; ++rank) group.push_back(std::make_unique<InProcessCommunicator>(rendezvous, rank));
  return group;
}

}  // namespace shale

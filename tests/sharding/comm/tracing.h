// TracingCommunicator: records collectives, for tests that count them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/comm/communicator.h"

namespace shale {

struct CollectiveRecord {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;  // Elements of the full vector: `full`, `data` of an all-reduce, all that an AllToAll sends.
  std::string label;     // The label of the communicator.
  int64_t bytes() const { return elements * SizeOf(dtype); }
  bool operator==(const CollectiveRecord&) const = default;
};

// Returns for example "gather AllGather 4096 bf16", for messages of tests.
std::string ToString(const CollectiveRecord& record);

// The collectives of one rank, over all of its communicators, in the order in which they were enqueued. Thread-safe.
class CollectiveTrace {
 public:
  void Add(CollectiveRecord record);
  std::vector<CollectiveRecord> records() const;
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> records_;
};

// Passes all calls to `wrapped`, which it owns, and records each collective that `wrapped` accepts. Borrows `trace`,
// which several communicators may share.
class TracingCommunicator : public Communicator {
 public:
  TracingCommunicator(std::unique_ptr<Communicator> wrapped, CollectiveTrace* trace, std::string label = "");

  int rank() const override { return wrapped_->rank(); }
  int size() const override { return wrapped_->size(); }
  void SetIssue(const CollectiveIssue& place) override { wrapped_->SetIssue(place); }
  absl::Status RegisterMemory(std::byte* memory, int64_t size_bytes) override {
    return wrapped_->RegisterMemory(memory, size_bytes);
  }
  absl::Status DeregisterMemory() override { return wrapped_->DeregisterMemory(); }
  void Abort(absl::Status reason) override { wrapped_->Abort(std::move(reason)); }

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override;
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override;
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override;
  absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) override;

 private:
  absl::Status Note(absl::Status enqueued, CollectiveKind kind, DType dtype, int64_t elements);

  const std::unique_ptr<Communicator> wrapped_;
  CollectiveTrace* const trace_;
  const std::string label_;
};

}  // namespace shale

#include "tests/sharding/comm/tracing.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace shale {

std::string ToString(const CollectiveRecord& record) {
  return absl::StrCat(record.label, record.label.empty() ? "" : " ", ToString(record.kind), " ", record.elements, " ",
                      ToString(record.dtype));
}

void CollectiveTrace::Add(CollectiveRecord record) {
  std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
}

std::vector<CollectiveRecord> CollectiveTrace::records() const {
  std::lock_guard lock(mutex_);
  return records_;
}

void CollectiveTrace::Clear() {
  std::lock_guard lock(mutex_);
  records_.clear();
}

TracingCommunicator::TracingCommunicator(std::unique_ptr<Communicator> wrapped, CollectiveTrace* trace,
                                         std::string label)
    : wrapped_(std::move(wrapped)), trace_(trace), label_(std::move(label)) {}

absl::Status TracingCommunicator::EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
  return Note(wrapped_->AllGather(shard, full, stream), CollectiveKind::kAllGather, full.dtype, full.elements());
}

absl::Status TracingCommunicator::EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
  return Note(wrapped_->ReduceScatterSum(full, shard, stream), CollectiveKind::kReduceScatterSum, full.dtype,
              full.elements());
}

absl::Status TracingCommunicator::EnqueueAllReduceSum(const Tensor& data, Stream& stream) {
  return Note(wrapped_->AllReduceSum(data, stream), CollectiveKind::kAllReduceSum, data.dtype, data.elements());
}

absl::Status TracingCommunicator::EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) {
  int64_t elements = 0;
  for (const ElementRange& range : sent.ranges) elements += range.end - range.begin;
  return Note(wrapped_->AllToAll(sent, received, stream), CollectiveKind::kAllToAll, sent.vector.dtype, elements);
}

absl::Status TracingCommunicator::Note(absl::Status enqueued, CollectiveKind kind, DType dtype, int64_t elements) {
  if (enqueued.ok()) trace_->Add({.kind = kind, .dtype = dtype, .elements = elements, .label = label_});
  return enqueued;
}

}  // namespace shale

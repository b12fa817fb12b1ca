#include "sharding/comm/collective_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sharding/comm/collective_kind.h"

namespace shale {
namespace {

template <class... Parts>
absl::Status Refuse(CollectiveKind kind, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(ToString(kind), ": ", parts...));
}

absl::Status CheckOperand(CollectiveKind kind, absl::string_view name, const Tensor& t) {
  if (!t.present()) return Refuse(kind, name, " is absent");
  if (!t.contiguous()) return Refuse(kind, name, " ", t.ToString(), " is not contiguous");
  if (t.data == nullptr && t.elements() > 0) return Refuse(kind, name, " ", t.ToString(), " is not bound to memory");
  return absl::OkStatus();
}

absl::Status CheckSum(CollectiveKind kind, DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kInt64) return absl::OkStatus();
  return Refuse(kind, "sums are of f32, f64 or i64, found ", ToString(dtype));
}

absl::Status CheckShardAndFull(CollectiveKind kind, const Tensor& shard, const Tensor& full, int rank, int size) {
  if (absl::Status status = CheckOperand(kind, "shard", shard); !status.ok()) return status;
  if (absl::Status status = CheckOperand(kind, "full", full); !status.ok()) return status;
  if (shard.dtype != full.dtype) {
    return Refuse(kind, "shard ", shard.ToString(), " and full ", full.ToString(), " differ in type");
  }
  if (full.elements() % size != 0 || full.elements() / size != shard.elements()) {
    return Refuse(kind, "full ", full.ToString(), " must have ", size, " times the elements of shard ",
                  shard.ToString(), ", one shard for each rank");
  }
  const int64_t bytes = shard.extent_bytes();
  const auto shard_begin = reinterpret_cast<uintptr_t>(shard.data), full_begin = reinterpret_cast<uintptr_t>(full.data);
  const bool disjoint = shard_begin + bytes <= full_begin || full_begin + bytes * size <= shard_begin;
  if (bytes > 0 && !disjoint && shard_begin != full_begin + bytes * rank) {
    return Refuse(kind, "shard overlaps full but does not lie at the place of shard ", rank, " in it");
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(absl::string_view name, const RankPieces& pieces, int size) {
  const CollectiveKind kind = CollectiveKind::kAllToAll;
  if (absl::Status status = CheckOperand(kind, name, pieces.vector); !status.ok()) return status;
  if (std::ssize(pieces.ranges) != size) {
    return Refuse(kind, name, " has ", pieces.ranges.size(), " pieces, and the group ", size, " ranks");
  }
  for (int rank = 0; rank < size; ++rank) {
    const auto [begin, end] = pieces.ranges[rank];
    if (begin >= 0 && begin <= end && end <= pieces.vector.elements()) continue;
    return Refuse(kind, name, " ", pieces.vector.ToString(), " has no elements [", begin, ", ", end,
                  "), the piece of rank ", rank);
  }
  return absl::OkStatus();
}

bool Overlap(absl::Span<const ElementRange> ranges) {
  const auto before = [](const ElementRange& a, const ElementRange& b) { return a.end <= b.begin; };
  const auto overlap = [&](const auto& sorted) {
    return std::adjacent_find(sorted.begin(), sorted.end(),
                              [&](const auto& a, const auto& b) { return !before(a, b); }) != sorted.end();
  };
  if (!overlap(ranges)) return false;
  std::vector<ElementRange> sorted;
  for (const ElementRange& range : ranges) {
    if (range.begin < range.end) sorted.push_back(range);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return overlap(sorted);
}

}  // namespace

absl::Status CheckAllGather(const Tensor& shard, const Tensor& full, int rank, int size) {
  return CheckShardAndFull(CollectiveKind::kAllGather, shard, full, rank, size);
}

absl::Status CheckReduceScatterSum(const Tensor& full, const Tensor& shard, int rank, int size) {
  const CollectiveKind kind = CollectiveKind::kReduceScatterSum;
  if (absl::Status status = CheckShardAndFull(kind, shard, full, rank, size); !status.ok()) return status;
  return CheckSum(kind, full.dtype);
}

absl::Status CheckAllReduceSum(const Tensor& data) {
  const CollectiveKind kind = CollectiveKind::kAllReduceSum;
  if (absl::Status status = CheckOperand(kind, "data", data); !status.ok()) return status;
  return CheckSum(kind, data.dtype);
}

absl::Status CheckAllToAll(const RankPieces& sent, const RankPieces& received, int rank, int size) {
  const CollectiveKind kind = CollectiveKind::kAllToAll;
  if (absl::Status status = CheckPieces("sent", sent, size); !status.ok()) return status;
  if (absl::Status status = CheckPieces("received", received, size); !status.ok()) return status;
  const Tensor &from = sent.vector, &to = received.vector;
  if (from.dtype != to.dtype) {
    return Refuse(kind, "sent ", from.ToString(), " and received ", to.ToString(), " differ in type");
  }
  const ElementRange out = sent.ranges[rank], in = received.ranges[rank];
  if (out.end - out.begin != in.end - in.begin) {
    return Refuse(kind, "rank ", rank, " sends itself ", out.end - out.begin, " elements and receives ",
                  in.end - in.begin);
  }
  const auto from_begin = reinterpret_cast<uintptr_t>(from.data), to_begin = reinterpret_cast<uintptr_t>(to.data);
  const bool empty = from.elements() == 0 || to.elements() == 0;
  if (!empty && from_begin < to_begin + to.extent_bytes() && to_begin < from_begin + from.extent_bytes()) {
    return Refuse(kind, "sent and received overlap");
  }
  return Overlap(received.ranges) ? Refuse(kind, "received pieces overlap") : absl::OkStatus();
}

absl::Status CheckTimeout(double seconds) {
  constexpr double kMax = 1e9;
  if (seconds >= 0 && seconds <= kMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a time-out is 0 (none) to ", kMax, " seconds, not ", seconds));
}

absl::Status AbortedBy(int rank, absl::Status reason) {
  if (reason.code() == absl::StatusCode::kAborted) return reason;
  return absl::AbortedError(absl::StrCat("rank ", rank, " aborted: ", reason.ToString()));
}

}  // namespace shale

// Compares what the ranks of a group want, for messages that all kinds of groups share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "sharding/comm/collective_kind.h"

namespace shale {

// The collective that a rank wants.
struct CollectiveWish {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;  // Elements of the full vector. 0 for an AllToAll, of which each rank has others.
  CollectiveIssue place;
  bool operator==(const CollectiveWish&) const = default;
};

// Returns for example "AllReduceSum of 100 f32".
std::string CollectiveText(CollectiveKind kind, int64_t elements, DType dtype);
// Returns the same with the place, if it is known: "AllReduceSum of 100 f32 for instruction 7 in iteration 0 of run 3".
std::string ToString(const CollectiveWish& wish);

// Returns for example "rank 3" or "ranks 1, 3".
std::string RankList(absl::Span<const int> ranks);

// Returns InvalidArgument if the wishes differ. The message says which rank wanted what in collective `number` of the
// group. wishes[i] is that of rank ranks[i].
absl::Status CheckAgreement(absl::Span<const CollectiveWish> wishes, absl::Span<const int> ranks, uint64_t number);

// Returns InvalidArgument unless rank `to` receives as many elements as rank `from` sends to it in collective `number`,
// an AllToAll.
absl::Status CheckPiece(int from, int64_t sent, int to, int64_t received, uint64_t number);

}  // namespace shale

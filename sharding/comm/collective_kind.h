// The kinds of collectives, which communicator.h defines, and where in a job a collective stands.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

enum class CollectiveKind : uint8_t { kAllGather, kReduceScatterSum, kAllReduceSum, kAllToAll };

constexpr absl::string_view ToString(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather: return "AllGather";
    case CollectiveKind::kReduceScatterSum: return "ReduceScatterSum";
    case CollectiveKind::kAllReduceSum: return "AllReduceSum";
    case CollectiveKind::kAllToAll: return "AllToAll";
  }
  return "?";
}

// The place of a collective in the programs that all ranks run, for checks and messages.
struct CollectiveIssue {
  int64_t run = 0;           // Counts the programs that the rank has run, from 1.
  int32_t instruction = -1;  // -1: the place is not known.
  int32_t iteration = 0;     // Of the instruction's loop.
  bool operator==(const CollectiveIssue&) const = default;
};

}  // namespace shale

// The kinds of collectives. communicator.h defines what each does.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

enum class CollectiveKind : uint8_t { kAllGather, kReduceScatterSum, kAllReduceSum };

constexpr absl::string_view ToString(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather: return "AllGather";
    case CollectiveKind::kReduceScatterSum: return "ReduceScatterSum";
    case CollectiveKind::kAllReduceSum: return "AllReduceSum";
  }
  return "?";
}

}  // namespace shale

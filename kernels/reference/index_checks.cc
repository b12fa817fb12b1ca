#include "kernels/reference/index_checks.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/ops/attention.h"

namespace shale {

absl::Status CheckTokens(absl::string_view op, const Tensor& tokens_BS, int64_t vocabulary) {
  const int32_t* tokens = tokens_BS.as<const int32_t>();
  for (int64_t t = 0; t < tokens_BS.elements(); ++t) {
    if (tokens[t] >= 0 && tokens[t] < vocabulary) continue;
    return absl::OutOfRangeError(
        absl::StrCat(op, ": tokens[", t, "] is ", tokens[t], "; wanted one in [0, ", vocabulary, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckTargets(absl::string_view op, const Tensor& targets_T, int64_t vocabulary) {
  const int32_t* targets = targets_T.as<const int32_t>();
  for (int64_t t = 0; t < targets_T.dim(0); ++t) {
    const int32_t target = targets[t * targets_T.stride(0)];
    if (target < vocabulary) continue;
    return absl::OutOfRangeError(absl::StrCat(op, ": targets[", t, "] is ", target, "; wanted one below ", vocabulary,
                                              ", or a negative one to ignore the row"));
  }
  return absl::OkStatus();
}

absl::Status CheckPositionIds(absl::string_view op, const Tensor& position_ids_BS) {
  if (!position_ids_BS.present()) return absl::OkStatus();
  const int32_t* ids = position_ids_BS.as<const int32_t>();
  for (int64_t t = 0; t < position_ids_BS.elements(); ++t) {
    const int32_t next = t % position_ids_BS.dim(1) == 0 ? 0 : ids[t - 1] + 1;
    if (ids[t] == 0 || ids[t] == next) continue;
    return absl::OutOfRangeError(absl::StrCat(op, ": position_ids[", t, "] is ", ids[t], "; wanted 0",
                                              next > 0 ? absl::StrCat(" or ", next) : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckBegins(absl::string_view op, const Tensor& begins_B, int64_t length, int64_t end) {
  if (!begins_B.present()) return absl::OkStatus();
  const int32_t* begins = begins_B.as<const int32_t>();
  for (int64_t b = 0; b < begins_B.dim(0); ++b) {
    if (begins[b] >= 0 && begins[b] <= end - length) continue;
    return absl::OutOfRangeError(absl::StrCat(op, ": begins[", b, "] is ", begins[b], "; wanted one in [0, ",
                                              end - length, "], for ", length, " tokens before position ", end));
  }
  return absl::OkStatus();
}

absl::Status CheckBegins(const CachedAttention& op) {
  const int64_t length = op.q_BSHD.dim(1), rows = op.keys_CGPD.dim(2);
  const bool ring = op.window > 0 && op.window <= rows - length + 1;
  return CheckBegins(op.kName, op.begins_B, length, ring ? std::numeric_limits<int32_t>::max() : rows);
}

}  // namespace shale

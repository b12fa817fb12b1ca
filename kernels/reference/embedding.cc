#include "kernels/ops/embedding.h"

#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const EmbeddingForward& op) {
  SHALE_RETURN_IF_ERROR(CheckTokens(op.kName, op.tokens_BS, op.weight_VC.dim(0)));
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  if (op.positions_PC.present()) {
    SHALE_RETURN_IF_ERROR(CheckBegins(op.kName, op.begins_B, op.tokens_BS.dim(1), op.positions_PC.dim(0)));
  }
  const int32_t* tokens = op.tokens_BS.as<const int32_t>();
  const int64_t c = op.out_TC.dim(1);
  for (int64_t t = 0; t < op.out_TC.dim(0); ++t) {
    const int64_t position = PositionIn(op, t, op.tokens_BS.dim(1));
    for (int64_t i = 0; i < c; ++i) {
      double value = op.scale * Get(op.weight_VC, tokens[t] * c + i);
      if (op.positions_PC.present()) value += Get(op.positions_PC, position * c + i);
      Put(op.out_TC, t * c + i, value);
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const EmbeddingBackward& op) {
  SHALE_RETURN_IF_ERROR(CheckTokens(op.kName, op.tokens_BS, op.d_weight_VC.dim(0)));
  const int32_t* tokens = op.tokens_BS.as<const int32_t>();
  const int64_t rows = op.d_out_TC.dim(0), c = op.d_out_TC.dim(1);
  for (int64_t v = 0; v < op.d_weight_VC.dim(0); ++v) {
    for (int64_t i = 0; i < c; ++i) {
      double total = 0;
      for (int64_t t = 0; t < rows; ++t) {
        if (tokens[t] == v) total += Get(op.d_out_TC, t * c + i);
      }
      PutGradient(op.d_weight_VC, v * c + i, op.scale * total, op.accumulate);
    }
  }
  if (!op.d_positions_PC.present()) return absl::OkStatus();
  for (int64_t s = 0; s < op.d_positions_PC.dim(0); ++s) {
    for (int64_t i = 0; i < c; ++i) {
      double total = 0;
      // The table may have more rows than a sequence has tokens. The extra rows get no gradient.
      for (int64_t t = s; s < op.tokens_BS.dim(1) && t < rows; t += op.tokens_BS.dim(1)) {
        total += Get(op.d_out_TC, t * c + i);
      }
      PutGradient(op.d_positions_PC, s * c + i, total, op.accumulate);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference

// Export of trained weights through the C interface.
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/job.h"
#include "engine/c/calls.h"
#include "engine/c/checkpoints.h"
#include "engine/c/shale.h"
#include "engine/model/config.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

absl::StatusOr<SafetensorsDType> TypeOf(int32_t type) {
  switch (type) {
    case SHALE_F32: return SafetensorsDType::kF32;
    case SHALE_BF16: return SafetensorsDType::kBF16;
    case SHALE_F16: return SafetensorsDType::kF16;
    default:
      return absl::InvalidArgumentError(absl::StrCat("type is ", type, "; allowed: SHALE_F32, SHALE_BF16, SHALE_F16"));
  }
}

absl::StatusOr<Job> JobOf(const CheckpointReader& checkpoint) {
  return ParseRecordedJob(checkpoint.manifest().job, "the checkpoint's job");
}

// Returns what reads the base of a checkpoint from `folder`, or null if it has none.
absl::StatusOr<ReadBase> BaseOf(const CheckpointReader& checkpoint, const std::string& folder) {
  if (!checkpoint.manifest().base && folder.empty()) return nullptr;
  SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
  SHALE_ASSIGN_OR_RETURN(OpenedBase base, OpenVerifiedBase(checkpoint, job.model, folder));
  return std::move(base.read);
}

absl::Status ExportAdapter(const CheckpointReader& checkpoint, SafetensorsDType type, const std::string& out) {
  SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  if (decoder == nullptr || !decoder->adapter) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(), ": the model has no adapters (model.adapter)"));
  }
  CheckpointValues values(checkpoint);
  const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> to) {
    return values.Read(parameter, begin, to);
  };
  return ExportHfAdapter(*decoder, type, job.hf_folder, read, out);
}

}  // namespace
}  // namespace shale::c

using shale::c::Call;
using shale::c::Require;

shale_code shale_export_parameters(const char* folder, int32_t type, const char* file, shale_error* error) {
  return shale_export_parameters_with_base(folder, /*base_folder=*/nullptr, type, file, error);
}

shale_code shale_export_parameters_with_base(const char* folder, const char* base_folder, int32_t type,
                                             const char* file, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(file, "file"));
    SHALE_ASSIGN_OR_RETURN(const shale::SafetensorsDType dtype, shale::c::TypeOf(type));
    const std::string base = base_folder == nullptr ? "" : base_folder;
    return shale::c::UseCheckpoint(folder, [&](const shale::CheckpointReader& checkpoint) -> absl::Status {
      SHALE_ASSIGN_OR_RETURN(shale::ReadBase read, shale::c::BaseOf(checkpoint, base));
      return shale::ExportParameters(checkpoint, dtype, file, std::move(read));
    });
  });
}

shale_code shale_export_adapter(const char* folder, int32_t type, const char* out, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(out, "out"));
    SHALE_ASSIGN_OR_RETURN(const shale::SafetensorsDType dtype, shale::c::TypeOf(type));
    return shale::c::UseCheckpoint(folder, [&](const shale::CheckpointReader& checkpoint) {
      return shale::c::ExportAdapter(checkpoint, dtype, out);
    });
  });
}

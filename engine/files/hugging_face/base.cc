#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/api/export.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/hugging_face/weights.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<OpenedBase> OpenBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                    const std::string& folder) {
  const Manifest& manifest = checkpoint.manifest();
  if (!manifest.base) {
    if (folder.empty()) return OpenedBase{};
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.folder(), " holds all weights of its model; leave ", kBaseFlag, " out"));
  }
  const auto* decoder = std::get_if<DecoderConfig>(&model);
  if (decoder == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(), " has a base, which only a decoder with adapters can have"));
  }
  DecoderConfig config = *decoder;
  config.adapter.reset();
  OpenedBase base{.folder = folder.empty() ? manifest.base->folder : folder};
  absl::StatusOr<HfWeights> opened = HfWeights::Open(base.folder, config);
  SHALE_RETURN_IF_ERROR(WithBase(opened.status(), manifest, checkpoint.folder(), kBaseFlag));
  const auto weights = std::make_shared<HfWeights>(*std::move(opened));
  base.read = [weights](absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return weights->Read(parameter, begin, out);
  };
  return base;
}

absl::StatusOr<OpenedBase> OpenVerifiedBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                            const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(OpenedBase base, OpenBase(checkpoint, model, folder));
  if (base.read == nullptr) return base;
  const Manifest& manifest = checkpoint.manifest();
  const absl::StatusOr<uint64_t> digest = DigestOfBase(manifest, base.read);
  SHALE_RETURN_IF_ERROR(WithBase(digest.status(), manifest, checkpoint.folder(), kBaseFlag));
  SHALE_RETURN_IF_ERROR(CheckBaseDigest(manifest, checkpoint.folder(), base.folder, *digest, kBaseFlag));
  return base;
}

}  // namespace shale

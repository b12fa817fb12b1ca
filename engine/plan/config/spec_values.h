// Converts between values of a job spec and those of the plain structs: enums, and the texts of data.mix and
// data.evaluation_sources.
//
// Both have the same enum values in the same order. The spec's enums also have value 0, "left out".
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/plan/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// The number of the first value of a plain enum in the spec.
template <typename Plain>
inline constexpr int kNumberOfFirst = 1;

// In these enums "left out" has a meaning of its own, and the plain enum has a value for it.
template <>
inline constexpr int kNumberOfFirst<DataFormat> = 0;
template <>
inline constexpr int kNumberOfFirst<Segments> = 0;
template <>
inline constexpr int kNumberOfFirst<CollectivesKind> = 0;

namespace proto_enums_internal {

template <typename Plain, typename Spec>
constexpr bool Same(Plain plain, Spec spec) {
  return static_cast<int>(plain) + kNumberOfFirst<Plain> == static_cast<int>(spec);
}

static_assert(Same(NormKind::kLayerNorm, proto::DecoderSpec::LAYER_NORM));
static_assert(Same(PositionKind::kRotary, proto::DecoderSpec::ROTARY));
static_assert(Same(Activation::kSwiGlu, proto::DecoderSpec::SWIGLU));
static_assert(Same(Activation::kGeluErf, proto::DecoderSpec::GELU_ERF));
static_assert(Same(Activation::kGeGlu, proto::DecoderSpec::GEGLU));
static_assert(Same(RopeScalingKind::kLinear, proto::RopeScalingSpec::LINEAR));
static_assert(Same(DataOrder::kSequential, proto::DataSpec::SEQUENTIAL));
static_assert(Same(TargetWeights::kOverTokens, proto::DataSpec::OVER_TOKENS));
static_assert(Same(TargetWeights::kOverWeights, proto::DataSpec::OVER_WEIGHTS));
static_assert(Same(Packing::kPack, proto::DataSpec::PACK));
static_assert(Same(Packing::kPad, proto::DataSpec::PAD));
static_assert(Same(LongDocuments::kTruncate, proto::DataSpec::TRUNCATE));
static_assert(Same(LongDocuments::kDrop, proto::DataSpec::DROP));
static_assert(Same(LossOn::kAll, proto::DataSpec::ALL));
static_assert(Same(BadLines::kSkip, proto::DataSpec::SKIP));
static_assert(Same(BadBytes::kReplace, proto::DataSpec::REPLACE));
static_assert(Same(Splits::kTogether, proto::DataSpec::TOGETHER));
static_assert(Same(SpelledTokens::kInAllRows, proto::DataSpec::IN_ALL_ROWS));
static_assert(Same(SpelledTokens::kRefuse, proto::DataSpec::NOT_ALLOWED));
static_assert(Same(Strategy::kZero1, proto::ShardingSpec::ZERO1));
static_assert(Same(Strategy::kFullShard, proto::ShardingSpec::FULL_SHARD));
static_assert(Same(Accumulation::kSharded, proto::ShardingSpec::SHARDED));
static_assert(Same(Accumulation::kLayered, proto::ShardingSpec::LAYERED));
static_assert(Same(ComputePrecision::kBFloat16, proto::ComputeSpec::BF16));
static_assert(Same(ComputePrecision::kFloat16, proto::ComputeSpec::FP16));
static_assert(Same(GradientShards::kBFloat16, proto::PrecisionSpec::BF16));
static_assert(Same(ReducePrecision::kBFloat16, proto::PrecisionSpec::BF16));
static_assert(Same(MatMulPrecision::kFloat8, proto::PrecisionSpec::FP8));
static_assert(Same(Float8Gradients::kE4M3, proto::PrecisionSpec::E4M3));
static_assert(Same(Float8Scaling::kBlockwise, proto::PrecisionSpec::BLOCKWISE));
static_assert(Same(MasterWeights::kSplit, proto::PrecisionSpec::SPLIT));
static_assert(Same(MasterWeights::kNone, proto::PrecisionSpec::NONE));
static_assert(Same(OptimizerKind::kMuon, proto::OptimizerSpec::MUON));
static_assert(Same(RateAdjustment::kSpectral, proto::OptimizerSpec::SPECTRAL));
static_assert(Same(Moments::kBFloat16, proto::OptimizerSpec::BF16));
static_assert(Same(CheckpointingPreset::kCheap, proto::ActivationCheckpointingSpec::CHEAP));
static_assert(Same(CheckpointingPreset::kFeedForward, proto::ActivationCheckpointingSpec::FFN));
static_assert(Same(CheckpointingPreset::kBlock, proto::ActivationCheckpointingSpec::BLOCK));
static_assert(Same(Storage::kAsUsed, proto::FrozenWeightsSpec::AS_COMPUTED));
static_assert(Same(Storage::kNf4, proto::FrozenWeightsSpec::NF4));
static_assert(Same(UpdateTime::kInBackward, proto::OptimizerSpec::IN_BACKWARD));
static_assert(Same(UpdateDevice::kHost, proto::OptimizerSpec::HOST));
static_assert(Same(Clipping::kPreviousNorm, proto::OptimizerSpec::PREVIOUS_NORM));
static_assert(Same(NonFinite::kSkip, proto::OptimizerSpec::SKIP));
static_assert(Same(LearningRateScaling::kLinear, proto::OptimizerSpec::LINEAR));
static_assert(Same(LearningRateScaling::kSquareRoot, proto::OptimizerSpec::SQUARE_ROOT));
static_assert(Same(LearningRateShape::kLinear, proto::LearningRateSpec::LINEAR));
static_assert(Same(LearningRateShape::kWarmupStableDecay, proto::LearningRateSpec::WARMUP_STABLE_DECAY));
static_assert(Same(SaveFailure::kContinue, proto::CheckpointSpec::CONTINUE));
static_assert(Same(DeviceType::kCuda, proto::RuntimeSpec::CUDA));
static_assert(Same(OpsKind::kReference, proto::RuntimeSpec::REFERENCE));
static_assert(Same(CpuMatMuls::kAuto, proto::RuntimeSpec::AUTO));
static_assert(Same(CpuMatMuls::kPacked, proto::RuntimeSpec::PACKED));
static_assert(Same(DataFormat::kByContent, proto::DataSpec::FORMAT_UNSPECIFIED));
static_assert(Same(DataFormat::kJsonLines, proto::DataSpec::JSONL));
static_assert(Same(Segments::kGiven, proto::ActivationCheckpointingSpec::SEGMENTS_UNSPECIFIED));
static_assert(Same(Segments::kSqrt, proto::ActivationCheckpointingSpec::SQRT));
static_assert(Same(CollectivesKind::kAuto, proto::RuntimeSpec::COLLECTIVES_UNSPECIFIED));
static_assert(Same(CollectivesKind::kInProcess, proto::RuntimeSpec::IN_PROCESS));

}  // namespace proto_enums_internal

// Reads "250 code.jsonl": 250 of 1,000 samples are of code.jsonl. For a text of another form returns a share of 0, and
// all of the text as path.
MixedData MixedDataFromText(absl::string_view text);
std::string ToText(const MixedData& mixed);

// Reads "code test.jsonl": the source code is test.jsonl. For a text of another form returns no name, and all of the
// text as path.
EvaluationSource EvaluationSourceFromText(absl::string_view text);
std::string ToText(const EvaluationSource& source);

}  // namespace shale

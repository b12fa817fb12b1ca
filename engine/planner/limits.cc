#include "engine/planner/limits.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shale {
namespace {

// An upper bound of the bytes of one parameter in all its forms: weight, master, moments, and several gathered copies
// and gradients.
constexpr double kBytesPerParameter = 64;

// Returns the columns of the widest tensor that has a row for every token. Rows for every sequence count as well.
double WidestRow(const Job& job) {
  if (const auto* decoder = std::get_if<DecoderConfig>(&job.model)) {
    const double heads = static_cast<double>(decoder->heads + 2 * decoder->kv_heads) * decoder->head_width;
    return std::max({static_cast<double>(decoder->width), 2.0 * decoder->hidden, heads});
  }
  const auto& mlp = std::get<MlpConfig>(job.model);
  return std::max<double>(mlp.embedding, mlp.hidden);
}

int64_t Layers(const Job& job) {
  if (const auto* decoder = std::get_if<DecoderConfig>(&job.model)) return decoder->layers;
  return std::get<MlpConfig>(job.model).layers;
}

}  // namespace

absl::Status CheckGraphSize(const Job& job) {
  const double vocabulary = static_cast<double>(Vocabulary(job.model));
  if (vocabulary < 1) {
    return absl::InvalidArgumentError(
        "the vocabulary is unknown: set model.decoder.vocabulary or model.mlp.vocabulary, or give data.path, which "
        "determines it");
  }
  const double tokens = static_cast<double>(job.batch.micro_batch) * static_cast<double>(job.batch.sequence_length);
  const double rows = std::holds_alternative<MlpConfig>(job.model) ? job.batch.micro_batch : tokens;
  const double chunk = static_cast<double>(LossChunkTokens(job));
  const double bytes = 8 * std::max(tokens * WidestRow(job), std::min(rows, chunk) * vocabulary);
  if (bytes > kLargestPlanBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("one tensor of one micro-batch would have %.2g bytes; make batch.micro_batch (%d), "
                        "batch.sequence_length (%d) or the model smaller",
                        bytes, job.batch.micro_batch, job.batch.sequence_length));
  }
  constexpr double kPerLayer = 64, kPerChunk = 5;
  const double instructions = kPerLayer * static_cast<double>(Layers(job)) + kPerChunk * std::ceil(rows / chunk);
  if (instructions > kLargestPlanInstructions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the step would have about %.0f instructions, at most %.0f are planned; make "
                        "memory.loss_chunk_tokens (%d) larger for %.0f rows of logits, or layers (%d) fewer",
                        instructions, kLargestPlanInstructions, LossChunkTokens(job), rows, Layers(job)));
  }
  return absl::OkStatus();
}

absl::Status CheckProgramSize(const ModelGraph& graph, const StepOptions& options) {
  double bytes = 0;
  for (const UnitGraph& unit : graph.units) {
    for (const Value& value : unit.values) {
      const double elements = value.role == ValueRole::kParameter ? 0 : static_cast<double>(value.tensor.elements());
      bytes += elements * static_cast<double>(SizeOf(value.tensor.dtype));
    }
  }
  // Factor 2: forward and backward. LAYERED keeps them once for every micro-batch.
  const bool layered = graph.mode == GraphMode::kTraining && options.accumulation == Accumulation::kLayered;
  bytes *= 2 * (layered ? static_cast<double>(options.micro_batches) : 1.0);
  for (const Parameter& parameter : graph.parameters) {
    double elements = kBytesPerParameter;
    for (int64_t d : parameter.shape) elements *= static_cast<double>(d);
    bytes += elements;
  }
  if (bytes <= kLargestPlanBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "accumulation %s with %d micro-batches could need %.2g bytes on one rank, more than any machine has; make "
      "batch.micro_batch, batch.sequence_length or the model smaller, or take another accumulation",
      std::string(ToString(options.accumulation)), options.micro_batches, bytes));
}

}  // namespace shale

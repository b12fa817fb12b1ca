// Checks products of sizes, in 128 bits. The ranges of single fields keep each product of up to four factors below
// 2^127. CheckProduct stops multiplying a longer one as soon as it exceeds the limit.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/config/rules.h"

namespace shale {
namespace {

using Wide = unsigned __int128;

constexpr Wide kLimit = Wide{1} << 62;

struct Factor {
  std::string path;
  int64_t size;
};

// Reports the product of `factors` if it is above the limit (SpecErrors::AddRule decides at which field).
void CheckProduct(absl::string_view what, const std::vector<Factor>& factors, SpecErrors& errors) {
  Wide product = 1;
  double shown = 1;
  std::vector<std::string> paths, names;
  for (const Factor& factor : factors) {
    if (product <= kLimit) product *= static_cast<Wide>(factor.size);
    shown *= static_cast<double>(factor.size);
    paths.push_back(factor.path);
    names.push_back(absl::StrCat(factor.path, " (", factor.size, ")"));
  }
  if (product <= kLimit) return;
  errors.AddRule(paths, absl::StrCat(what, " are ", absl::StrJoin(names, " x "), " = ", absl::StrFormat("%.2g", shown),
                                     ", above 2^62; make them smaller"));
}

Wide Parameters(const DecoderConfig& c) {
  const Wide width = c.width;
  const Wide norm = c.norm == NormKind::kLayerNorm ? 2 * width : width;
  const Wide query = static_cast<Wide>(c.heads) * c.head_width;
  const Wide qkv = query + 2 * static_cast<Wide>(c.kv_heads) * c.head_width;
  const Wide up = static_cast<Wide>(c.hidden) * (c.activation == Activation::kSwiGlu ? 2 : 1);
  const Wide norms = c.parallel_block && !c.parallel_norms ? 1 : 2;
  Wide block = width * qkv + query * width + width * up + c.hidden * width + norms * norm;
  if (c.qkv_bias) block += qkv;
  if (c.linear_bias) block += width + up + width;
  if (c.qk_norm) block += 2 * static_cast<Wide>(c.head_width);
  const Wide table = c.position == PositionKind::kLearned ? c.max_positions * width : 0;
  return c.vocabulary * width * (c.tied_head ? 1 : 2) + table + c.layers * block + norm;
}

Wide Parameters(const MlpConfig& c, int64_t sequence_length) {
  const Wide hidden = c.hidden;
  const Wide first = static_cast<Wide>(sequence_length) * c.embedding * hidden + hidden;
  const Wide others = (c.layers - 1) * (hidden * hidden + hidden);
  return static_cast<Wide>(c.vocabulary) * c.embedding + first + others + hidden * c.vocabulary + c.vocabulary;
}

void CheckActivations(const Job& job, SpecErrors& errors) {
  const Factor micro = {"batch.micro_batch", job.batch.micro_batch};
  const Factor length = {"batch.sequence_length", job.batch.sequence_length};
  const Factor steps = {"accumulation steps", AccumulationSteps(job.batch, job.sharding.ranks)};
  if (const auto* decoder = std::get_if<DecoderConfig>(&job.model)) {
    const Factor width = {"model.decoder.width", decoder->width};
    const Factor hidden = {"model.decoder.hidden", decoder->hidden};
    const Factor layers = {"model.decoder.layers", decoder->layers};
    const Factor heads = {"model.decoder.heads", decoder->heads};
    const Factor head_width = {"model.decoder.head_width", decoder->head_width};
    CheckProduct("the inputs of the blocks", {micro, length, steps, width, layers}, errors);
    CheckProduct("the activations of the feed-forward layers", {micro, length, hidden, layers}, errors);
    CheckProduct("the heads", {micro, length, heads, head_width, layers}, errors);
  } else {
    const auto& mlp = std::get<MlpConfig>(job.model);
    CheckProduct("the embedded tokens", {micro, length, {"model.mlp.embedding", mlp.embedding}}, errors);
    CheckProduct("the activations", {micro, steps, {"model.mlp.hidden", mlp.hidden}, {"model.mlp.layers", mlp.layers}},
                 errors);
  }
}

}  // namespace

Wide ParameterCount(const ModelConfig& model, int64_t sequence_length) {
  if (const auto* decoder = std::get_if<DecoderConfig>(&model)) return Parameters(*decoder);
  return Parameters(std::get<MlpConfig>(model), sequence_length);
}

void CheckSizes(const Job& job, SpecErrors* errors) {
  // Weight, gradient, master and two moments take at most 20 bytes per parameter.
  constexpr int kBytesPerParameter = 20;
  const Wide parameters = ParameterCount(job.model, job.batch.sequence_length);
  if (parameters > kLimit / kBytesPerParameter) {
    const std::string kind = std::holds_alternative<DecoderConfig>(job.model) ? "model.decoder." : "model.mlp.";
    std::vector<std::string> paths;
    for (const char* size : {"width", "embedding", "hidden", "heads", "head_width", "layers", "vocabulary"}) {
      paths.push_back(kind + size);
    }
    errors->AddRule(paths, absl::StrCat("the model has ", absl::StrFormat("%.2g", static_cast<double>(parameters)),
                                        " parameters, whose state is above 2^62 bytes; make its sizes smaller"));
  }
  CheckActivations(job, *errors);
  const Factor length = {"batch.sequence_length", job.batch.sequence_length};
  const Factor global = {"batch.global_batch", job.batch.global_batch};
  CheckProduct("the tokens of the run",
               {global, length, {"lr_schedule.steps", std::max<int64_t>(1, job.lr_schedule.steps)}}, *errors);
  CheckProduct(
      "the logits of a chunk",
      {{"memory.loss_chunk_tokens", LossChunkTokens(job)}, {"vocabulary", std::max<int64_t>(1, Vocabulary(job.model))}},
      *errors);
}

}  // namespace shale

#include "engine/generate/next_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::Status NextTokens::Begin(int64_t sequence, absl::Span<const int32_t> context, bool keep) {
  if (context.empty()) return absl::InvalidArgumentError("nothing to continue: the prompt has no tokens");
  const absl::Span<const int32_t> last = context.last(std::min<size_t>(sequences_.positions(), context.size()));
  const absl::Span<const int32_t> held = sequences_.tokens(sequence);
  // The last token is computed in any case, because its logits are wanted.
  const size_t most = keep ? std::min(held.size(), last.size() - 1) : 0;
  const size_t kept = std::mismatch(held.begin(), held.begin() + most, last.begin()).first - held.begin();
  sequences_.Keep(sequence, static_cast<int64_t>(kept));
  tokens_[sequence].assign(last.begin() + kept, last.end());
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> NextTokens::Logits(absl::Span<const int32_t> context) {
  sequences_.Restart();
  for (std::vector<int32_t>& tokens : tokens_) tokens.clear();
  SHALE_RETURN_IF_ERROR(Begin(0, context, /*keep=*/false));
  SHALE_RETURN_IF_ERROR(sequences_.Append(tokens_));
  return sequences_.logits(0);
}

absl::Status NextTokens::GenerateAll(absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                                     absl::FunctionRef<bool(int64_t, int32_t)> emit) {
  const int64_t count = std::ssize(prompts);
  if (count < 1 || count > sequences_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", count, " prompts; wanted 1 to ", sequences_.size(), ", as many as sequences"));
  }
  SHALE_RETURN_IF_ERROR(CheckSampling(options.sampling));
  std::vector<Sampler> samplers;
  std::vector<std::vector<int32_t>> texts(prompts.begin(), prompts.end());
  std::vector<bool> open(count, options.count > 0);
  for (int64_t b = 0; b < sequences_.size(); ++b) {
    tokens_[b].clear();
    if (b >= count) {
      sequences_.Keep(b, 0);
      continue;
    }
    SHALE_RETURN_IF_ERROR(Begin(b, prompts[b], options.goes_on));
    SamplingOptions sampling = options.sampling;
    sampling.seed += static_cast<uint64_t>(b);
    samplers.emplace_back(sampling);
  }
  for (int64_t drawn = 0; std::find(open.begin(), open.end(), true) != open.end();) {
    SHALE_RETURN_IF_ERROR(sequences_.Append(tokens_));
    ++drawn;
    for (int64_t b = 0; b < count; ++b) {
      tokens_[b].clear();
      if (!open[b]) continue;
      SHALE_ASSIGN_OR_RETURN(const int32_t token, samplers[b].Draw(sequences_.logits(b), texts[b]));
      const std::vector<int32_t>& stops = options.stop_tokens;
      open[b] = std::find(stops.begin(), stops.end(), token) == stops.end() && emit(b, token) && drawn < options.count;
      if (!open[b]) continue;
      texts[b].push_back(token);
      tokens_[b] = {token};
    }
  }
  return absl::OkStatus();
}

absl::Status NextTokens::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                  absl::FunctionRef<bool(int32_t)> emit) {
  const std::vector<int32_t> one(prompt.begin(), prompt.end());
  return GenerateAll(absl::MakeConstSpan(&one, 1), {.count = count, .sampling = sampling},
                     [&](int64_t, int32_t token) { return emit(token); });
}

}  // namespace shale

#include "engine/run/generate/next_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/planner/generation.h"
#include "kernels/check.h"

namespace shale {
namespace {

void ToFloats(absl::Span<const std::byte> bytes, DType dtype, absl::Span<float> values) {
  SHALE_CHECK(bytes.size() == values.size() * SizeOf(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    values[i] = dtype == DType::kFloat16 ? ToFloat(Float16{bits}) : ToFloat(BFloat16{bits});
  }
}

// Returns whether a cache has fewer rows than a sequence may have tokens.
bool HasRing(const ModelGraph& graph, int64_t end) {
  for (const UnitGraph& unit : graph.units) {
    for (const Value& value : unit.values) {
      if (value.role == ValueRole::kCache && value.tensor.dim(2) < end) return true;
    }
  }
  return false;
}

}  // namespace

int32_t PaddingToken(const Job& job) {
  return job.data.format == DataFormat::kText && !job.data.has_tokenizer() ? '\n' : 0;
}

Sequences::Sequences(absl::Span<const PlannedProgram> programs, int32_t padding, int ranks)
    : programs_(programs),
      padding_(padding),
      ranks_(ranks),
      end_(has_cache() ? EndOfPositions(first()) : first().sequence_length),
      ring_(HasRing(first(), end_)),
      sequences_(size()),
      step_inputs_(ranks),
      logits_(size() * vocabulary()) {}

absl::StatusOr<std::unique_ptr<Sequences>> Sequences::Create(LocalRanks& ranks,
                                                             absl::Span<const PlannedProgram> programs, int32_t padding,
                                                             const ExecutorOptions& options) {
  SHALE_CHECK(!programs.empty());
  std::unique_ptr<Sequences> sequences = absl::WrapUnique(new Sequences(programs, padding, ranks.size()));
  for (const PlannedProgram& program : programs) {
    SHALE_CHECK(program.graph.mode == GraphMode::kLogits && program.graph.cache == programs[0].graph.cache);
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<LocalProgram> ready,
                           LocalProgram::Create(ranks, program.step.program, program.memory, options));
    sequences->ready_.push_back(std::move(ready));
  }
  return sequences;
}

void Sequences::Restart() {
  for (int64_t b = 0; b < size(); ++b) Keep(b, 0);
}

void Sequences::Keep(int64_t b, int64_t count) {
  Sequence& sequence = sequences_[b];
  SHALE_CHECK(count >= 0 && count <= std::ssize(sequence.tokens));
  // A ring of keys may have stored later ones over those that the next token sees.
  if (sequence.computed > count) sequence.computed = ring_ ? 0 : count;
  sequence.tokens.resize(count);
}

absl::Status Sequences::Check(absl::Span<const std::vector<int32_t>> tokens) const {
  SHALE_CHECK(std::ssize(tokens) == size());
  for (const std::vector<int32_t>& some : tokens) {
    for (const int32_t token : some) {
      if (token >= 0 && token < vocabulary()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is outside the model's vocabulary of ", vocabulary(), " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status Sequences::Append(absl::Span<const std::vector<int32_t>> tokens) {
  SHALE_RETURN_IF_ERROR(Check(tokens));
  for (int64_t b = 0; b < size(); ++b) {
    Sequence& sequence = sequences_[b];
    sequence.tokens.insert(sequence.tokens.end(), tokens[b].begin(), tokens[b].end());
    // Without a cache, the window always holds the last end_ tokens.
    const int64_t keep = has_cache() ? std::clamp(std::ssize(tokens[b]), (end_ + 1) / 2, end_) : end_;
    if (std::ssize(sequence.tokens) <= end_) continue;
    sequence.tokens.erase(sequence.tokens.begin(), sequence.tokens.end() - keep);
    sequence.computed = 0;
  }
  if (!has_cache()) return RunWindows();
  const auto missing = [](const Sequence& sequence) { return sequence.missing() > 0; };
  while (std::any_of(sequences_.begin(), sequences_.end(), missing)) SHALE_RETURN_IF_ERROR(Run(NextChunk()));
  return absl::OkStatus();
}

int64_t Sequences::InCommon() const {
  const Sequence* first = nullptr;
  int64_t count = 0;
  for (const Sequence& sequence : sequences_) {
    if (sequence.missing() == 0 && sequence.computed == 0) continue;
    if (first == nullptr) {
      first = &sequence;
      count = sequence.missing();
    }
    if (sequence.computed != first->computed) return 0;
    const auto next = first->tokens.begin() + first->computed;
    count = std::min(count, sequence.missing());
    count = std::mismatch(next, next + count, sequence.tokens.begin() + first->computed).first - next;
  }
  return count;
}

size_t Sequences::NextChunk() const {
  // Reading the weights, which every chunk takes once, takes about as long as computing this many tokens.
  constexpr int64_t kTokensOfWeights = 16;
  int64_t longest = 0, room = end_;
  for (const Sequence& sequence : sequences_) {
    longest = std::max(longest, sequence.missing());
    room = std::min(room, end_ - sequence.computed);
  }
  // Tokens in common have a chunk of their own if there are enough of them to be worth reading the weights, or if no
  // sequence has other tokens. A single token, which is what decoding appends, has none: which program computes it must
  // not depend on whether other sequences drew the same token.
  const int64_t in_common = InCommon();
  const bool for_all = in_common >= kTokensOfWeights || (in_common > 1 && in_common == longest);
  // Of the chunks for which every sequence has room, takes the one that computes the most tokens in a given time.
  size_t best = 0;
  double most = 0;
  for (size_t i = 0; i < programs_.size(); ++i) {
    const ModelGraph& graph = programs_[i].graph;
    if (IsForAll(i) && !for_all) continue;
    const int64_t length = graph.sequence_length;
    const double tokens = static_cast<double>(std::min(length, IsForAll(i) ? in_common : longest));
    const double rate = tokens / static_cast<double>(kTokensOfWeights + graph.micro_batch * length);
    if (i > 0 && (length > room || rate <= most)) continue;
    best = i;
    most = rate;
  }
  return best;
}

absl::Status Sequences::Run(size_t program) {
  const int64_t length = programs_[program].graph.sequence_length;
  if (IsForAll(program)) return RunForAll(program);
  inputs_.assign(size() * length, padding_);
  begins_.resize(size());
  rows_.resize(size());
  std::vector<int64_t> counts(size());
  for (int64_t b = 0; b < size(); ++b) {
    const Sequence& sequence = sequences_[b];
    counts[b] = std::min(length, sequence.missing());
    // The padding behind the tokens stores keys and values, too. No token sees them before later chunks have stored
    // theirs in the same place. A full sequence has no room for padding, so it computes its last token again.
    const bool again = counts[b] == 0 && sequence.computed + length > end_;
    begins_[b] = static_cast<int32_t>(sequence.computed - again);
    rows_[b] = static_cast<int32_t>(b * length + std::max<int64_t>(counts[b], 1) - 1);
    std::copy_n(sequence.tokens.begin() + begins_[b], counts[b] + again, inputs_.begin() + b * length);
  }
  SHALE_RETURN_IF_ERROR(Launch(program));
  for (int64_t b = 0; b < size(); ++b) {
    sequences_[b].computed += counts[b];
    if (counts[b] > 0 && sequences_[b].missing() == 0) Take(b, b);
  }
  return absl::OkStatus();
}

absl::Status Sequences::RunForAll(size_t program) {
  const int64_t length = programs_[program].graph.sequence_length, count = std::min(length, InCommon());
  const auto missing = [](const Sequence& sequence) { return sequence.missing() > 0; };
  const Sequence& any = *std::find_if(sequences_.begin(), sequences_.end(), missing);
  const int64_t begin = any.computed;
  inputs_.assign(length, padding_);
  std::copy_n(any.tokens.begin() + begin, count, inputs_.begin());
  begins_.assign(1, static_cast<int32_t>(begin));
  rows_.assign(1, static_cast<int32_t>(count - 1));
  SHALE_RETURN_IF_ERROR(Launch(program));
  for (int64_t b = 0; b < size(); ++b) {
    Sequence& sequence = sequences_[b];
    if (sequence.missing() == 0) continue;
    sequence.computed += count;
    if (sequence.missing() == 0) Take(b, 0);
  }
  return absl::OkStatus();
}

absl::Status Sequences::RunWindows() {
  const int64_t window = first().sequence_length;
  inputs_.assign(size() * window, padding_);
  rows_.resize(size());
  for (int64_t b = 0; b < size(); ++b) {
    const std::vector<int32_t>& tokens = sequences_[b].tokens;
    // A model that reads every position of the window (the MLP) needs the tokens at the end of the window. In all other
    // models attention is causal, because models with other attention have no graph of logits. There the tokens come
    // first, at the positions that they have in training, and what follows them has no effect.
    const int64_t begin = first().last_target_only ? window - std::ssize(tokens) : 0;
    std::copy(tokens.begin(), tokens.end(), inputs_.begin() + b * window + begin);
    rows_[b] = static_cast<int32_t>(b * window + std::max<int64_t>(std::ssize(tokens), 1) - 1);
  }
  SHALE_RETURN_IF_ERROR(Launch(0));
  for (int64_t b = 0; b < size(); ++b) Take(b, b);
  return absl::OkStatus();
}

absl::Status Sequences::Launch(size_t program) {
  for (StepInputs& inputs : step_inputs_) {
    inputs.Set(StepItem::kInputs, inputs_);
    inputs.Set(StepItem::kBegins, begins_);
    inputs.Set(StepItem::kRows, rows_);
  }
  const absl::Status status = ready_[program]->Run(step_inputs_);
  failed_ = failed_ || !status.ok();
  last_ = program;
  return status;
}

void Sequences::Take(int64_t b, int64_t row) {
  const DType dtype = first().logits().tensor.dtype;
  const int64_t row_bytes = vocabulary() * SizeOf(dtype);
  ToFloats(absl::MakeConstSpan(ready_[last_]->outputs(0).logits).subspan(row * row_bytes, row_bytes), dtype,
           absl::MakeSpan(logits_).subspan(b * vocabulary(), vocabulary()));
  const float cap = static_cast<float>(first().logit_cap);
  if (cap == 0) return;
  for (float& logit : absl::MakeSpan(logits_).subspan(b * vocabulary(), vocabulary())) {
    logit = cap * std::tanh(logit / cap);
  }
}

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

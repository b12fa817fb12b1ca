// NextTokens computes the logits of the token that follows a context, and draws tokens from them.
//
// Sequences: the tokens of the sequences that a model generates at once, and the programs that compute what follows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/sampler.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/runtime/local_ranks.h"

namespace shale {

// Returns the token that fills a chunk behind the tokens of a sequence, or a window before them.
int32_t PaddingToken(const Job& job);

// Runs the programs of BuildGeneration ([Note: generation] in engine/plan/planner/generation.h) on all local ranks,
// which compute the same. With a cache, Append computes only the new tokens, with the programs that take the least time
// for them. Tokens that all sequences have at the same positions are computed once for all sequences. Without a cache,
// Append computes the whole window again.
//
// A sequence holds at most positions() tokens. If another token is added to a full sequence, the sequence forgets its
// older half and computes the newer half again, at the positions from 0 on. So on average at most two tokens are
// computed for each one that is added, however long the text becomes. If each token sees no more than a window of the
// tokens before it, and positions are not learned, then a sequence has no end and forgets nothing that counts.
//
// Used by one thread at a time.
class Sequences {
 public:
  // Borrows the programs and the ranks. `padding` is PaddingToken of the job.
  static absl::StatusOr<std::unique_ptr<Sequences>> Create(LocalRanks& ranks, absl::Span<const PlannedProgram> programs,
                                                           int32_t padding, const ExecutorOptions& options);

  int64_t size() const { return first().micro_batch; }
  int64_t vocabulary() const { return first().vocabulary; }
  // Returns how many tokens a sequence may hold; kNoLastPosition if that is not limited.
  int64_t positions() const { return end_; }
  // Returns whether a program failed. The ranks cannot be used again then.
  bool failed() const { return failed_; }

  // Empties all sequences. Also call it when the weights have changed, or another program has used the ranks' memory.
  void Restart();
  // Adds tokens[b] to sequence b and computes the logits of the token that follows. A sequence without new tokens stays
  // as it is. Returns InvalidArgument, and changes nothing, if a token is outside the vocabulary, or the error of a
  // program. REQUIRES: tokens.size() == size().
  absl::Status Append(absl::Span<const std::vector<int32_t>> tokens);
  // Returns the tokens that sequence b holds. Valid until the next change.
  absl::Span<const int32_t> tokens(int64_t b) const { return sequences_[b].tokens; }
  // Removes all tokens of sequence b but the first `count`. REQUIRES: it has that many.
  void Keep(int64_t b, int64_t count);
  // Returns the logits [V] after the last token of sequence b. Valid until the next Append. REQUIRES: it has one.
  absl::Span<const float> logits(int64_t b) const {
    return absl::MakeConstSpan(logits_).subspan(b * vocabulary(), vocabulary());
  }

 private:
  // One sequence.
  struct Sequence {
    std::vector<int32_t> tokens;  // All that it holds.
    int64_t computed = 0;         // How many of them the cache holds.
    int64_t missing() const { return std::ssize(tokens) - computed; }
  };
  Sequences(absl::Span<const PlannedProgram> programs, int32_t padding, int ranks);
  const ModelGraph& first() const { return programs_.front().graph; }
  bool has_cache() const { return first().cache.positions > 0; }
  absl::Status Check(absl::Span<const std::vector<int32_t>> tokens) const;
  // Returns whether a program computes one sequence and stores its keys and values for all sequences.
  bool IsForAll(size_t program) const { return programs_[program].graph.micro_batch < size(); }
  // Returns how many of the next tokens to compute are the same in all sequences. Sequences that hold no tokens do not
  // count. Returns 0 if sequences have computed different numbers of tokens, or if one has computed all of its tokens,
  // because a program for all sequences would store over its keys and values.
  int64_t InCommon() const;
  // Returns the index of the program for the next chunk.
  size_t NextChunk() const;
  // Runs a program on the next tokens of every sequence.
  absl::Status Run(size_t program);
  // Does the same with a program for which IsForAll is true, on the tokens that the sequences have in common.
  absl::Status RunForAll(size_t program);
  // Computes the windows of all sequences.
  absl::Status RunWindows();
  absl::Status Launch(size_t program);
  // Stores the logits of sequence b from a row of the last chunk.
  void Take(int64_t b, int64_t row);

  const absl::Span<const PlannedProgram> programs_;
  const int32_t padding_;
  const int ranks_;
  const int64_t end_;
  const bool ring_;                                   // Whether some cache stores later keys over earlier ones.
  std::vector<std::unique_ptr<LocalProgram>> ready_;  // The programs, ready to run.
  std::vector<Sequence> sequences_;
  std::vector<int32_t> inputs_, begins_, rows_;  // Of a chunk.
  std::vector<StepInputs> step_inputs_;          // By local rank.
  std::vector<float> logits_;                    // [B, V]
  size_t last_ = 0;                              // The program of the last chunk.
  bool failed_ = false;
};

// Borrows the sequences. Used by one thread at a time.
class NextTokens {
 public:
  explicit NextTokens(Sequences& sequences) : sequences_(sequences), tokens_(sequences.size()) {}

  // Returns the logits [V] of the token that follows `context`, computed from as many of its last tokens as a sequence
  // may hold. They depend on nothing but those and the weights. Valid until the next call. Returns InvalidArgument if
  // `context` is empty or if one of those tokens is outside the vocabulary, and otherwise the error of the program.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);

  // Draws tokens after each prompt, all of them at once, and calls emit(i, token) with each token of prompt i as it is
  // drawn. A sequence ends early if `emit` returns false for it. Returns InvalidArgument if there is no prompt, or more
  // of them than sequences, or if options are out of range, and otherwise the errors of Logits and Sampler::Draw.
  absl::Status GenerateAll(absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                           absl::FunctionRef<bool(int64_t sequence, int32_t token)> emit);
  // Does the same for one prompt: draws `count` tokens.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  // Prepares a sequence for the next Append, which then computes the logits after `context`, or after as many of its
  // last tokens as a sequence may hold. If `keep`, the sequence keeps the tokens that it holds and with which the
  // context begins; otherwise it keeps none. Puts the other tokens of the context into tokens_.
  absl::Status Begin(int64_t sequence, absl::Span<const int32_t> context, bool keep);

  Sequences& sequences_;
  std::vector<std::vector<int32_t>> tokens_;  // By sequence, the tokens that the next Append adds.
};

}  // namespace shale

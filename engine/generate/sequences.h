// Sequences: the tokens of the sequences that a model generates at once, and the programs that compute what follows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/config/job.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"

namespace shale {

// Returns the token that fills a chunk behind the tokens of a sequence, or a window before them.
int32_t PaddingToken(const Job& job);

// Runs the programs of BuildGeneration ([Note: generation] in engine/planner/generation.h) on all local ranks, which
// compute the same. With a cache, Append computes only the new tokens, with the programs that take the least time for
// them. Tokens that all sequences have at the same positions are computed once for all sequences. Without a cache,
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

}  // namespace shale

// Runs whole steps of small models, for laws that compare different ways of running a job.
//
// B sequences in a micro-batch, S tokens in a sequence, W ranks, K micro-batches, G sequences in a global batch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/model/model.h"
#include "engine/compile/step/compile.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/rank_state.h"
#include "engine/run/verify/trial_run.h"
#include "kernels/cpu_matmuls.h"

namespace shale::testing {

// A small decoder with awkward sizes: none is a multiple of a vector width, a block size or a rank count.
DecoderConfig SmallDecoder();
// A small decoder whose linear layers can multiply in fp8, in sequences of kFloat8Length tokens.
DecoderConfig Float8Decoder();
inline constexpr int64_t kFloat8Length = 16;
// Returns `model` with what Gemma has: windows in every second layer, two bases of RoPE, GEGLU, norms before and after
// sublayers, scaled embeddings, and soft caps that matter at once.
DecoderConfig GemmaLike(DecoderConfig model);
MlpConfig SmallMlp();

struct Tokens {
  int64_t sequences = 0, length = 0;
  std::vector<int32_t> inputs, targets;  // [G, S]
  std::vector<float> weights;            // [G, S]; read only with RunOptions::target_weights.
  std::vector<int32_t> position_ids;     // [G, S]; read only with RunOptions::position_ids.
  std::vector<float> features, values;   // [G, S, F] and [G, S, D], in the place of inputs and targets; or empty.
};
// Returns random tokens, weights and documents of about four tokens. If `masks`, about one target in eight is masked.
Tokens RandomTokens(int64_t sequences, int64_t length, int64_t vocabulary, uint64_t seed, bool masks = true);

struct Combination {
  Strategy strategy;
  Accumulation accumulation;
};
// Returns the strategies and accumulations that go together. The span is valid forever.
absl::Span<const Combination> AllCombinations();
// Returns those that a law tests: all, or a few in which every strategy and every accumulation is, if the backend is
// slow (TestsEveryCombination).
absl::Span<const Combination> Combinations();

struct RunOptions {
  ModelConfig model = SmallDecoder();
  std::function<absl::StatusOr<ModelGraph>(const GraphOptions&)> build;  // If set, builds the graph without `model`.
  DType dtype = DType::kFloat32;
  int64_t micro_batch = 1;
  int64_t loss_chunk_tokens = 7;
  TargetWeights target_weights = TargetWeights::kNone;
  bool position_ids = false;
  std::vector<std::string> train_only;  // As GraphOptions::train_only.
  Storage frozen_weights = Storage::kAsUsed;
  bool fp32_logits = false;               // As GraphOptions::fp32_logits.
  std::optional<DType> float8_gradients;  // Matmuls are in fp8 (GraphOptions::float8_matmuls), if it is set.
  bool float8_blockwise = false;          // As GraphOptions::float8_blockwise.
  Float8Sources float8_sources = Float8Sources::kUsed;     // Of `model`, a decoder.
  std::vector<std::vector<std::string>> optimizer_groups;  // As GraphOptions::optimizer_groups.
  StepOptions step;
  const Backend* backend = nullptr;  // If null, TestedBackend(ops, threads, cpu_matmuls).
  OpsKind ops = OpsKind::kFast;
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;
  int64_t threads = 1;
  int steps = 1;
  double learning_rate = 1e-2;
  double max_norm = 1;
  MemoryPlanOptions memory;
  bool synchronous = false;
  bool graphs = false;
  std::function<void(int step, int rank, Executor&)> before_step;  // Called on the thread of each rank.
  // Called on the thread of each rank before each step. Returns where in the step the rank pauses. May be empty.
  std::function<Pause(const CompiledStep&, const MemoryPlan&, RankRuntime&)> pause;
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, int rank, StreamId)> wrap;
  ProfilerRanges* ranges = nullptr;
  // Creates the observer of a rank. May be empty.
  std::function<std::unique_ptr<ExecutionObserver>(const StepProgram&, const MemoryPlan&, RankRuntime&)> observe;
  // Reads the initial weights (RankState::ReadValues). If empty, FillInitialValues does.
  std::function<absl::Status(const Parameter&, int64_t begin, absl::Span<float> values)> read_weights;
  int fill_threads = 1;                       // Of a rank, as RankState::FillOptions::threads.
  int64_t staging_bytes = kReadStagingBytes;  // Of a rank.
  bool digests_state = false;                 // Whether RunResult::initial is wanted.
  std::function<void(const std::string& name, std::vector<float>&)> edit_weights;  // Called before the first step.
  // Whether the run sets StepOptions::keep_gradients and reads the gradients, those of the last step or of the first.
  bool reads_gradients = true;
  bool gradients_of_first_step = false;
};

struct RunResult {
  CompiledStep step;
  MemoryPlan plan;
  std::vector<double>
      losses;  // Of each step, divided as RunOptions::target_weights says. It is an error if ranks disagree.
  std::vector<double> norms;
  std::vector<double> loss_scales;  // After each step.
  int64_t global_tokens = 0;        // Of the last step.
  double global_weight = 0;         // Of the last step.
  bool non_finite = false;          // In the last step.
  // Of the parameters that train; reduced, not clipped. Empty without reads_gradients.
  std::map<std::string, std::vector<float>> gradients;
  std::map<std::string, std::vector<float>> weights;  // After the last step.
  std::vector<StateDigest> initial;                   // Of the state of each rank, before weights are edited.
  int64_t measured_peak_bytes = 0;
  size_t graphs = 0;  // Number captured by rank 0.
};

// Compiles, plans, checks (CheckProgram) and runs `steps` steps. Step i uses batch i mod n; all batches have the same
// shape. Place b of micro-batch k on rank r holds sequence (k W + r) B + b; missing sequences are masked. Sets K in
// `options.step` from the number of sequences.
absl::StatusOr<RunResult> RunJob(RunOptions options, const std::vector<Tokens>& batches);
inline absl::StatusOr<RunResult> RunJob(RunOptions options, const Tokens& tokens) {
  return RunJob(std::move(options), std::vector<Tokens>{tokens});
}

}  // namespace shale::testing

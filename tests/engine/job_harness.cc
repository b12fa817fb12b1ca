#include "tests/engine/job_harness.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/compile/memory/plan.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/filling.h"
#include "engine/run/state/local_state.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

DecoderConfig SmallDecoder() {
  DecoderConfig c;
  c.vocabulary = 23;
  c.width = 20;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 6;
  c.hidden = 28;
  c.max_positions = 16;
  c.init_std = 0.2;
  return c;
}

DecoderConfig Float8Decoder() {
  DecoderConfig c = SmallDecoder();
  c.width = 32;
  c.head_width = 8;
  c.hidden = 48;
  return c;
}

DecoderConfig GemmaLike(DecoderConfig model) {
  model.attention_window = 3;
  model.layer_pattern = "WF";
  model.window_rope_theta = 100;
  model.activation = Activation::kGeGlu;
  model.post_norms = model.norm_adds_one = model.scaled_embedding = model.qk_norm = model.tied_head = true;
  model.score_width = 9;
  model.attention_cap = 0.5;
  model.logit_cap = 2;
  return model;
}

MlpConfig SmallMlp() { return {.vocabulary = 19, .embedding = 5, .hidden = 17, .layers = 2, .init_std = 0.3}; }

absl::Span<const Combination> AllCombinations() {
  static constexpr Combination kAll[] = {
      {Strategy::kDdp, Accumulation::kNoSync},        {Strategy::kDdp, Accumulation::kLayered},
      {Strategy::kZero1, Accumulation::kNoSync},      {Strategy::kZero1, Accumulation::kLayered},
      {Strategy::kZero2, Accumulation::kSharded},     {Strategy::kZero2, Accumulation::kLayered},
      {Strategy::kFullShard, Accumulation::kSharded}, {Strategy::kFullShard, Accumulation::kNoSync},
      {Strategy::kFullShard, Accumulation::kLayered},
  };
  return kAll;
}

absl::Span<const Combination> Combinations() {
  static constexpr Combination kFew[] = {
      {Strategy::kDdp, Accumulation::kNoSync},
      {Strategy::kZero1, Accumulation::kLayered},
      {Strategy::kZero2, Accumulation::kSharded},
      {Strategy::kFullShard, Accumulation::kLayered},
  };
  return TestsEveryCombination() ? AllCombinations() : kFew;
}

Tokens RandomTokens(int64_t sequences, int64_t length, int64_t vocabulary, uint64_t seed, bool masks) {
  std::mt19937_64 random(seed);
  Tokens tokens{.sequences = sequences, .length = length};
  for (int64_t i = 0; i < sequences * length; ++i) {
    tokens.inputs.push_back(static_cast<int32_t>(random() % vocabulary));
    tokens.targets.push_back(masks && random() % 8 == 0 ? -1 : static_cast<int32_t>(random() % vocabulary));
  }
  constexpr float kWeights[] = {1, 0, -0.5f, 2};
  for (int64_t i = 0; i < sequences * length; ++i) tokens.weights.push_back(kWeights[random() % 4]);
  for (int64_t i = 0; i < sequences * length; ++i) {
    const bool begins = i % length == 0 || random() % 4 == 0;
    tokens.position_ids.push_back(begins ? 0 : tokens.position_ids.back() + 1);
  }
  return tokens;
}

namespace {

struct HostTokens {
  std::vector<int32_t> inputs, targets, position_ids;
  std::vector<float> weights, features, values;
  int64_t valid = 0;
  double weight = 0;
};

HostTokens TokensOfRank(const Tokens& tokens, const RunOptions& options, int rank, bool last_only) {
  HostTokens host;
  const int64_t B = options.micro_batch, S = tokens.length, W = options.step.mesh.ranks();
  for (int64_t k = 0; k < options.step.micro_batches; ++k) {
    for (int64_t b = 0; b < B; ++b) {
      const int64_t sequence = (k * W + rank) * B + b;
      for (int64_t s = 0; s < S; ++s) {
        const bool there = sequence < tokens.sequences;
        host.inputs.push_back(there ? tokens.inputs[sequence * S + s] : 0);
        const int64_t position = sequence * S + s;
        const int32_t target = there && (!last_only || s == S - 1) ? tokens.targets[position] : -1;
        host.targets.push_back(target);
        if (options.position_ids) host.position_ids.push_back(there ? tokens.position_ids[position] : 0);
        const auto append = [&](const std::vector<float>& from, std::vector<float>& to) {
          const int64_t columns = std::ssize(from) / (tokens.sequences * S);
          for (int64_t c = 0; c < columns; ++c) to.push_back(there ? from[position * columns + c] : 0);
        };
        append(tokens.features, host.features);
        append(tokens.values, host.values);
        const bool counts = tokens.values.empty() ? target >= 0 : there && (!last_only || s == S - 1);
        host.valid += counts;
        // Target values have weights in any case: 0 where a sequence is missing.
        const bool weighted = options.target_weights != TargetWeights::kNone;
        if (!weighted && tokens.values.empty()) continue;
        host.weights.push_back(!there ? 0 : weighted ? tokens.weights[position] : 1);
        if (counts) host.weight += std::abs(host.weights.back());
      }
    }
  }
  return host;
}

absl::Status EditWeights(LocalState& state, const RunOptions& options) {
  if (!options.edit_weights) return absl::OkStatus();
  for (size_t id = 0; id < state.parameters().size(); ++id) {
    std::vector<float> values(state.parameters()[id].elements());
    SHALE_RETURN_IF_ERROR(state.Read(static_cast<ParameterId>(id), 0, absl::MakeSpan(values)));
    options.edit_weights(state.parameters()[id].name, values);
    SHALE_RETURN_IF_ERROR(state.Write(static_cast<ParameterId>(id), 0, values));
  }
  return absl::OkStatus();
}

// Returns GraphOptions::divided_groups.
std::vector<int> DividedGroups(const StepOptions& step) {
  std::vector<int> divided;
  for (int group = -1; group < std::ssize(step.optimizer_groups); ++group) {
    if (!step.OptimizerOf(group).others.empty()) divided.push_back(group);
  }
  return divided;
}

GraphOptions GraphOptionsOf(const RunOptions& options, int64_t sequence_length) {
  return {.compute_dtype = options.dtype,
          .micro_batch = options.micro_batch,
          .sequence_length = sequence_length,
          .loss_chunk_tokens = options.loss_chunk_tokens,
          .target_weights = options.target_weights,
          .position_ids = options.position_ids,
          .train_only = options.train_only,
          .frozen_weights = options.frozen_weights,
          .fp32_logits = options.fp32_logits,
          .float8_matmuls = options.float8_gradients.has_value(),
          .float8_gradients = options.float8_gradients.value_or(DType::kFloat8E5M2),
          .float8_blockwise = options.float8_blockwise,
          .optimizer_groups = options.optimizer_groups,
          .divided_groups = DividedGroups(options.step)};
}

// Stores the step of a job and its plan, which have been checked, in `result`.
absl::Status Compile(const ModelGraph& graph, const RunOptions& options, const Ops& ops, RunResult& result) {
  SHALE_ASSIGN_OR_RETURN(result.step, CompileStep(graph, options.step, ops));
  SHALE_ASSIGN_OR_RETURN(result.plan, PlanMemory(result.step.program, options.memory));
  DeriveWaits(result.step.program, result.plan);
  return CheckProgram(result.step.program, result.plan);
}

absl::StatusOr<std::unique_ptr<LocalRanks>> CreateRanks(const Backend& backend, const RunOptions& options,
                                                        const RunResult& result) {
  return LocalRanks::Create(backend,
                            {.mesh = options.step.mesh,
                             .synchronous = options.synchronous,
                             .programs = {{result.step.program, result.plan}},
                             .host_memory = PlanHostMemory({{result.step.program, result.plan}}, options.staging_bytes),
                             .wrap = options.wrap},
                            result.plan.peak_bytes);
}

// Gives all states their values before the first step, and notes their digests if the options ask for them.
absl::Status FillState(const RunOptions& options, LocalRanks& ranks, LocalState& state, RunResult& result) {
  const auto initial = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    if (options.read_weights) return options.read_weights(parameter, begin, values);
    FillInitialValues(parameter, 3, begin, values);
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(state.Fill(initial, {.threads = options.fill_threads}));
  for (int rank = 0; options.digests_state && rank < options.step.mesh.ranks(); ++rank) {
    SHALE_ASSIGN_OR_RETURN(const StateDigest digest,
                           DigestOfState(Digested::kAll, result.step.state, result.plan, ranks[rank]));
    result.initial.push_back(digest);
  }
  return EditWeights(state, options);
}

// What executes the program, by rank. Executors borrow their observers.
struct Executors {
  std::vector<std::unique_ptr<ExecutionObserver>> observers;
  std::vector<std::unique_ptr<Executor>> of_ranks;
};

absl::StatusOr<Executors> CreateExecutors(const RunOptions& options, LocalRanks& ranks, const RunResult& result) {
  Executors all;
  for (int rank = 0; rank < options.step.mesh.ranks(); ++rank) {
    all.observers.push_back(options.observe ? options.observe(result.step.program, result.plan, ranks[rank]) : nullptr);
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           Executor::Create(result.step.program, result.plan, ranks[rank],
                                            {.synchronous = options.synchronous,
                                             .observer = all.observers.back().get(),
                                             .graphs = options.graphs,
                                             .ranges = options.ranges}));
    all.of_ranks.push_back(std::move(executor));
  }
  return all;
}

// Returns the inputs of a step of one rank. They refer to `own`.
StepInputs InputsOf(const HostTokens& own, const RunOptions& options) {
  StepInputs step;
  step.Set(StepItem::kFeatures, own.features);
  step.Set(StepItem::kInputs, own.inputs);
  step.Set(StepItem::kTargets, own.targets);
  step.Set(StepItem::kTargetValues, own.values);
  step.Set(StepItem::kTargetWeights, own.weights);
  step.Set(StepItem::kPositionIds, own.position_ids);
  step.hyper = {static_cast<float>(options.learning_rate), static_cast<float>(options.max_norm)};
  step.valid_tokens = own.valid;
  step.weight_total = own.weight;
  return step;
}

// Reads all weights, or the gradients of those that train, into `values_by_name`.
absl::Status ReadAll(const ModelGraph& graph, LocalState& state, bool gradients,
                     std::map<std::string, std::vector<float>>& values_by_name) {
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    if (gradients && graph.parameters[i].frozen) continue;
    std::vector<float>& values = values_by_name[graph.parameters[i].name];
    values.resize(graph.parameters[i].elements());
    SHALE_RETURN_IF_ERROR(gradients ? state.ReadGradient(id, 0, absl::MakeSpan(values))
                                    : state.Read(id, 0, absl::MakeSpan(values)));
  }
  return absl::OkStatus();
}

// Adds the totals of a step to `result`. Returns Internal if the ranks differ in them.
absl::Status AddTotals(const std::vector<StepOutputs>& outputs, TargetWeights target_weights, RunResult& result) {
  const StepOutputs& first = outputs[0];
  for (const StepOutputs& out : outputs) {
    if (out.totals != first.totals || out.global_tokens != first.global_tokens ||
        out.global_weight != first.global_weight || out.loss_scale != first.loss_scale) {
      return absl::InternalError("ranks disagree about the totals of a step");
    }
  }
  const bool over_weights = target_weights == TargetWeights::kOverWeights;
  const double divisor = over_weights ? first.global_weight : static_cast<double>(first.global_tokens);
  result.losses.push_back(divisor > 0 ? first.totals[kTotalLoss] / divisor : 0);
  result.norms.push_back(std::sqrt(first.totals[kTotalSquaredNorm]));
  result.loss_scales.push_back(first.loss_scale[kLossScaleFactor]);
  result.global_tokens = first.global_tokens;
  result.global_weight = first.global_weight;
  result.non_finite = first.totals[kTotalNonFinite] != 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunResult> RunJob(RunOptions options, const std::vector<Tokens>& batches) {
  const Tokens& tokens = batches[0];
  const int64_t W = options.step.mesh.ranks();
  options.step.micro_batches = CeilDivide(tokens.sequences, W * options.micro_batch);
  options.step.keep_gradients |= options.reads_gradients;
  const GraphOptions graph_options = GraphOptionsOf(options, tokens.length);
  SHALE_ASSIGN_OR_RETURN(
      const ModelGraph graph,
      options.build ? options.build(graph_options) : BuildModel(options.model, graph_options, options.float8_sources));
  std::unique_ptr<Backend> tested;
  if (options.backend == nullptr) {
    tested = TestedBackend(options.ops, static_cast<int>(options.threads), options.cpu_matmuls);
  }
  const Backend* backend = options.backend != nullptr ? options.backend : tested.get();
  const std::unique_ptr<Ops> ops = backend->CreateOps(W, /*device=*/nullptr);
  RunResult result;
  SHALE_RETURN_IF_ERROR(Compile(graph, options, *ops, result));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<LocalRanks> ranks, CreateRanks(*backend, options, result));
  LocalState state(graph, result.step.state, result.plan, *ranks);
  SHALE_RETURN_IF_ERROR(FillState(options, *ranks, state, result));
  SHALE_ASSIGN_OR_RETURN(const Executors executors, CreateExecutors(options, *ranks, result));

  std::vector<std::vector<HostTokens>> host(batches.size());  // By batch, then by rank.
  std::vector<std::vector<StepInputs>> inputs(batches.size());
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    for (int rank = 0; rank < W; ++rank) {
      host[batch].push_back(TokensOfRank(batches[batch], options, rank, graph.last_target_only));
    }
    for (int rank = 0; rank < W; ++rank) inputs[batch].push_back(InputsOf(host[batch][rank], options));
  }
  std::vector<StepOutputs> outputs(W);
  for (int step = 0; step < options.steps; ++step) {
    SHALE_RETURN_IF_ERROR(ranks->ForEach([&](int rank) {
      Executor& executor = *executors.of_ranks[rank];
      if (options.before_step) options.before_step(step, rank, executor);
      const Pause pause = options.pause ? options.pause(result.step, result.plan, (*ranks)[rank]) : Pause();
      return executor.Run(inputs[step % batches.size()][rank], outputs[rank], pause);
    }));
    SHALE_RETURN_IF_ERROR(AddTotals(outputs, options.target_weights, result));
    const bool read = step == (options.gradients_of_first_step ? 0 : options.steps - 1);
    if (read && options.reads_gradients) SHALE_RETURN_IF_ERROR(ReadAll(graph, state, true, result.gradients));
  }
  SHALE_RETURN_IF_ERROR(ReadAll(graph, state, false, result.weights));
  result.measured_peak_bytes = ranks->measured_peak_bytes();
  result.graphs = executors.of_ranks[0]->graphs();
  return result;
}

}  // namespace shale::testing

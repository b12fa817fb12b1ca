// The programs that generate tokens.
//
// [Note: generation] A model generates with a cache: persistent buffers (Cache, engine/compile/graph/graph.h) hold the
// keys and values of the tokens so far, and a program computes the next tokens of B sequences from them and adds
// theirs. There is a program for chunks of one token, which decodes, and there are programs for longer chunks, which
// prefill. Of these there are two of each length: one for B sequences, and one that computes tokens that all of them
// have in common, such as the prompt of several samples, once, and stores their keys and values for each. All are
// compiled by CompileStep from graphs that differ in sequence_length and micro_batch only, and find the same buffers at
// the same addresses. engine/run/generate/next_tokens.h chooses among them, and owns what the buffers mean: which
// tokens each sequence holds.
//
// A model that reads whole windows (the MLP), or a custom one that cannot be built for one token at a time, generates
// without a cache: a single program computes the logits after a window of sequence_length tokens anew for every token.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/plan.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/config/job.h"

namespace shale {

// Returns the graphs of generation: those with a cache, in ascending order of sequence_length, of which the first is 1,
// and behind them those of one sequence for several; or a single one without a cache. Returns InvalidArgument if the
// model cannot generate, or if `size` asks for more positions than the model has.
absl::StatusOr<std::vector<ModelGraph>> BuildGeneration(const Job& job, const GenerationSize& size,
                                                        const WorkLimits& limits = {});

// Returns at which position the tokens of a graph with a cache must end, or kNoLastPosition.
int64_t EndOfPositions(const ModelGraph& graph);

}  // namespace shale

// Writes a plan as JSON for programs (`plan --json`).
#pragma once

#include <string>

#include "engine/planner/job_plan.h"

namespace shale {

// Returns one JSON object. Its keys are stable: later versions of this code may add keys, and `version` changes if the
// meaning of a key changes. Bytes and counts are integers, for one rank and one step. null means "none" or "no limit".
//
//   version          1
//   name             of the job
//   model            {description, parameters, units: [name]}
//   batch            {global_batch, micro_batch, sequence_length, micro_batches, loss_chunk_tokens}; micro_batches is K
//   options          as decided: {ranks, shard_ranks, strategy, accumulation, accumulation_reason, prefetch,
//                    reshard_after_forward, packs_once, compute, master, gradient_shards, optimizer, clipping,
//                    update, keep_gradients, asynchronous_checkpoints, activation_checkpointing: {preset, every_nth,
//                    first_layers, last_layers, segment_blocks, recompute: [pattern]}, offload: [pattern],
//                    offload_state: text, update_device}
//   memory           {arena_bytes, persistent_bytes, persistent_host_bytes, peak_bytes, lower_bound_bytes,
//                    evaluate_peak_bytes, generate_peak_bytes, at_peak: {instruction, categories}}; peak and lower
//                    bound are those of the training program; generate_peak_bytes is null without runtime.generate
//   host_memory      {total_bytes, staging_bytes, items_bytes, transfer_bytes, offload_bytes}
//   budget           {bytes, origin, host_bytes, host_origin}; an origin is null if the job sets the budget
//   timeline         [{moment, bytes, instruction, categories}] (engine/report/timeline.h)
//   communication    {gathers, gathered_bytes, reductions, reduced_bytes, all_reduces, all_reduced_bytes, sent_bytes,
//                    sent_between_groups_bytes}
//   offload          {tensors, offloaded_bytes, fetched_bytes, state_fetched_bytes, state_returned_bytes}
//   flops            {forward, recompute, backward, model_per_token}; model_per_token is what MFU counts
//   candidates       [{accumulation, chosen, error, fits, arena_bytes, host_bytes, sent_bytes}]: the accumulations that
//                    were compiled; fits and the bytes are null if there is an error
//   buffers          [{name, category, memory, bytes, slots, address, persistent, first, last}] by BufferId. memory is
//                    "arena" or "host", and the address counts from its start; first and last are the instructions at
//                    the ends of the lifetime. If the program does not use the buffer, first and last are null, and
//                    so is the address unless the buffer is persistent
//   loops            [{begin, end, repeat}]: instructions [begin, end) run `repeat` times
//   instructions     only with `instructions`: [{name, stream, phase, unit, micro_batch, last_iteration_only, operands:
//                    [{name, buffer, access}], waits: [instruction]}]; access is "read", "write" or "update"
//
// `categories` is an object with the bytes of each category that has any: "optimizer_state", "activations_kept". The
// text ends with a newline.
std::string PlanJson(const Job& job, const JobPlan& plan, bool instructions);

}  // namespace shale

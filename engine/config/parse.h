// From a job file to a validated Job.
//
// Input is textproto (proto/job.proto, message Job) or the same message in binary, at most 1 MiB; fields that the
// message does not have are refused. A job that passes has every value in range, no contradictions, and no product of
// sizes above 2^62. Everything wrong with a spec is reported at once (20 at most), one line each:
//
//   job.textproto:12:3: sharding.strategy: found "FULLY"; allowed: NONE, OPTIMIZER, GRADIENTS, FULL; did you mean FULL?
//
// that is file, line and column of the field, both from 1; the field's path; what was found; what is allowed. A value
// that an override gave has "--set" in place of file, line and column. Only what lies in the way of reading on is
// reported alone: unknown names, wrong types and bad syntax come before ranges and contradictions.
//
// All errors are InvalidArgument, but for a file that cannot be read (NotFound, or what the system says). Safe to call
// from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/config/job.h"

namespace shale {

// Reads and checks the job at `path`, after applying the overrides in order. A file named *.binpb or *.pb is binary,
// one named *.textproto, *.txtpb or *.prototxt is text; any other is binary if it has bytes that text has not.
//
// An override is path=value, as in "optimizer.learning_rate=1e-3", "sharding.strategy=FULL", "name=night run" (quotes
// are optional) or "memory.recompute=blocks.*.ffn.up". A list field grows by the value; "memory.recompute=[a, b]"
// replaces it. A message takes "{...}". "path=" sets the field back to its default.
absl::StatusOr<Job> LoadJob(absl::string_view path, absl::Span<const std::string> overrides = {});

// The same for text in memory. `filename` names it in messages; its folder is where relative data paths start.
absl::StatusOr<Job> ParseJobText(absl::string_view text, absl::string_view filename,
                                 absl::Span<const std::string> overrides = {});

// The same for a job in binary.
absl::StatusOr<Job> ParseJobBinary(absl::string_view bytes, absl::string_view filename,
                                   absl::Span<const std::string> overrides = {});

// Checks a job that was not parsed, or one that was changed since (a vocabulary found in the data, other ranks).
absl::Status ValidateJob(const Job& job);

// Parses and checks a bare model (message ModelSpec) for sequences of `sequence_length` tokens.
absl::StatusOr<ModelConfig> ParseModelText(absl::string_view text, int64_t sequence_length,
                                           absl::string_view filename = "model");

}  // namespace shale

// Jobs: how they are read, checked and printed, and what they take from data and from a model of the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/config/job.h"

namespace shale {

class TokenSource;  // engine/files/data/token_source.h

// One error of a job, in parts, for programs that show errors beside the fields that caused them.
struct JobError {
  std::string source;   // The file that has the error, or "--set" for an override.
  int line = 0;         // Of the field, from 1. 0: the source has no lines, or the error belongs to no field.
  int column = 0;       // From 1; 0 if `line` is 0.
  std::string path;     // Of the field: "sharding.strategy". Empty: the error belongs to no field.
  std::string message;  // What was found and what is allowed.
};

// What the data say of the settings that a job may leave to them: the format and the vocabulary.
struct DataFacts {
  DataFormat format = DataFormat::kByContent;  // kByContent: not known, because the data was not read.
  int64_t vocabulary = 0;                      // The size that the tokens' encoding implies; 0: not known.
};

// Returns the facts of opened data.
DataFacts DataFactsOf(const TokenSource& source);

// Returns the facts that are needed to plan a job. Reads the data only if the job sets neither the vocabulary nor the
// format TEXT. Returns InvalidArgument, with settings that avoid the read, if that data cannot be read. Errors begin
// with the path of a field and a colon.
absl::StatusOr<DataFacts> DataFactsForPlanning(const Job& job);

// Does the same without reading the data, for a job that somebody else wrote. `known` is what the caller knows of the
// data. Returns InvalidArgument, which begins with a field's path and a colon, if that is not enough.
absl::StatusOr<DataFacts> DataFactsWithoutReading(const Job& job, const DataFacts& known);

// Sets the format of the data in `job`, if `data` has it, and the vocabulary, if `job` does not set it.
void ApplyDataFacts(const DataFacts& data, Job& job);

// Turns a job file into a validated Job.
//
// The input is textproto (proto/job.proto, message Job) or the same message in binary, at most 1 MiB. Fields that the
// message does not have are refused. A job that passes has every value in range, no contradictions, and no product of
// sizes above 2^62. All errors of a spec are reported together, at most 20, one line each:
//
//   job.textproto:12:3: sharding.strategy: found "FULL"; allowed: DDP, ZERO1, ZERO2, FULL_SHARD; did you mean
//   FULL_SHARD?
//
// A line gives the file, the line and column of the field (both from 1), the field's path, what was found, and what is
// allowed. For a value that an override gave, "--set" replaces file, line and column. If the text has unknown names,
// wrong types or bad syntax, only those errors are reported, because ranges and contradictions are checked later.
//
// All errors are InvalidArgument, except for a file that cannot be read (NotFound, or the system's error). A function
// that takes `errors` also stores all errors there, in parts; if the job is right it stores nothing. `errors` may be
// null. Any thread may call these functions.

// Where the model of a job comes from. With kProgram the job file must not have a `model`, and the model of the
// returned job is an empty CustomModel until the program gives it one: with TrainerOptions::model, or SetModel. With
// kJobAndData the job must also name its data, because the program has none.
enum class ModelFrom { kJob, kProgram, kJobAndData };

// Reads the job at `path`, applies the overrides in order, checks the result and returns it. A file named *.binpb or
// *.pb is binary, and one named *.textproto, *.txtpb or *.prototxt is text. Any other file is binary if it has bytes
// that cannot occur in text.
//
// An override is path=value: "optimizer.learning_rate=1e-3", "sharding.strategy=FULL_SHARD", "name=night_run" (quotes
// are optional), "activation_checkpointing.recompute=blocks.*.ffn.up". For a list field, the value is appended to the
// list, and "activation_checkpointing.recompute=[a, b]" replaces the list. A message takes "{...}". A field that counts
// bytes takes a unit too: "memory.budget_bytes=1.5GiB" (KiB, MiB, GiB, TiB). "path=" sets the field back to its
// default.
absl::StatusOr<Job> LoadJob(absl::string_view path, absl::Span<const std::string> overrides = {},
                            ModelFrom model = ModelFrom::kJob, std::vector<JobError>* errors = nullptr);

// Does the same for text in memory. `filename` names it in messages, and relative paths in it start at the folder of
// `filename`.
absl::StatusOr<Job> ParseJobText(absl::string_view text, absl::string_view filename,
                                 absl::Span<const std::string> overrides = {}, ModelFrom model = ModelFrom::kJob);

// Does the same for the text of a job that a run recorded (ResolvedJobText). A custom model comes back without its
// function: SetModel gives it again.
absl::StatusOr<Job> ParseRecordedJob(absl::string_view text, absl::string_view filename);

// Does the same for a job in binary form.
absl::StatusOr<Job> ParseJobBinary(absl::string_view bytes, absl::string_view filename,
                                   absl::Span<const std::string> overrides = {}, ModelFrom model = ModelFrom::kJob);

// Parses a job in memory that somebody else wrote, such as a request to a service. Opens no file: refuses a job whose
// model only the files of model.hf_folder describe. The job is binary if it has bytes that cannot occur in text.
absl::StatusOr<Job> ParseForeignJob(absl::string_view bytes, absl::string_view filename,
                                    absl::Span<const std::string> overrides = {},
                                    std::vector<JobError>* errors = nullptr);

// Checks a job that was not parsed, or that was changed after it was parsed (a vocabulary found in the data, another
// number of ranks).
absl::Status ValidateJob(const Job& job, std::vector<JobError>* errors = nullptr);

// Returns `job`, parsed or not, with the overrides applied in order, checked like a job that was parsed. The model
// stays as it is if the program brought it.
absl::StatusOr<Job> WithOverrides(const Job& job, absl::Span<const std::string> overrides);

// Parses and checks a bare model (message ModelSpec) for sequences of `sequence_length` tokens.
absl::StatusOr<ModelConfig> ParseModelText(absl::string_view text, int64_t sequence_length,
                                           absl::string_view filename = "model");

// Returns an explanation of `topic`, in lines of at most `columns` columns. A section such as "batch" is explained by
// the values, the default and the first sentence of each of its fields, a field such as "sharding.strategy" by all that
// there is to say, and "job" by its sections. Returns InvalidArgument with a suggestion if a job has no such field. Any
// thread may call it.
absl::StatusOr<std::string> FieldHelp(absl::string_view topic, size_t columns = 100);

// Returns the job as textproto, with every default written out and numbers exact to the last bit.
// ParseJobText(ResolvedJobText(job)) returns an equal job if the job is valid. Leaves out values that are still
// undecided: a vocabulary that depends on the data, a budget that depends on the machine.
std::string ResolvedJobText(const Job& job);

// Sets job.model to `model`, which a program brings, and validates the job. Leaves the job unchanged after an error. A
// job that a run recorded keeps its vocabulary, unless `model` sets one. This is how a program plans a job with its own
// model (ResolveJob); a trainer does it itself if TrainerOptions::model is set.
//
// Returns InvalidArgument if the job describes a model itself, or for the errors of ValidateJob; FailedPrecondition if
// the job was recorded with a model of another name or digest.
absl::Status SetModel(const CustomModel& model, Job& job);

}  // namespace shale

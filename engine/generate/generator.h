// Generates tokens with trained weights.
//
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Generator> generator,
//                          Generator::FromRun("runs/quickstart", CreateBackend));  // engine/backends/job_backend.h
//   SHALE_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, generator->TextPrompt("The "));
//   SHALE_RETURN_IF_ERROR(generator->Generate(prompt, 200, {}, [](int32_t token) { ...; return true; }));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/backends/job_backend.h"
#include "engine/checkpoint/reader.h"
#include "engine/generate/sampler.h"

namespace shale {

// Runs the logits program of a job's model on one rank with all of the machine's cores: a program from the compiler
// that made the training step. Every token costs one pass over a window of sequence_length tokens. One thread at a
// time.
class Generator {
 public:
  // The job and the weights of a checkpoint, which is not needed any more afterwards. `create_backend` is asked for
  // what the job ran on.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(const CheckpointReader& checkpoint,
                                                           const BackendFactory& create_backend);
  // Those of the newest checkpoint of a run folder (engine/train/run_folder.h) that is whole; see passed_over().
  static absl::StatusOr<std::unique_ptr<Generator>> FromRun(const std::string& run_folder,
                                                            const BackendFactory& create_backend);
  ~Generator();

  // Newer checkpoints of the run that FromRun found damaged, each with the reason.
  const std::vector<std::string>& passed_over() const { return passed_over_; }
  int64_t vocabulary() const;
  // Whether tokens are the bytes of text.
  bool is_text() const;

  // The tokens of a text; an empty one stands for a new line. InvalidArgument for a model of tokens, which are no text,
  // and for a byte outside the vocabulary.
  absl::StatusOr<std::vector<int32_t>> TextPrompt(absl::string_view text) const;

  // The logits of the token that follows `context`, of which the last sequence_length tokens are looked at. Valid until
  // the next call. InvalidArgument for an empty context, and for one of those tokens outside the vocabulary.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);

  // Draws `count` tokens after `prompt`, and calls emit with each as it comes; false ends the generation.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  class Impl;
  explicit Generator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::vector<std::string> passed_over_;
};

}  // namespace shale

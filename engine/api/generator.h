// Generates tokens with trained weights.
//
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Generator> generator,
//                          Generator::FromRun("runs/quickstart", CreateBackend));  // engine/api/backend.h
//   SHALE_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, generator->TextPrompt("The "));
//   SHALE_RETURN_IF_ERROR(generator->Generate(prompt, 200, {}, [](int32_t token) { ...; return true; }));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/sampler.h"

namespace shale {

// Generates with a job's model on one rank, with all cores of the machine. The compiler of training steps compiles the
// programs ([Note: generation] in engine/plan/planner/generation.h), and the memory is planned like that of a step.
// Used by one thread at a time.
class Generator {
 public:
  // Takes the job and the weights from a checkpoint, which is not needed afterwards. `create_backend` must create a
  // backend for the kind of device that the job ran on. `model` is the model of a run whose program brought it, with
  // the name and the digest that the checkpoint records; the vocabulary comes from the checkpoint. If the checkpoint
  // holds adapters alone, their base is read from `base_folder`, or from where the run had it if that is empty. Returns
  // the errors of BuildGeneration for `size`, and of WeightsOnly::Restore.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(const CheckpointReader& checkpoint,
                                                           const BackendFactory& create_backend,
                                                           const std::optional<CustomModel>& model = std::nullopt,
                                                           const GenerationSize& size = {},
                                                           const std::string& base_folder = "");
  // Does the same with the newest intact checkpoint of a run folder (engine/run/train/run_folder.h), or with the best
  // one. Returns NotFound if there is no such checkpoint, and DataLoss if all are damaged.
  static absl::StatusOr<std::unique_ptr<Generator>> FromRun(const std::string& run_folder,
                                                            const BackendFactory& create_backend,
                                                            const std::optional<CustomModel>& model = std::nullopt,
                                                            const GenerationSize& size = {},
                                                            WhichCheckpoint which = WhichCheckpoint::kNewest,
                                                            const std::string& base_folder = "");
  ~Generator();

  // Returns one message for each newer, or better, checkpoint that FromRun found damaged.
  const std::vector<std::string>& passed_over() const { return passed_over_; }
  // Returns the job of the model, resolved.
  const Job& job() const;
  int64_t vocabulary() const;
  // Returns how many tokens a sequence may hold (Sequences::positions).
  int64_t positions() const;
  // Returns whether tokens are the bytes of text.
  bool is_text() const;

  // Returns the tokens of a text, one for each byte; an empty text stands for a newline. Returns InvalidArgument unless
  // is_text(), and for a byte outside the vocabulary.
  absl::StatusOr<std::vector<int32_t>> TextPrompt(absl::string_view text) const;

  // Returns the bytes of the arena: those that the plan needs, and those that were used so far.
  int64_t planned_peak_bytes() const;
  int64_t measured_peak_bytes() const;

  // Returns the logits [V] of the token that follows `context`, computed from its last positions() tokens. Valid until
  // the next call. Returns InvalidArgument if `context` is empty or if one of those tokens is outside the
  // vocabulary.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);

  // Draws tokens after each prompt, all of them at once (NextTokens::GenerateAll).
  absl::Status GenerateAll(absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                           absl::FunctionRef<bool(int64_t sequence, int32_t token)> emit);
  // Draws `count` tokens after `prompt` and calls `emit` with each as it is drawn. Stops early if `emit` returns false.
  // Returns the errors of Logits and Sampler::Draw.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  class Impl;
  explicit Generator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::vector<std::string> passed_over_;
};

}  // namespace shale

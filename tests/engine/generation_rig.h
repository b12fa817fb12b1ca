// The programs of generation of small models, ready to run, for laws that compare ways to generate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/plan.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/runtime/local_ranks.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {

struct GenerationSetting {
  std::string name;
  DecoderConfig model = SmallDecoder();
  ComputePrecision precision = ComputePrecision::kFloat32;
  bool fp32_logits = false;
  int ranks = 1;
  int64_t window = 16;  // The job's sequence_length.
  GenerationSize size;
};

class GenerationRig {
 public:
  // Plans the programs of BuildGeneration if `cached`, else one that computes the logits after a whole window. Sets the
  // weights with `read`, or if that is empty to random ones, which depend on the model alone. Aborts on an error.
  using ReadValues = std::function<absl::Status(const Parameter& parameter, int64_t begin, absl::Span<float> out)>;
  GenerationRig(const GenerationSetting& setting, bool cached, const ReadValues& read = {});

  Sequences& sequences() { return *sequences_; }
  const std::vector<PlannedProgram>& programs() const { return programs_; }
  int64_t planned_peak_bytes() const { return peak_bytes_; }
  int64_t measured_peak_bytes() const { return ranks_->measured_peak_bytes(); }

  // Adds tokens to the first sequence, and returns the logits after them.
  std::vector<float> Append(const std::vector<int32_t>& tokens);
  // Returns the logits after the last token of a sequence.
  std::vector<float> Logits(int64_t b) const;
  // Returns the logits after `context` alone.
  std::vector<float> After(const std::vector<int32_t>& context);

 private:
  const std::unique_ptr<Backend> backend_;
  std::vector<PlannedProgram> programs_;
  int64_t peak_bytes_ = 0;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<Sequences> sequences_;
};

}  // namespace shale::testing

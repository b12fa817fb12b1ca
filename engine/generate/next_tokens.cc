#include "engine/generate/next_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

void ToFloats(const std::vector<std::byte>& bytes, DType dtype, std::vector<float>& values) {
  SHALE_CHECK(bytes.size() == values.size() * SizeOf(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    BFloat16 value;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    values[i] = ToFloat(value);
  }
}

}  // namespace

int32_t PaddingToken(const Job& job) {
  return job.data.format == DataFormat::kText && !job.data.has_tokenizer() ? '\n' : 0;
}

NextTokens::NextTokens(const PlannedProgram& program, int32_t padding, int ranks, std::unique_ptr<LocalProgram> run)
    : program_(program),
      padding_(padding),
      ranks_(ranks),
      run_(std::move(run)),
      window_(program.graph.sequence_length),
      logits_(program.graph.vocabulary) {}

absl::StatusOr<std::unique_ptr<NextTokens>> NextTokens::Create(LocalRanks& ranks, const PlannedProgram& program,
                                                               int32_t padding, const ExecutorOptions& options) {
  SHALE_CHECK(program.graph.mode == GraphMode::kLogits && program.graph.micro_batch == 1);
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<LocalProgram> run,
                         LocalProgram::Create(ranks, program.step.program, program.memory, options));
  return absl::WrapUnique(new NextTokens(program, padding, ranks.size(), std::move(run)));
}

absl::Status NextTokens::Check(absl::Span<const int32_t> context) const {
  if (context.empty()) return absl::InvalidArgumentError("nothing to continue: the prompt has no tokens");
  for (int32_t token : context.last(std::min(window_.size(), context.size()))) {
    if (token < 0 || token >= vocabulary()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is outside the model's vocabulary of ", vocabulary(), " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> NextTokens::Logits(absl::Span<const int32_t> context) {
  SHALE_RETURN_IF_ERROR(Check(context));
  const int64_t window = std::ssize(window_), count = std::min<int64_t>(window, std::ssize(context));
  // A model that reads every position of the window (the MLP) needs the tokens at the end of the window. Attention is
  // causal, because no other has a graph of logits: there the tokens come first, at the positions of training, and
  // whatever follows them has no effect.
  const int64_t begin = program_.graph.last_target_only ? window - count : 0;
  std::fill(window_.begin(), window_.end(), padding_);
  std::copy(context.end() - count, context.end(), window_.begin() + begin);
  const int32_t row = static_cast<int32_t>(count - 1);
  StepInputs inputs;
  inputs.inputs = window_;
  inputs.rows = absl::MakeConstSpan(&row, 1);
  if (absl::Status status = run_->Run(std::vector<StepInputs>(ranks_, inputs)); !status.ok()) {
    failed_ = true;
    return status;
  }
  ToFloats(run_->outputs(0).logits, program_.graph.compute_dtype, logits_);
  return absl::MakeConstSpan(logits_);
}

absl::Status NextTokens::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                  absl::FunctionRef<bool(int32_t)> emit) {
  Sampler sampler(sampling);
  std::vector<int32_t> context(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < count; ++i) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<const float> logits, Logits(context));
    SHALE_ASSIGN_OR_RETURN(const int32_t token, sampler.Draw(logits));
    context.push_back(token);
    if (!emit(token)) break;
  }
  return absl::OkStatus();
}

}  // namespace shale

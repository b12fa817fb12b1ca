// The generation bench: the time to prefill a prompt and to decode each of the tokens that follow, with a cache.
//
// Reads a Hugging Face folder, and generates with it on the CPU, always taking the most likely token.
// tools/bench_generate runs it in turns with PyTorch on the same folder. Prints one line of JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/api/backend.h"
#include "engine/api/plan.h"
#include "engine/compile/memory/plan.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/state/local_state.h"
#include "kernels/check.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string folder;
  int64_t batch = 1, prompt = 16, tokens = 64, threads = 1, repetitions = 3;
  bool bf16 = false;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Job JobOf(const Flags& flags, const DecoderConfig& model) {
  Job job;
  job.model = model;
  job.batch = {.global_batch = 1, .micro_batch = 1, .sequence_length = flags.prompt + flags.tokens};
  job.sharding = {.strategy = Strategy::kDdp, .accumulation = Accumulation::kNoSync, .ranks = 1};
  job.optimizer.kind = OptimizerKind::kSgd;
  job.runtime.threads_per_rank = flags.threads;
  if (flags.bf16) {
    job.precision.compute = ComputePrecision::kBFloat16;
    job.precision.master = MasterWeights::kNone;
  }
  return job;
}

absl::Status Measure(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const DecoderConfig model, ReadHfConfig(flags.folder));
  SHALE_ASSIGN_OR_RETURN(const HfWeights weights, HfWeights::Open(flags.folder, model));
  Job job = JobOf(flags, model);
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  const std::unique_ptr<Ops> ops = backend->CreateOps(/*ranks=*/1, /*device=*/nullptr);
  SHALE_ASSIGN_OR_RETURN(const std::vector<PlannedProgram> programs,
                         PlanGeneration(job, StepOptionsFor(job), {.sequences = flags.batch}, *ops));
  std::vector<ProgramAndPlan> users;
  int64_t peak_bytes = 0;
  for (const PlannedProgram& program : programs) {
    users.push_back({program.step.program, program.memory});
    peak_bytes = std::max(peak_bytes, program.memory.peak_bytes);
  }
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalRanks> ranks,
      LocalRanks::Create(*backend, {.programs = users, .host_memory = PlanHostMemory(users, kReadStagingBytes)},
                         peak_bytes));
  const PlannedProgram& any = programs.front();
  SHALE_RETURN_IF_ERROR(LocalState(any.graph, any.step.state, any.memory, *ranks)
                            .Fill([&](const Parameter& parameter, int64_t begin,
                                      absl::Span<float> values) { return weights.Read(parameter.name, begin, values); },
                                  {.threads = static_cast<int>(flags.threads)}));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Sequences> sequences,
                         Sequences::Create(*ranks, programs, /*padding=*/0, {}));

  std::vector<double> prefill, decode;
  std::vector<int32_t> drawn;  // By the first sequence.
  for (int64_t repetition = 0; repetition <= flags.repetitions; ++repetition) {
    std::vector<std::vector<int32_t>> tokens(flags.batch);
    for (int64_t b = 0; b < flags.batch; ++b) {
      for (int64_t i = 0; i < flags.prompt; ++i) {
        tokens[b].push_back(static_cast<int32_t>((i * i * 7 + i * 31 + b * 17) % model.vocabulary));
      }
    }
    sequences->Restart();
    drawn.clear();
    double begin = Seconds(), each = 0;
    for (int64_t i = 0; i < flags.tokens; ++i) {
      SHALE_RETURN_IF_ERROR(sequences->Append(tokens));
      for (int64_t b = 0; b < flags.batch; ++b) {
        const absl::Span<const float> logits = sequences->logits(b);
        tokens[b] = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
      }
      drawn.push_back(tokens[0][0]);
      const double now = Seconds();
      if (i > 0) {
        each += now - begin;
      } else if (repetition > 0) {  // The first is to warm up.
        prefill.push_back(now - begin);
      }
      begin = now;
    }
    if (repetition > 0) decode.push_back(each / static_cast<double>(flags.tokens - 1));
  }
  absl::PrintF("{\"prefill\": %g, \"decode\": %g, \"peak_bytes\": %d, \"tokens\": [%s]}\n", Median(prefill),
               Median(decode), peak_bytes, absl::StrJoin(drawn, ", "));
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("generation", "Times prefill and decoding with the model of a Hugging Face folder.");
  line.Text("folder", "FOLDER", "The model.", &flags.folder).Required();
  line.Integer("batch", "Sequences at once.", 1, 4096, &flags.batch);
  line.Integer("prompt", "Tokens of each prompt.", 1, 1 << 20, &flags.prompt);
  line.Integer("tokens", "Tokens that follow each prompt.", 2, 1 << 20, &flags.tokens);
  line.Integer("threads", "Threads.", 1, 1024, &flags.threads);
  line.Integer("repetitions", "How often to measure. Medians are printed.", 1, 1000, &flags.repetitions);
  line.Switch("bf16", "Compute in bf16.", &flags.bf16);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Measure(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "generation: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}

// plan: prints what a job would need, without running it and without its data.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/backends/job_backend.h"
#include "engine/config/data_facts.h"
#include "engine/config/parse.h"
#include "engine/planner/resolve_job.h"
#include "engine/program/program.h"
#include "engine/report/explain.h"
#include "engine/report/plan_text.h"
#include "engine/runtime/backend.h"
#include "kernels/op_backend.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string job;
  std::vector<std::string> set;
  int64_t ranks = 0;
  bool explain = false;
  bool dump_program = false;
};

int Fail(const absl::Status& status, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(const Flags& flags) {
  std::vector<std::string> overrides = flags.set;
  if (flags.ranks > 0) overrides.push_back(absl::StrCat("sharding.ranks=", flags.ranks));
  const absl::StatusOr<Job> job = LoadJob(flags.job, overrides);
  if (!job.ok()) return Fail(job.status(), kExitUsage);
  const absl::StatusOr<DataFacts> data = DataFactsForPlanning(*job);
  if (!data.ok()) return Fail(data.status(), kExitUsage);
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(*job);
  if (!backend.ok()) return Fail(backend.status(), kExitUsage);
  std::string remark;
  const absl::StatusOr<ResolvedJob> resolved = ResolveJobForAnywhere(*job, *data, (*backend)->machine(), remark);
  if (!resolved.ok()) return Fail(resolved.status(), kExitUsage);
  std::fputs(PlanText(resolved->job, resolved->plan).c_str(), stdout);
  if (!remark.empty()) std::printf("\n%s", remark.c_str());
  if (flags.explain) {
    const std::unique_ptr<Ops> ops = (*backend)->CreateOps(job->sharding.ranks, /*device=*/nullptr);
    const absl::StatusOr<std::string> text = ExplainText(resolved->job, resolved->plan, *ops);
    if (!text.ok()) return Fail(text.status(), kExitFailed);
    std::printf("\n%s", text->c_str());
  }
  if (flags.dump_program) std::printf("\n%s", ProgramText(resolved->job, resolved->plan).c_str());
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line(
      "plan",
      "Compiles the program of a job and plans its memory, for any number of ranks and without "
      "running anything: memory by category, communication, arithmetic. The job's data need not exist.");
  line.Text("job", "FILE", "The job spec, text or binary.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Sets a field of the job, as in optimizer.learning_rate=1e-3.", &flags.set);
  line.Integer("ranks", "Plans for this many ranks; 0: for those of the job.", 0, int64_t{1} << 20, &flags.ranks);
  line.Switch("explain",
              "Also what micro-batches, the optimizer step, activation checkpointing, offload, no_sync and other "
              "strategies cost.",
              &flags.explain);
  line.Switch("dump_program", "Also the training program, instruction by instruction.", &flags.dump_program);
  line.Footer(
      "A job that does not fit memory.budget_bytes, or what it offloads memory.host_budget_bytes, is "
      "refused, with the settings that would make it fit.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}

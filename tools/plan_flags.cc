#include "tools/plan_flags.h"

#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/plan/planner/fit.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/time/profile.h"

namespace shale {
namespace {

// Those that say what is planned, and where.
void AddJobFlags(CommandLine& line, PlanFlags& flags) {
  line.Text("job", "FILE", "The job spec, text or binary.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job, as in --set=optimizer.learning_rate=1e-3.", &flags.set);
  line.Integer("ranks", "Plans for this many ranks; 0: for those of the job.", 0, int64_t{1} << 20, &flags.ranks);
  line.Text(
      "machine", "NAME",
      absl::StrCat("Plans the job for the kind of device of another machine, and predicts the seconds of a step there. "
                   "NAME is one of ",
                   absl::StrJoin(ProfileNames(), ", "),
                   ", or a file that calibrate wrote. Without --machine, predicts the seconds on this machine, "
                   "if calibrate has measured it, or if it has the GPUs of one of these machines."),
      &flags.machine);
  line.Integer("hosts",
               "With --machine: plans for this many hosts, with a rank on each device; 0: for the ranks of the job.", 0,
               int64_t{1} << 20, &flags.hosts);
  line.Integer(
      "processes",
      "Predicts the seconds of ranks in this many processes, as a launcher starts them; 0: of one process on "
      "each host, whose ranks are threads. It makes a difference on CPUs. --explain and --search compare settings as "
      "of one process on each host, as a run does.",
      0, int64_t{1} << 20, &flags.processes);
}

// Those that say what is printed and written.
void AddOutputFlags(CommandLine& line, PlanFlags& flags) {
  line.Switch(
      "explain",
      "Also prints where every byte goes at the peak, the largest micro-batch that fits and the peak of the learning "
      "rate, and compares what other settings would need and cost: micro-batches, forms of the state, the "
      "optimizer step, activation checkpointing, offload, accumulations, strategies, and all others that save "
      "memory.",
      &flags.explain);
  line.Switch("timeline",
              "Also prints the memory of each part of a step by category: held after load, the peaks of forward, loss, "
              "backward, reduce and update, held after the step.",
              &flags.timeline);
  line.Switch("dump_program", "Also prints the training program, instruction by instruction.", &flags.dump_program);
  line.OptionalText(
      "json", "FILE",
      "Writes the plan as JSON, with instructions if --dump_program is given; without FILE prints it in "
      "place of the text. If the job does not fit or is wrong, this says why, and what would make it fit. "
      "proto/plan.proto documents its keys.",
      std::string(kStandardOutput), &flags.json);
  line.Text("proto", "FILE", "Writes the same as a binary message, shale.proto.Plan in proto/plan.proto.",
            &flags.proto);
  line.Text(
      "html", "FILE",
      "Writes a web page that shows the memory of a step, instruction by instruction, and, if they are predicted, "
      "its seconds, stream by stream.",
      &flags.html);
  line.Text(
      "trace", "FILE",
      "With --html: a file that train --trace wrote of this job. The page then also shows when each stream worked "
      "in the last step of the trace, on rank 0, beside what was predicted.",
      &flags.trace);
  line.Text("memory_snapshot", "FILE", "Writes a step's allocations for PyTorch's viewer, pytorch.org/memory_viz.",
            &flags.memory_snapshot);
}

void AddSearchFlags(CommandLine& line, PlanFlags& flags) {
  line.Text("fit", "FIELD",
            absl::StrCat("Instead of a plan, finds the largest batch or the fewest ranks with which the job fits the "
                         "budget, and the next value, which does not. FIELD is one of ",
                         absl::StrJoin(FitFields(), ", "), "."),
            &flags.fit);
  line.OptionalText(
      "search", "FIELDS",
      absl::StrCat("Also finds the settings that fit the budget with which a step takes the fewest predicted seconds, "
                   "and slower ones that need less memory. They change nothing that is trained, but how sums are "
                   "rounded. A last table lists settings that would change it; none is taken. FIELDS names the fields "
                   "that may change, with commas between them: some of ",
                   absl::StrJoin(SearchFields(), ", "), ". Without FIELDS, all of these may change."),
      std::string(kAllFields), &flags.search);
  line.Text(
      "searched_job", "FILE",
      "With --search: writes the job with the settings that it found, every default written out. A comment at each "
      "field that was searched says why it has its value.",
      &flags.searched_job);
  line.Number(
      "seconds",
      "How many seconds --explain, --fit or --search may take. After that, --explain prints the comparisons that it "
      "has made, and names the others.",
      0, 1e6, &flags.seconds);
}

}  // namespace

void AddPlanFlags(CommandLine& line, PlanFlags& flags) {
  AddJobFlags(line, flags);
  AddOutputFlags(line, flags);
  AddSearchFlags(line, flags);
  line.Footer(
      "If a job does not fit memory.budget_bytes, or what it offloads memory.host_budget_bytes, the plan is printed "
      "and "
      "written in full, followed by what is missing and the settings that would make the job fit. The exit code is 2 "
      "unless the job fits.");
  line.Topics(
      "Explains fields of a job: those of a section, as in --help=batch, or one, as in --help=data.packing. "
      "--help=job lists the sections.",
      [](absl::string_view topic) { return FieldHelp(topic); });
}

absl::Status CheckPlanFlags(const PlanFlags& flags) {
  if (flags.hosts > 0 && flags.machine.empty()) {
    return absl::InvalidArgumentError("--hosts needs a machine; name one with --machine");
  }
  if (flags.processes > 0 && flags.processes < flags.hosts) {
    return absl::InvalidArgumentError(absl::StrCat("--processes: found ", flags.processes, " on --hosts=", flags.hosts,
                                                   "; each host has at least one"));
  }
  if (flags.processes > 0 && !flags.fit.empty()) {
    return absl::InvalidArgumentError("--fit looks for what fits, whatever the processes are; leave --processes out");
  }
  if (!flags.trace.empty() && flags.html.empty()) {
    return absl::InvalidArgumentError("--trace is shown in the page of a plan; add --html=FILE");
  }
  if (!flags.searched_job.empty() && flags.search.empty()) {
    return absl::InvalidArgumentError("--searched_job writes what a search found; add --search");
  }
  const struct {
    absl::string_view name;
    bool given, prints;
  } others[] = {{"explain", flags.explain, true},
                {"timeline", flags.timeline, true},
                {"dump_program", flags.dump_program, false},
                {"json", !flags.json.empty(), false},
                {"proto", !flags.proto.empty(), false},
                {"html", !flags.html.empty(), false},
                {"memory_snapshot", !flags.memory_snapshot.empty(), false},
                {"search", !flags.search.empty(), false}};
  for (const auto& [name, given, prints] : others) {
    if (!given) continue;
    if (!flags.fit.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--fit makes no plan of the job; leave out --", name));
    }
    if (prints && flags.json_is_printed()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--json and --", name, " both print to standard output; give --json=FILE"));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale

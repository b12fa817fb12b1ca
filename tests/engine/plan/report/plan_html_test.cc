#include "engine/plan/report/plan_html.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/program.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/search/search.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/machine.pb.h"
#include "tests/engine/compile/memory/random_program.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

// Returns the names of the elements that are still open at the end. Returns only "/name" if an end tag does not match
// the innermost open element.
std::vector<std::string> Unbalanced(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return {"<"};
    const bool closes = html[at + 1] == '/', empty = html[end - 1] == '/';
    const size_t begin = at + 1 + closes;
    const std::string name = html.substr(begin, html.find_first_of(" >/", begin) - begin);
    if (closes) {
      if (open.empty() || open.back() != name) return {absl::StrCat("/", name)};
      open.pop_back();
    } else if (!empty && name != "!DOCTYPE" && name != "meta") {
      open.push_back(name);
      // Style and script elements contain no elements.
      if (name == "style" || name == "script") at = html.find(absl::StrCat("</", name), end) - 1;
    }
  }
  return open;
}

// Returns what the script of the page reads.
nlohmann::json DataOf(const std::string& html) {
  const std::string opening = "id=\"data\">";
  const size_t begin = html.find(opening) + opening.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin), nullptr, false);
}

TEST(PlanHtml, IsOneWellFormedPageThatLoadsNothing) {
  for (const Job& job : VariedJobs()) {
    const std::string html = PlanHtml(job, Plan(job));
    EXPECT_TRUE(absl::StartsWith(html, "<!DOCTYPE html>\n"));
    EXPECT_EQ(Unbalanced(html), std::vector<std::string>()) << job.name;
    for (const char* loads : {"http", "//", "src=", "href", "@import", "url(", "fetch("}) {
      EXPECT_FALSE(absl::StrContains(html, loads)) << loads;
    }
  }
}

// The page of a job of any length has the same figure of seconds, with a lane for each of its streams.
TEST(PlanHtml, WithSecondsShowsTheStreams) {
  proto::MachineProfile machine;
  machine.set_name("<fast> & \"small\"");
  machine.set_device("CUDA");
  for (const Job& job : VariedJobs()) {
    const JobPlan plan = Plan(job);
    const Prediction seconds = PredictStep(job, plan, machine);
    const std::string html = PlanHtml(job, plan, {.step = &seconds}), without = PlanHtml(job, plan);
    EXPECT_EQ(Unbalanced(html), std::vector<std::string>()) << job.name;
    EXPECT_LT(html.size() - without.size(), 150'000u);
    for (int s = 0; s < kStreams; ++s) {
      const auto stream = static_cast<StreamId>(s);
      EXPECT_EQ(absl::StrContains(html, absl::StrCat(">", ToString(stream), "</text>")),
                UsesStream(plan.train.step.program, stream));
    }
  }
}

// Both figures are sliders, for pointers and for the same keys. That of seconds once had no keys.
TEST(PlanHtml, TheMomentsOfTheSecondsAreForKeysToo) {
  proto::MachineProfile machine;
  machine.set_device("CUDA");
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const Prediction seconds = PredictStep(job, plan, machine);
  const std::string html = PlanHtml(job, plan, {.step = &seconds});
  for (const char* figure : {"chart", "times"}) {
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("<svg id=\"", figure, "\" class=\"slider\""))) << figure;
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("id=\"", figure, "-cursor\""))) << figure;
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("id=\"", figure, "-moment\""))) << figure;
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("figure('", figure, "', "))) << figure;
  }
  const nlohmann::json data = DataOf(html);
  ASSERT_TRUE(data.is_object());
  const nlohmann::json& times = data["times"];
  int64_t most = 0, busy = 0;
  for (const nlohmann::json& column : times["columns"]) {
    most = std::max(most, column[0].get<int64_t>());
    ASSERT_EQ(column[1].size(), times["streams"].size());
    for (const nlohmann::json& name : column[1]) {
      ASSERT_LT(name.get<int64_t>(), std::ssize(times["names"]));
      busy += name.get<int64_t>() >= 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(times["columns"][times["peak"].get<size_t>()][0], most);
  EXPECT_LE(most, plan.train.memory.lower_bound_bytes);
  EXPECT_GT(busy, std::ssize(times["columns"]) / 2);
}

using FormTimes = std::map<std::pair<InstructionId, bool>, double>;  // By instruction, and whether not the first time.

// Returns seconds of the instructions: those that were predicted last.
FormTimes SecondsOf(const Prediction& prediction) {
  FormTimes seconds;
  for (const IssueTimes& times : prediction.times.issues) {
    seconds[{times.issue.id, times.issue.iteration > 0}] = times.end - times.begin;
  }
  return seconds;
}

// Returns a step in which one instruction runs after the other, each as long as `seconds` says.
MeasuredStep OneAfterTheOther(const StepProgram& program, const FormTimes& seconds) {
  MeasuredStep measured{.step = 12};
  double& now = measured.times.seconds;
  for (const Issue& issue : IssuesOf(program)) {
    const double begin = now;
    now += seconds.at({issue.id, issue.iteration > 0});
    measured.times.issues.push_back({.issue = issue, .begin = begin, .end = now});
  }
  return measured;
}

// The streams of a step that was traced are on the axis of those that were predicted. Of a long loop both have the same
// iterations, and the page stays as small.
TEST(PlanHtml, ShowsAMeasuredStepBesideThePredictedOne) {
  proto::MachineProfile machine;
  machine.set_device("CUDA");
  int64_t micro_batches = 50;
  for (Job& job : VariedJobs()) {
    micro_batches = 51 - micro_batches;  // The jobs have one and 50 in turn.
    job.batch.global_batch = job.batch.micro_batch * job.sharding.ranks * micro_batches;
    const JobPlan plan = Plan(job);
    const Prediction prediction = PredictStep(job, plan, machine);
    const FormTimes seconds = SecondsOf(prediction);
    const MeasuredStep measured = OneAfterTheOther(plan.train.step.program, seconds);
    const std::string html = PlanHtml(job, plan, {.step = &prediction}, {}, &measured);
    EXPECT_EQ(Unbalanced(html), std::vector<std::string>()) << job.name;
    EXPECT_LT(html.size(), PlanHtml(job, plan).size() + 300'000u) << job.name;
    EXPECT_TRUE(absl::StrContains(html, "In step 12 of a run the program took ")) << job.name;
    EXPECT_TRUE(absl::StrContains(html, "Predicted and measured seconds")) << job.name;
    double shown = 0;
    for (const IssueTimes& times : prediction.times.issues) {
      shown += seconds.at({times.issue.id, times.issue.iteration > 0});
    }
    const nlohmann::json data = DataOf(html);
    ASSERT_TRUE(data.is_object());
    const nlohmann::json& times = data["times"];
    EXPECT_NEAR(times["seconds"].get<double>(), shown, 1e-6 * shown) << job.name << ", " << micro_batches;
    int64_t busy = 0;
    for (const nlohmann::json& column : times["columns"]) {
      ASSERT_EQ(column.size(), 3u);
      ASSERT_EQ(column[2].size(), times["streams"].size());
      for (const nlohmann::json& name : column[2]) busy += name.get<int64_t>() >= 0 ? 1 : 0;
    }
    // All the time some stream works, but where iterations were cut out.
    EXPECT_GT(busy, std::ssize(times["columns"]) / 2) << job.name;
    EXPECT_LE(busy, std::ssize(times["columns"])) << job.name;
  }
}

// With a search and changes the page has their figure and tables, in which the job itself is marked.
TEST(PlanHtml, ShowsTimeAgainstMemoryAndWhatChangesWouldTake) {
  const Job job = SmallDecoderJob(false);
  SearchResult search;
  search.own = {.overrides = {}, .cost = {.arena_bytes = 3000, .seconds = 2}, .fits = true};
  search.front = {{.overrides = {{"batch.micro_batch", "<4>"}}, .cost = {.arena_bytes = 4000, .seconds = 1}},
                  {.overrides = {{"batch.micro_batch", "2"}}, .cost = {.arena_bytes = 2000, .seconds = 3}}};
  search.budget.bytes = 5000;
  proto::MachineProfile profile;
  profile.set_device("CPU");
  const Machine machine = MachineWith(profile);
  const WorkLimits limits;
  Drafter drafter(job, machine, limits);
  const std::vector<ChangedJob> changes = ChangesOf(drafter);
  const std::string html = PlanHtml(job, Plan(job), {.search = &search}, changes);
  EXPECT_EQ(Unbalanced(html), std::vector<std::string>());
  for (const char* text : {"Time against memory", ">budget</text>", ">this job</text>", "batch.micro_batch=&lt;4&gt;",
                           "one more rank", "half the batch", "twice the sequence", "recomputing CHEAP"}) {
    EXPECT_TRUE(absl::StrContains(html, text)) << text;
  }
  // Twice the sequence needs more, and half the batch does half of the work.
  ASSERT_EQ(changes.size(), 5u);
  EXPECT_GT(changes[3].variant.cost.arena_bytes, changes[0].variant.cost.arena_bytes);
  EXPECT_EQ(changes[2].variant.cost.flops.total() * 2, changes[0].variant.cost.flops.total());
}

// Ops that are faster with more scratch than they need.
class AmpleOps : public ScratchOnlyOps {
 public:
  int64_t AmpleScratchBytes(const Op&, int64_t most_bytes) const override {
    return std::min<int64_t>(5000, most_bytes);
  }
};

// The bytes of changes are those of plans, which give ops more scratch where there is room.
TEST(PlanHtml, ChangesCountTheBytesOfTheirPlans) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = Accumulation::kSharded;
  const Machine machine = MachineOf<AmpleOps>();
  const WorkLimits limits;
  Drafter drafter(job, machine, limits);
  for (const ChangedJob& changed : ChangesOf(drafter)) {
    const absl::StatusOr<Job> other = drafter.With(changed.variant.overrides);
    ASSERT_TRUE(other.ok()) << other.status();
    const absl::StatusOr<JobPlan> plan = PlanJob(*other, machine);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(changed.variant.cost.arena_bytes, plan->arena_bytes) << changed.what;
    EXPECT_GT(changed.variant.cost.arena_bytes, Plan(*other).arena_bytes) << changed.what;
  }
}

// Changes for which there was no time stay in the table, which says so.
TEST(PlanHtml, ChangesSayWhatTheTimeCutOff) {
  const Job job = SmallDecoderJob(false);
  const Machine machine = MachineOf();
  const WorkLimits over{.deadline = WorkLimits::Clock::now() - std::chrono::seconds(1)};
  Drafter drafter(job, machine, over);
  const std::vector<ChangedJob> changes = ChangesOf(drafter);
  ASSERT_EQ(changes.size(), 5u);
  const std::string html = PlanHtml(job, Plan(job), {}, changes);
  EXPECT_EQ(Unbalanced(html), std::vector<std::string>());
  EXPECT_TRUE(absl::StrContains(html, "one more rank (not planned: the time for planning was over)"));
}

TEST(PlanHtml, NamesThePeakAndWhatIsLiveThen) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const MemoryPlan& memory = plan.train.memory;
  const std::string html = PlanHtml(job, plan);
  EXPECT_TRUE(absl::StrContains(html, absl::StrCat(">peak ", FormatBytes(memory.lower_bound_bytes), "<")));
  EXPECT_TRUE(absl::StrContains(html, Describe(plan.train.step.program, memory.peak_instruction)));
  for (BufferId b : memory.largest_at_peak) {
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("<td>", plan.train.step.program.buffers[b].name, "</td>")));
  }
  for (int c = 0; c < kBufferCategories; ++c) {
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat(" --c", c, ": #"))) << c;
    if (memory.bytes_at_peak[c] == 0) continue;
    EXPECT_TRUE(absl::StrContains(html, absl::StrCat("</span>", ToString(static_cast<BufferCategory>(c)), "</li>")));
  }
}

TEST(PlanHtml, TheDataOfTheScriptIsJsonAndHasThePeak) {
  Job job = SmallDecoderJob(false);
  JobPlan plan = Plan(job);
  plan.train.step.program.buffers[0].name = "</script><b>&";  // Must not end the element.
  const std::string html = PlanHtml(job, plan);
  const nlohmann::json data = DataOf(html);
  ASSERT_TRUE(data.is_object());
  const nlohmann::json& peak = data["columns"][data["peak"].get<size_t>()];
  EXPECT_EQ(peak[0], plan.train.memory.peak_instruction);
  EXPECT_EQ(peak[3], plan.train.memory.lower_bound_bytes);
  EXPECT_EQ(data["instructions"].size(), data["columns"].size());
  EXPECT_FALSE(absl::StrContains(html, "<b>"));
}

TEST(ChartColumns, CoverAllInstructionsAndKeepThePeak) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const StepProgram program = testing::LayeredProgram(20 + static_cast<int>(seed), seed);
    const MemoryPlan plan = *PlanMemory(program, {});
    for (int64_t most : {1, 7, 100, 1000000}) {
      const std::vector<ChartColumn> columns = ChartColumns(program, most, 5);
      ASSERT_EQ(columns.size(), std::min<size_t>(most, program.instructions.size()));
      InstructionId next = 0;
      int64_t largest = 0;
      for (const ChartColumn& column : columns) {
        EXPECT_EQ(column.begin, next);
        EXPECT_LE(column.begin, column.largest);
        EXPECT_LT(column.largest, column.end);
        next = column.end;
        largest = std::max(largest, column.live.total);
        EXPECT_LE(column.buffers.size(), 5);
        int64_t listed = 0;
        for (BufferId b : column.buffers) listed += program.buffers[b].size_bytes();
        EXPECT_LE(listed, column.live.total);
      }
      EXPECT_EQ(next, static_cast<InstructionId>(program.instructions.size()));
      EXPECT_EQ(largest, plan.lower_bound_bytes);
    }
  }
  EXPECT_TRUE(ChartColumns(StepProgram(), 10, 5).empty());
}

TEST(PlanHtml, OfALongProgramStaysSmall) {
  const Job job = SmallDecoderJob(false);
  JobPlan plan = Plan(job);
  plan.train.step.program = testing::LayeredProgram(1000, 1);
  plan.train.memory = *PlanMemory(plan.train.step.program, {});
  EXPECT_GT(plan.train.step.program.instructions.size(), 20000);
  EXPECT_LT(PlanHtml(job, plan).size(), size_t{3} << 20);
}

}  // namespace
}  // namespace shale

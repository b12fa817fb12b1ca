#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/plan_text.h"
#include "engine/plan/planner/summary.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

using Json = nlohmann::ordered_json;

Json Parsed(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

std::vector<std::string> KeysOf(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

int64_t SumOf(const Json& categories) {
  int64_t sum = 0;
  for (const auto& [key, bytes] : categories.items()) sum += bytes.get<int64_t>();
  return sum;
}

// Readers depend on these keys, which proto/plan.proto documents.
TEST(PlanJson, HasItsKeys) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  std::vector<std::string> keys = {"version", "verdict",  "text",          "errors",  "refusal", "remarks",
                                   "name",    "model",    "batch",         "options", "memory",  "host_memory",
                                   "budget",  "timeline", "communication", "offload", "flops",   "candidates",
                                   "buffers", "loops",    "seconds",       "search"};
  const Json json = Parsed(PlanJson(job, plan, PlanDetail::kBuffers));
  EXPECT_EQ(KeysOf(json), keys);
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(KeysOf(json["memory"]),
            (std::vector<std::string>{"arena_bytes", "persistent_bytes", "persistent_host_bytes", "peak_bytes",
                                      "lower_bound_bytes", "evaluate_peak_bytes", "generate_peak_bytes", "at_peak"}));
  EXPECT_EQ(KeysOf(json["buffers"][0]), (std::vector<std::string>{"name", "category", "memory", "bytes", "slots",
                                                                  "address", "persistent", "first", "last"}));
  keys.insert(keys.end() - 2, "instructions");
  EXPECT_EQ(KeysOf(Parsed(PlanJson(job, plan, PlanDetail::kInstructions))), keys);
}

TEST(PlanJson, SaysWhatThePlanSays) {
  for (const Job& job : VariedJobs()) {
    const JobPlan plan = Plan(job);
    const StepProgram& program = plan.train.step.program;
    const Json json = Parsed(PlanJson(job, plan, PlanDetail::kInstructions));
    EXPECT_EQ(json["name"], job.name);
    EXPECT_EQ(json["options"]["ranks"], job.sharding.ranks);
    EXPECT_EQ(json["options"]["shard_ranks"], plan.options.mesh.shard);
    EXPECT_EQ(json["options"]["update"], std::string(ToString(plan.options.update)));
    EXPECT_EQ(json["options"]["clipping"], std::string(ToString(plan.options.clipping)));
    EXPECT_EQ(json["options"]["accumulation"], std::string(ToString(plan.options.accumulation)));
    EXPECT_EQ(json["memory"]["arena_bytes"], plan.arena_bytes);
    EXPECT_EQ(json["memory"]["persistent_bytes"], plan.train.memory.persistent_bytes);
    EXPECT_EQ(json["memory"]["lower_bound_bytes"], plan.train.memory.lower_bound_bytes);
    EXPECT_EQ(SumOf(json["memory"]["at_peak"]["categories"]), plan.train.memory.lower_bound_bytes);
    EXPECT_EQ(json["budget"]["bytes"], job.memory.budget_bytes);
    EXPECT_TRUE(json["budget"]["host_bytes"].is_null());
    EXPECT_EQ(json["host_memory"]["offload_bytes"], plan.host_memory.offload_bytes);
    EXPECT_EQ(json["communication"]["sent_bytes"], SummarizeCommunication(program, plan.options.mesh).sent_bytes);
    EXPECT_EQ(json["flops"]["forward"], SummarizeFlops(program).forward);
    int64_t largest = 0;
    for (const Json& moment : json["timeline"]) {
      EXPECT_EQ(SumOf(moment["categories"]), moment["bytes"]);
      largest = std::max(largest, moment["bytes"].get<int64_t>());
    }
    EXPECT_EQ(largest, plan.train.memory.lower_bound_bytes);
    ASSERT_EQ(json["buffers"].size(), program.buffers.size());
    ASSERT_EQ(json["instructions"].size(), program.instructions.size());
    for (const Json& buffer : json["buffers"]) {
      if (buffer["memory"] == "host" || buffer["address"].is_null()) continue;
      EXPECT_LE(buffer["address"].get<int64_t>() + buffer["bytes"].get<int64_t>(), plan.arena_bytes);
      const int64_t persistent =
          buffer["memory"] == "host" ? plan.train.memory.persistent_host_bytes : plan.train.memory.persistent_bytes;
      EXPECT_EQ(buffer["persistent"], buffer["address"] < persistent) << buffer;
    }
  }
}

TEST(PlanJson, CandidatesSayWhyTheyWereNotTaken) {
  Job job = SmallDecoderJob(false);
  job.sharding.strategy = Strategy::kZero2;  // Has no NO_SYNC.
  job.sharding.accumulation = Accumulation::kAuto;
  const JobPlan plan = Plan(job);
  const Json json = Parsed(PlanJson(job, plan, PlanDetail::kBuffers));
  ASSERT_EQ(json["candidates"].size(), 3);
  int chosen = 0;
  for (const Json& candidate : json["candidates"]) {
    EXPECT_EQ(candidate["error"].is_null(), candidate["accumulation"] != "NO_SYNC") << candidate;
    EXPECT_EQ(candidate["arena_bytes"].is_null(), candidate["accumulation"] == "NO_SYNC") << candidate;
    chosen += candidate["chosen"].get<bool>();
    EXPECT_TRUE(!candidate["chosen"].get<bool>() || candidate["arena_bytes"] == plan.arena_bytes) << candidate;
  }
  EXPECT_EQ(chosen, 1);
}

TEST(PlanJson, ABudgetThatNobodySetIsNull) {
  Job job = SmallDecoderJob(false);
  job.memory.budget_bytes = 0;
  const Json json = Parsed(PlanJson(job, Plan(job), PlanDetail::kBuffers));
  EXPECT_TRUE(json["budget"]["bytes"].is_null());
  EXPECT_TRUE(json["budget"]["origin"].is_null());
}

}  // namespace
}  // namespace shale

// Tests the messages of verdicts, which are their JSON, and the JSON of a job that fits and of one that does not.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/plan.h"
#include "engine/api/plan_text.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/plan.pb.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

using Json = nlohmann::ordered_json;

Admission AdmitWith(const Job& job, int64_t budget_bytes) {
  const absl::StatusOr<Admission> admission = Admit(job, {.planning = [](const Job&, int64_t) { return MachineOf(); },
                                                          .device = job.runtime.device,
                                                          .budget_bytes = budget_bytes});
  EXPECT_TRUE(admission.ok()) << admission.status();
  return *admission;
}

proto::Plan MessageOf(const Admission& admission, PlanDetail detail) {
  proto::Plan message;
  EXPECT_TRUE(message.ParseFromString(PlanMessage(admission, detail)));
  return message;
}

// A small job of one rank, whose plan is easy to look through.
Job GoldenJob() {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 1;
  job.memory.budget_bytes = 0;
  job.sharding.ranks = 2;
  job.sharding.accumulation = Accumulation::kSharded;
  job.runtime.threads_per_rank = 1;
  return job;
}

void ExpectGolden(const std::string& name, const Admission& admission) {
  std::ifstream file("tests/engine/plan/report/golden/" + name);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string json = PlanJson(admission);
  EXPECT_EQ(json, golden) << "if the change is meant, write this to tests/engine/plan/report/golden/" << name;
}

TEST(PlanMessage, GoldenOfAJobThatFits) { ExpectGolden("fits.json", AdmitWith(GoldenJob(), 200'000)); }

TEST(PlanMessage, GoldenOfAJobThatDoesNotFit) { ExpectGolden("refused.json", AdmitWith(GoldenJob(), 57'000)); }

TEST(PlanMessage, GoldenOfAJobThatIsWrong) {
  Job job = GoldenJob();
  job.batch.micro_batch = 0;
  job.sharding.strategy = Strategy::kDdp;
  job.sharding.accumulation = Accumulation::kSharded;
  ExpectGolden("invalid.json", AdmitWith(job, kNoBudget));
}

// One form, not two: each key of the JSON is a field of the message, with the same value.
void ExpectSame(const Json& json, const google::protobuf::Message& message) {
  const auto& type = *message.GetDescriptor();
  const auto& values = *message.GetReflection();
  for (const auto& [key, value] : json.items()) {
    const auto* field = type.FindFieldByName(key);
    ASSERT_NE(field, nullptr) << key;
    if (field->is_map()) continue;
    if (field->is_repeated()) {
      EXPECT_EQ(value.size(), values.FieldSize(message, field)) << key;
    } else if (value.is_null()) {
      EXPECT_FALSE(values.HasField(message, field)) << key;
    } else if (value.is_object()) {
      ExpectSame(value, values.GetMessage(message, field));
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64) {
      EXPECT_EQ(value.get<int64_t>(), values.GetInt64(message, field)) << key;
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
      EXPECT_EQ(value.get<std::string>(), values.GetString(message, field)) << key;
    }
  }
}

TEST(PlanMessage, IsItsJson) {
  for (Job job : VariedJobs()) {
    job.name = "small";
    job.memory.budget_bytes = 0;
    for (int64_t budget : {kNoBudget, int64_t{50'000}}) {
      const Admission admission = AdmitWith(job, budget);
      for (PlanDetail detail : {PlanDetail::kSummary, PlanDetail::kBuffers, PlanDetail::kInstructions}) {
        const proto::Plan message = MessageOf(admission, detail);
        ExpectSame(Json::parse(PlanJson(admission, detail)), message);
        const bool fits = admission.verdict == Admission::Verdict::kFits;
        EXPECT_EQ(message.buffers_size() > 0, fits && detail >= PlanDetail::kBuffers);
        EXPECT_EQ(message.instructions_size() > 0, fits && detail == PlanDetail::kInstructions);
        EXPECT_EQ(message.has_refusal(), !fits) << admission.text;
        EXPECT_EQ(PlanMessage(admission, detail), PlanMessage(admission, detail)) << "maps have no order";
      }
    }
  }
}

TEST(PlanMessage, AFittingJobIsWhatItsPlanIs) {
  const Admission admission = AdmitWith(GoldenJob(), kNoBudget);
  ASSERT_TRUE(admission.resolved);
  const auto& [job, plan] = *admission.resolved;
  EXPECT_EQ(PlanMessage(job, plan), PlanMessage(admission));
  EXPECT_EQ(PlanJson(job, plan), PlanJson(admission));
}

}  // namespace
}  // namespace shale

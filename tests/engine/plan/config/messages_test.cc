// Tests the messages for specs that are not well-formed.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/api/job.h"
#include "engine/plan/config/errors.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

struct Case {
  std::string text;
  std::string message;
};

class Messages : public ::testing::TestWithParam<Case> {};

TEST_P(Messages, SayWhereWhatAndWhatIsAllowed) { EXPECT_EQ(ParseError(GetParam().text), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Names, Messages,
    ::testing::Values(
        Case{"sharding {\n  strategy: FULL_SHARDED\n}",
             "job.textproto:2:3: sharding.strategy: found \"FULL_SHARDED\"; allowed: DDP, ZERO1, ZERO2, FULL_SHARD; "
             "did you mean FULL_SHARD?"},
        Case{"model { decoder { norm: rms_norm } }",
             "job.textproto:1:19: model.decoder.norm: found \"rms_norm\"; allowed: RMS_NORM, LAYER_NORM; did you mean "
             "RMS_NORM?"},
        Case{"sharding { accumulation: ACCUMULATION_UNSPECIFIED }",
             "job.textproto:1:12: sharding.accumulation: found \"ACCUMULATION_UNSPECIFIED\"; allowed: AUTO, SHARDED, "
             "NO_SYNC, "
             "LAYERED"},
        Case{"precision { compute: 2 }",
             "job.textproto:1:13: precision.compute: found \"2\"; allowed: FP32, BF16, FP16"},
        Case{"\n batch { globel_batch: 3 }",
             "job.textproto:2:10: batch.globel_batch: no such field; allowed: global_batch, micro_batch, "
             "sequence_length; did you mean global_batch?"},
        Case{"checkpoint { learning_rate: 3 }",
             "job.textproto:1:14: checkpoint.learning_rate: no such field; allowed: " +
                 FieldNames(*proto::CheckpointSpec::descriptor()) + "; did you mean optimizer.learning_rate?"},
        Case{"bogus { a { b: [1, 2] } c: -1 } lr_schedule { shap: LINEAR }",
             "job.textproto:1:1: bogus: no such field; allowed: name, model, data, batch, sharding, precision, memory, "
             "activation_checkpointing, optimizer, lr_schedule, checkpoint, telemetry, runtime\n"
             "job.textproto:1:47: lr_schedule.shap: no such field; allowed: " +
                 FieldNames(*proto::LearningRateSpec::descriptor()) + "; did you mean shape?"}));

INSTANTIATE_TEST_SUITE_P(
    Values, Messages,
    ::testing::Values(
        Case{"batch { micro_batch: 1.5 }",
             "job.textproto:1:9: batch.micro_batch: found \"1.5\"; expected a whole number, 1 to 1048576"},
        Case{"batch { micro_batch: 99999999999999999999 }",
             "job.textproto:1:9: batch.micro_batch: found \"99999999999999999999\"; expected a whole number, 1 to "
             "1048576"},
        Case{"batch { micro_batch: 010 }",
             "job.textproto:1:9: batch.micro_batch: found \"010\"; expected a whole number, 1 to 1048576"},
        Case{"data { seed: -1 }",
             "job.textproto:1:8: data.seed: found \"-1\"; expected a whole number, 0 to 18446744073709551615"},
        Case{"optimizer { beta1: fast }",
             "job.textproto:1:13: optimizer.beta1: found \"fast\"; expected a number, 0 to 0.999999"},
        Case{"optimizer { beta1: \"0.9\" }",
             "job.textproto:1:13: optimizer.beta1: found \"\\\"0.9\\\"\"; expected a number, 0 to 0.999999"},
        Case{"runtime { synchronous: yes }",
             "job.textproto:1:11: runtime.synchronous: found \"yes\"; allowed: true, false"},
        Case{"name: shale", "job.textproto:1:1: name: found \"shale\"; expected text in quotes"},
        Case{"activation_checkpointing { recompute: [\"a\", b] }",
             "job.textproto:1:28: activation_checkpointing.recompute[1]: found \"b\"; expected text in quotes"},
        Case{"name: \"a\" \"b\"\nname: 'c'", "job.textproto:2:1: name: given twice; keep one"},
        Case{"model { mlp { } decoder { } }",
             "job.textproto:1:17: model.decoder: given beside another kind; keep one"}));

INSTANTIATE_TEST_SUITE_P(
    Syntax, Messages,
    ::testing::Values(
        Case{"batch {\n  micro_batch: 1\n", "job.textproto:3:1: batch: the text ends where \"}\" is missing"},
        Case{"batch { } }", "job.textproto:1:11: found \"}\"; expected a field name"},
        Case{"batch: 3", "job.textproto:1:8: found \"3\" after batch; expected \"{\""},
        Case{"name \"x\"", "job.textproto:1:6: found \"\\\"x\\\"\" after name; expected \":\""},
        Case{"name: }", "job.textproto:1:7: found \"}\" after name:; expected a value"},
        Case{"name: \"x", "job.textproto:1:9: Unexpected end of string."},
        Case{"batch { micro_batch: [1] }",
             "job.textproto:1:22: batch: found \"[\" after batch.micro_batch:; expected a value"},
        Case{"[type.googleapis.com/x] { }", "job.textproto:1:1: found \"[\"; expected a field name"},
        Case{"name: \"\xff\"", "job.textproto:1:8: found byte 0xff; wanted UTF-8 text without control characters"}));

TEST(Messages, ReportAllThatIsWrongAtOnce) {
  // Errors come in the order of the spec's fields.
  EXPECT_EQ(ParseError("batch {\n  micro_batch: 0\n  global_batch: 1\n}\ndata { path: \"a\" }\n"
                       "optimizer { beta1: nan }\n"),
            "job.textproto:2:3: batch.micro_batch: found 0; allowed: 1 to 1048576\n"
            "job.textproto:1:1: batch.sequence_length: missing, and there is no default; allowed: 1 to 16777216\n"
            "job.textproto:6:13: optimizer.beta1: found nan; allowed: 0 to 0.999999\n"
            "job.textproto: model: missing; give decoder { ... }, mlp { ... } or hf_folder\n"
            "job.textproto: lr_schedule.steps: missing; give steps, or epochs, as the length of the run");
}

// Calls use(type) for the message and for all messages inside of it.
template <typename Use>
void ForEachMessage(const google::protobuf::Descriptor& type, const Use& use) {
  use(type);
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->message_type() != nullptr) ForEachMessage(*type.field(i)->message_type(), use);
  }
}

// model.decoder.widht once got no suggestion.
TEST(Messages, FindTheFieldOfWhichTwoLettersChangedPlacesAtEveryDepth) {
  const google::protobuf::Descriptor& job = *proto::Job::descriptor();
  int tried = 0;
  ForEachMessage(job, [&](const google::protobuf::Descriptor& type) {
    for (int i = 0; i < type.field_count(); ++i) {
      const std::string& name = type.field(i)->name();
      for (size_t at = 1; at < name.size(); ++at) {
        std::string slip = name;
        std::swap(slip[at - 1], slip[at]);
        if (slip == name || type.FindFieldByName(slip) != nullptr) continue;
        ++tried;
        const std::string message = UnknownFieldMessage(job, type, slip);
        EXPECT_EQ(message.substr(message.rfind("; ") + 2), "did you mean " + name + "?") << type.full_name();
      }
    }
  });
  EXPECT_GT(tried, 1000);
}

TEST(Messages, AreGivenInPartsTooAndThenAllOfThem) {
  std::string text = "batch { micro_batch: 0 }\n";
  for (int i = 0; i < 50; ++i) text += "what" + std::to_string(i) + ": 1\n";
  std::vector<JobError> errors;
  const std::string message = ErrorOf(ParseForeignJob(text, "job.textproto", {}, &errors).status());
  ASSERT_EQ(errors.size(), 50);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(errors[i].source, "job.textproto");
    EXPECT_EQ(errors[i].path, "what" + std::to_string(i));
    EXPECT_EQ(errors[i].line, i + 2);
    EXPECT_EQ(errors[i].column, 1);
    const std::string line =
        "job.textproto:" + std::to_string(i + 2) + ":1: what" + std::to_string(i) + ": " + errors[i].message + "\n";
    EXPECT_NE(message.find(line), std::string::npos) << line;
  }
  EXPECT_TRUE(ParseForeignJob(kDecoderJob, "job", {}, &errors).ok());
  EXPECT_TRUE(errors.empty());
  // What is no job at all is one error without a field.
  EXPECT_FALSE(LoadJob("/nowhere/job", {}, ModelFrom::kJob, &errors).ok());
  ASSERT_EQ(errors.size(), 1);
  EXPECT_EQ(errors[0].source, "/nowhere/job");
  EXPECT_EQ(errors[0].path, "");
}

TEST(Messages, AreTwentyAtMost) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "what" + std::to_string(i) + ": 1\n";
  const std::string message = ParseError(text);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 20);
  EXPECT_EQ(message.substr(message.rfind('\n') + 1), "and 30 more errors");
}

TEST(Messages, NameTheFileThatCannotBeRead) {
  const absl::Status missing = LoadJob("/nowhere/job.textproto").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message().substr(0, 54), "/nowhere/job.textproto: cannot open the job file: No s");
  EXPECT_EQ(ErrorOf(LoadJob("/").status()), "/: is a folder; expected a job file, such as job.textproto");
}

TEST(Messages, PassCommentsSeparatorsAndAngleBrackets) {
  const std::string text =
      "# A comment\nmodel: < mlp { embedding: 8; hidden: 16, } >;\ndata { path: '/te' \"xt\" },"
      "batch { global_batch: 8 sequence_length: 4 } activation_checkpointing { recompute: [] } lr_schedule { epochs: "
      "1.5f }";
  const absl::StatusOr<Job> job = ParseJobText(text, "job.textproto");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(*job, *ParseJobText(kMlpJob, "job.textproto"));
}

}  // namespace
}  // namespace shale

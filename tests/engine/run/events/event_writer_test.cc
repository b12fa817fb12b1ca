#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tensorboard.pb.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMostBytes = int64_t{1} << 20;

// Returns a path that no other test uses. Nothing exists there yet.
std::string FreshPath(const std::string& name) {
  static int number = 0;
  return absl::StrCat(::testing::TempDir(), "/events_", getpid(), "_", ++number, "/", name);
}

std::string Contents(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMostBytes);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

void Write(EventWriter& writer, const std::vector<RunEvent>& events) {
  for (const RunEvent& event : events) ASSERT_TRUE(writer.Write(event).ok());
  ASSERT_TRUE(writer.Flush().ok());
}

StepReport Step(int64_t step, double loss) {
  return {.step = step, .tokens = 10 * step, .loss = loss, .learning_rate = 0.5, .tokens_per_second = 100};
}

TEST(JsonWriterTest, AppendsALineForEachEvent) {
  const std::string path = FreshPath("a/events.jsonl");
  for (int run = 0; run < 2; ++run) {
    auto writer = WriteJsonFile(path);
    ASSERT_TRUE(writer.ok()) << writer.status();
    Write(**writer, {{.unix_seconds = 1, .what = Warning{"one"}}, {.unix_seconds = 2, .what = Warning{"two"}}});
  }
  const std::string lines =
      "{\"event\": \"warning\", \"time\": 1, \"text\": \"one\"}\n{\"event\": \"warning\", \"time\": 2, \"text\": "
      "\"two\"}\n";
  EXPECT_EQ(Contents(path), lines + lines);
}

TEST(JsonWriterTest, WritesToADescriptorAndReportsItsErrors) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::unique_ptr<EventWriter> writer = WriteJsonTo(ends[1]);
  Write(*writer, {{.what = Finished{.step = 1, .total_steps = 2}}});
  char text[256];
  const ssize_t size = read(ends[0], text, sizeof(text));
  EXPECT_EQ(absl::string_view(text, size), "{\"event\": \"finished\", \"time\": 0, \"step\": 1, \"total_steps\": 2}\n");
  close(ends[1]);
  close(ends[0]);
  EXPECT_THAT(std::string(WriteJsonTo(-1)->Write({.what = Warning{}}).message()),
              HasSubstr("cannot write an event to file descriptor -1: Bad file descriptor"));
}

TEST(JsonWriterTest, AFileWhereAFolderShouldBeIsAnError) {
  const std::string path = FreshPath("file");
  ASSERT_TRUE(MakeFoldersOf(path).ok());
  ASSERT_TRUE(WriteFileDurably(path, "x").ok());
  for (const auto& status : {WriteJsonFile(path + "/a.jsonl").status(), WriteTensorBoard(path).status(),
                             WritePrometheus(path + "/a.prom").status()}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("cannot make folder ", path)));
  }
}

// Splits a TFRecord file, and checks its checksums: https://www.tensorflow.org/tutorials/load_data/tfrecord
std::vector<proto::tensorboard::Event> Records(absl::string_view bytes) {
  std::vector<proto::tensorboard::Event> records;
  const auto take = [&](size_t size) {
    EXPECT_GE(bytes.size(), size);
    const absl::string_view taken = bytes.substr(0, size);
    bytes.remove_prefix(taken.size());
    return taken;
  };
  const auto check = [&](absl::string_view checked) {
    uint32_t stored;
    std::memcpy(&stored, take(4).data(), 4);
    const uint32_t rotated = stored - 0xa282ead8u;
    EXPECT_EQ((rotated >> 17) | (rotated << 15), Crc32c(checked));
  };
  while (!bytes.empty() && !::testing::Test::HasFailure()) {
    const absl::string_view length = take(8);
    uint64_t size;
    std::memcpy(&size, length.data(), 8);
    check(length);
    const absl::string_view message = take(size);
    check(message);
    EXPECT_TRUE(records.emplace_back().ParseFromArray(message.data(), static_cast<int>(message.size())));
  }
  return records;
}

TEST(TensorBoardWriterTest, WritesRecordsThatBeginAtTheFirstStepOfTheRun) {
  const std::string folder = FreshPath("tensorboard");
  {
    auto writer = WriteTensorBoard(folder);
    ASSERT_TRUE(writer.ok()) << writer.status();
    StepReport with_metric = Step(6, 2.25);
    with_metric.metrics = {{"reward", 0.75}};
    Write(**writer, {{.what = PlanReady{}},
                     {.unix_seconds = 7, .what = Step(5, 2.5)},
                     {.unix_seconds = 8, .what = with_metric},
                     {.unix_seconds = 9, .what = EvaluationReport{.step = 6, .loss = 3, .tokens = 4}}});
  }
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  ASSERT_TRUE(names.ok());
  ASSERT_EQ(names->size(), 1u);
  EXPECT_TRUE(absl::StartsWith(names->front(), "events.out.tfevents.1")) << names->front();
  const auto records = Records(Contents(JoinPath(folder, names->front())));
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(records[0].file_version(), "brain.Event:2");
  EXPECT_EQ(records[1].session_log().status(), proto::tensorboard::SessionLog::START);
  EXPECT_EQ(records[1].step(), 5);
  EXPECT_EQ(records[2].wall_time(), 7);
  EXPECT_EQ(records[2].step(), 5);
  EXPECT_EQ(records[2].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(records[2].summary().value(0).simple_value(), 2.5f);
  EXPECT_EQ(records[3].step(), 6);
  EXPECT_EQ(records[3].summary().value(0).simple_value(), 2.25f);
  const auto& values = records[3].summary().value();
  EXPECT_EQ(values.rbegin()->tag(), "metrics/reward");
  EXPECT_EQ(values.rbegin()->simple_value(), 0.75f);
  EXPECT_EQ(records[4].summary().value(0).tag(), "evaluation/loss");
  EXPECT_EQ(records[4].summary().value(0).simple_value(), 3);
}

TEST(PrometheusWriterTest, KeepsTheNewestNumbers) {
  const std::string path = FreshPath("run.prom");
  auto writer = WritePrometheus(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  Write(**writer, {{.what = PlanReady{.name = "a\"b", .total_steps = 9}}, {.what = Step(1, 2.5)}});
  EXPECT_THAT(Contents(path), HasSubstr("# TYPE shale_loss gauge\nshale_loss{run=\"a\\\"b\"} 2.5\n"));
  EXPECT_THAT(Contents(path), Not(HasSubstr("evaluation_loss")));
  StepReport skipped = Step(2, 1.0 / 0.0);
  skipped.updated = false;
  skipped.metrics = {{"kl/mean", -0.5}, {"reward", 2}};
  Write(**writer, {{.what = skipped},
                   {.what = EvaluationReport{.step = 2, .loss = 1.25}},
                   {.what = CheckpointReport{.step = 2}},
                   {.what = CheckpointReport{.step = 3, .status = absl::InternalError("no")}},
                   {.what = Finished{}}});
  const std::string text = Contents(path);
  for (const char* line :
       {"loss{run=\"a\\\"b\"} +Inf\n", "steps{run=\"a\\\"b\"} 9\n", "step{run=\"a\\\"b\"} 2\n",
        "tokens_total{run=\"a\\\"b\"} 20\n", "skipped_steps_total{run=\"a\\\"b\"} 1\n",
        "evaluation_loss{run=\"a\\\"b\"} 1.25\n", "checkpoint_step{run=\"a\\\"b\"} 2\n",
        "warnings_total{run=\"a\\\"b\"} 1\n", "ended{run=\"a\\\"b\"} 1\n", "failed{run=\"a\\\"b\"} 0\n",
        "metric{run=\"a\\\"b\",name=\"kl/mean\"} -0.5\n", "metric{run=\"a\\\"b\",name=\"reward\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\nshale_", line)));
  }
}

}  // namespace
}  // namespace shale

#include "engine/files/io/json_lines.h"

#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using Mode = JsonLinesWriter::Mode;

std::string Contents(const std::string& path) { return ReadFile(path, 1 << 20).value(); }

TEST(JsonObjectTest, KeepsOrderAndValues) {
  JsonObject object;
  object.Add("step", 12).Add("tokens", int64_t{1} << 40).Add("loss", 0.1).Add("name", "a").Add("done", true);
  EXPECT_EQ(object.ToString(), R"({"step": 12, "tokens": 1099511627776, "loss": 0.1, "name": "a", "done": true})");
  EXPECT_EQ(JsonObject().ToString(), "{}");
}

TEST(JsonObjectTest, DoublesReadBackToTheBit) {
  for (const double value : {0.0, -0.0, 1.0, 1.0 / 3, 1e-300, 6.02e23, std::numeric_limits<double>::denorm_min(),
                             std::numeric_limits<double>::max(), double{0.1f}}) {
    const auto json = nlohmann::json::parse(JsonObject().Add("x", value).ToString(), nullptr, false);
    EXPECT_EQ(json.at("x").get<double>(), value) << json;
  }
}

TEST(JsonObjectTest, NonFiniteNumbersAreNull) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(JsonObject().Add("a", std::nan("")).Add("b", infinity).Add("c", -infinity).ToString(),
            R"({"a": null, "b": null, "c": null})");
}

TEST(JsonLinesWriterTest, ALineIsThereAsSoonAsItIsAppended) {
  const TempFolder folder;
  const std::string path = folder.Write("m.jsonl", "old\n");
  auto writer = JsonLinesWriter::Open(path, Mode::kReplace).value();
  EXPECT_EQ(Contents(path), "");
  ASSERT_TRUE(writer->Append(JsonObject().Add("step", 1)).ok());
  EXPECT_EQ(Contents(path), "{\"step\": 1}\n");
  ASSERT_TRUE(writer->Append(JsonObject().Add("step", 2)).ok());
  EXPECT_EQ(Contents(path), "{\"step\": 1}\n{\"step\": 2}\n");
}

TEST(JsonLinesWriterTest, ContinuesBehindTheLastWholeLine) {
  const TempFolder folder;
  const std::string long_line(10000, 'x');
  for (const auto& [before, kept] : {std::pair<std::string, std::string>{"", ""},
                                     {"a\nb\n", "a\nb\n"},
                                     {"a\nb", "a\n"},
                                     {"torn", ""},
                                     {"a\n" + long_line, "a\n"}}) {
    const std::string path = folder.Write("m.jsonl", before);
    auto writer = JsonLinesWriter::Open(path, Mode::kContinue).value();
    ASSERT_TRUE(writer->Append(JsonObject().Add("step", 1)).ok());
    EXPECT_EQ(Contents(path), kept + "{\"step\": 1}\n");
  }
}

TEST(JsonLinesWriterTest, SaysThatTheDiskIsFull) {
  auto writer = JsonLinesWriter::Open("/dev/full", Mode::kContinue).value();
  const absl::Status status = writer->Append(JsonObject().Add("step", 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cannot write /dev/full: No space left on device"));
}

TEST(JsonLinesWriterTest, ALineThatDoesNotFitLeavesNothingBehind) {
  const TempFolder folder;
  const std::string path = folder.Path("m.jsonl");
  auto writer = JsonLinesWriter::Open(path, Mode::kReplace).value();
  ASSERT_TRUE(writer->Append(JsonObject().Add("step", 1)).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit limit = {.rlim_cur = 20, .rlim_max = old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const absl::Status status = writer->Append(JsonObject().Add("step", 2));
  setrlimit(RLIMIT_FSIZE, &old_limit);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(Contents(path), "{\"step\": 1}\n");
  ASSERT_TRUE(writer->Append(JsonObject().Add("step", 3)).ok());
  EXPECT_EQ(Contents(path), "{\"step\": 1}\n{\"step\": 3}\n");
}

TEST(JsonLinesWriterTest, SaysThatAFolderIsMissing) {
  EXPECT_EQ(JsonLinesWriter::Open("/none/m.jsonl", Mode::kReplace).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shale

#include "tools/command_line.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string job;
  std::vector<std::string> set;
  int64_t tokens = 200;
  double temperature = 0.8;
  bool overwrite = false;
  bool dump_program = true;

  CommandLine Line() {
    CommandLine line("train", "Trains.");
    line.Text("job", "FILE", "The job.", &job).Required();
    line.List("set", "PATH=VALUE", "Overrides.", &set);
    line.Integer("tokens", "How many.", 1, 1000, &tokens);
    line.Number("temperature", "How wild.", 0, 10, &temperature);
    line.Switch("overwrite", "Replace.", &overwrite);
    line.Switch("dump_program", "Print.", &dump_program);
    return line;
  }
  std::string Error(std::vector<std::string> arguments) { return std::string(Line().Parse(arguments).message()); }
};

TEST(CommandLineTest, FlagsTakeBothSpellingsAndListsGrow) {
  Values v;
  const absl::Status status = v.Line().Parse({"--job", "a b", "--set=model.layers=2", "--set", "name=x", "--tokens=7",
                                              "--temperature=0", "--overwrite", "--no-dump-program"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(v.job, "a b");
  EXPECT_THAT(v.set, ElementsAre("model.layers=2", "name=x"));
  EXPECT_EQ(v.tokens, 7);
  EXPECT_EQ(v.temperature, 0);
  EXPECT_TRUE(v.overwrite);
  EXPECT_FALSE(v.dump_program);
}

TEST(CommandLineTest, AnOptionalValueIsNeverTheNextArgument) {
  std::string json;
  bool all = false;
  CommandLine line("plan", "Plans.");
  line.OptionalText("json", "FILE", "Prints.", "-", &json);
  line.Switch("all", "All.", &all);
  ASSERT_TRUE(line.Parse({"--json", "--all"}).ok());
  EXPECT_EQ(json, "-");
  EXPECT_TRUE(all);
  ASSERT_TRUE(line.Parse({"--json=plan.json"}).ok());
  EXPECT_EQ(json, "plan.json");
  EXPECT_THAT(std::string(line.Parse({"--json", "plan.json"}).message()), HasSubstr("unexpected \"plan.json\""));
  EXPECT_THAT(line.HelpText(), HasSubstr("--json[=FILE] "));
  // An empty value was once taken for a flag that is not there.
  EXPECT_EQ(line.Parse({"--json="}).message(), "--json: found \"\"; wanted FILE, or --json alone");
}

TEST(CommandLineTest, OnlyFreeTextMayBeEmpty) {
  std::string prompt = "The ", run;
  CommandLine line("generate", "Generates.");
  line.Text("prompt", "TEXT", "What to continue.", &prompt);
  line.Text("run", "FOLDER", "The run.", &run);
  ASSERT_TRUE(line.Parse({"--prompt=", "--run=x"}).ok());
  EXPECT_EQ(prompt, "");
  EXPECT_EQ(line.Parse({"--prompt=", "--run="}).message(), "--run: found \"\"; wanted FOLDER");
}

TEST(CommandLineTest, WhatIsNotGivenKeepsItsDefault) {
  Values v;
  ASSERT_TRUE(v.Line().Parse({"--job=x"}).ok());
  EXPECT_EQ(v.tokens, 200);
  EXPECT_EQ(v.temperature, 0.8);
  EXPECT_FALSE(v.overwrite);
  EXPECT_TRUE(v.dump_program);
}

TEST(CommandLineTest, UnknownFlagsAreRefusedWithTheNearestName) {
  Values v;
  EXPECT_EQ(v.Error({"--job=x", "--overwite"}), "unknown flag --overwite; did you mean --overwrite?");
  EXPECT_EQ(v.Error({"--job=x", "--zzzzzzzz=1"}), "unknown flag --zzzzzzzz; --help lists the flags");
  EXPECT_THAT(v.Error({"--job=x", "--no-tokens"}), HasSubstr("unknown flag --no-tokens"));
}

TEST(CommandLineTest, WrongValuesNameFlagValueAndRange) {
  Values v;
  EXPECT_EQ(v.Error({"--job=x", "--tokens=0"}), "--tokens: found \"0\"; wanted an integer in [1, 1000]");
  EXPECT_EQ(v.Error({"--job=x", "--tokens=1e3"}), "--tokens: found \"1e3\"; wanted an integer in [1, 1000]");
  EXPECT_EQ(v.Error({"--job=x", "--tokens=99999999999999999999"}),
            "--tokens: found \"99999999999999999999\"; wanted an integer in [1, 1000]");
  EXPECT_EQ(v.Error({"--job=x", "--temperature=nan"}), "--temperature: found \"nan\"; wanted a number in [0, 10]");
  EXPECT_EQ(v.Error({"--job=x", "--overwrite=yes"}), "--overwrite: found \"yes\"; wanted true or false");
  EXPECT_EQ(v.Error({"--job=x", "--tokens"}), "--tokens needs a value: --tokens=N");
  EXPECT_EQ(v.Error({"--job="}), "--job: found \"\"; wanted FILE");
  // The next flag is not its value.
  EXPECT_EQ(v.Error({"--tokens", "--job", "x"}), "--tokens needs a value: --tokens=N");
}

TEST(CommandLineTest, EverythingThatIsWrongIsReportedAtOnce) {
  Values v;
  EXPECT_EQ(v.Error({"job.textproto", "--tokens=-1", "-x"}),
            "unexpected \"job.textproto\"; flags are written --name=value\n"
            "--tokens: found \"-1\"; wanted an integer in [1, 1000]\n"
            "unexpected \"-x\"; flags are written --name=value\n"
            "--job=FILE is required");
}

TEST(CommandLineTest, HelpNamesEveryFlagItsDefaultAndWins) {
  Values v;
  CommandLine line = v.Line();
  line.Footer("Exit codes: 0.");
  ASSERT_TRUE(line.Parse({"--nonsense", "-h"}).ok());
  EXPECT_TRUE(line.help_wanted());
  const std::string help = line.HelpText();
  EXPECT_THAT(help, HasSubstr("usage: train --job=FILE [flags]\n"));
  EXPECT_THAT(help, HasSubstr("  --set=PATH=VALUE            Overrides. May be repeated.\n"));
  EXPECT_THAT(help, HasSubstr("  --tokens=N                  How many. Default: 200.\n"));
  EXPECT_THAT(help, HasSubstr("  --overwrite                 Replace.\n"));
  EXPECT_THAT(help, HasSubstr("\nExit codes: 0.\n"));
}

TEST(CommandLineTest, HelpExplainsATopic) {
  const auto explain = [](absl::string_view topic) -> absl::StatusOr<std::string> {
    if (topic != "tea") return absl::InvalidArgumentError("no such topic");
    return std::string("Leaves in water.\n");
  };
  Values v;
  CommandLine topic = v.Line(), flags = v.Line(), wrong = v.Line();
  ASSERT_TRUE(topic.Topics("Explains drinks.", explain).Parse({"--help=tea"}).ok());
  EXPECT_EQ(topic.HelpText(), "Leaves in water.\n");
  ASSERT_TRUE(flags.Topics("Explains drinks.", explain).Parse({"--help"}).ok());
  EXPECT_THAT(flags.HelpText(), HasSubstr("  --help=TOPIC                Explains drinks.\n"));
  EXPECT_EQ(wrong.Topics("Explains drinks.", explain).Parse({"--help=ink"}).message(), "--help=no such topic");
}

}  // namespace
}  // namespace shale

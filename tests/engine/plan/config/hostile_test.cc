// Tests specs that an attacker made or a disk damaged.
#include <ctime>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/strings/utf8.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(Hostile, DeepNestingIsRefusedWithoutAStackFrameForEach) {
  constexpr int kDepth = 10000;
  for (const std::string open : {"a {", "a: [", "a <", "model { decoder { rope_scaling { a {", "model {", "model <"}) {
    EXPECT_NE(ParseError(Repeat(open, kDepth)), "") << open;
    EXPECT_NE(ParseError(Repeat(open, kDepth) + Repeat("}", kDepth)), "") << open;
  }
  EXPECT_NE(SetError({"model=" + Repeat("{ a ", kDepth)}), "");
  EXPECT_NE(SetError({Repeat("model.", kDepth) + "=1"}), "");
}

TEST(Hostile, DeepNestingInBinaryIsRefused) {
  // Unknown field 100 as a group in a group in a group: tags 0xA3 0x06.
  EXPECT_NE(ErrorOf(ParseJobBinary(Repeat("\xa3\x06", 10000), "job.pb").status()), "");
}

TEST(Hostile, MegabytesAreRefused) {
  const std::string comment = "#" + std::string(2 << 20, 'x');
  EXPECT_EQ(ParseError(comment),
            "job.textproto: more than 1 MiB; a job spec is a few hundred bytes, is this the right file?");
  EXPECT_NE(ErrorOf(ParseJobBinary(comment, "job.pb").status()).find("more than 1 MiB"), std::string::npos);
  const std::string path = ::testing::TempDir() + "/big.textproto";
  std::ofstream(path) << comment;
  EXPECT_NE(ErrorOf(LoadJob(path).status()).find("more than 1 MiB"), std::string::npos);
  // Exactly 1 MiB passes.
  EXPECT_EQ(ParseError(kDecoderJob + comment.substr(0, (1 << 20) - sizeof(kDecoderJob) + 1)), "");
}

TEST(Hostile, MegabytesOfARecordedJobAreRefused) {
  // A manifest may hold 255 MiB.
  EXPECT_EQ(ErrorOf(ParseRecordedJob(std::string(2 << 20, '\n'), "the job").status()),
            "the job: more than 1 MiB; a job spec is a few hundred bytes, is this the right file?");
}

// Its folder could be a pipe that never ends, and a message about it could show what it holds.
TEST(Hostile, TheFilesOfAForeignJobAreNotOpened) {
  const std::string with_model = kDecoderJob;
  const std::string text = "model { hf_folder: \"/dev/stdin\" }" + with_model.substr(with_model.find("data"));
  EXPECT_EQ(ErrorOf(ParseForeignJob(text, "job").status()),
            "job:1:9: model.hf_folder: only the files of this folder describe the model, and they are not opened here; "
            "give model.decoder as well");
  proto::Job spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kDecoderJob, &spec));
  spec.mutable_model()->set_hf_folder("/dev/stdin");
  EXPECT_EQ(ErrorOf(ParseForeignJob(spec.SerializeAsString(), "job").status()), "") << "it gives the model as well";
}

TEST(Hostile, ManyErrorsStayAShortMessage) {
  EXPECT_LT(ParseError(Repeat("batch { micro_batch: 0 } ", 40000)).size(), 10000);
  EXPECT_LT(ParseError("name: " + std::string(1000000, 'x')).size(), 1000);
  EXPECT_LT(ParseError(std::string(1000000, 'x') + ": 1").size(), 1000);
}

// Regression: for each group the rules copied all groups, which took minutes.
TEST(Hostile, ManyGroupsOfTheOptimizerTakeNoLongerEach) {
  constexpr int kGroups = 20000;
  const auto with = [](const std::string& group) {
    return absl::StrCat(kDecoderJob, " optimizer {", Repeat(group, kGroups), "}");
  };
  const std::clock_t begin = std::clock();
  EXPECT_NE(ParseError(with(" groups {}")).find("optimizer.groups[0]: names no parameters"), std::string::npos);
  EXPECT_EQ(ParseError(with(" groups { parameters: \"*\" beta1: 0.5 }")), "");
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10);
}

TEST(Hostile, StringsAreOneLineOfText) {
  for (const char* bad : {"data { path: \"a\\000b\" }", "data { path: \"\\xff\" }", "data { path: \"a\\nb\" }",
                          "data { path: \"\\xed\\xa0\\x80\" }", "activation_checkpointing { recompute: \"\\x7f\" }"}) {
    EXPECT_NE(ParseError(bad).find("allowed: one line of UTF-8 text"), std::string::npos) << ParseError(bad);
  }
}

// Regression: a run in a folder whose name has a tab could be trained, but its job, with the absolute path, was refused
// by the other tools.
TEST(Hostile, PathsMayHaveTabs) {
  const std::string job =
      "model { decoder { width: 8 layers: 1 heads: 1 } } data { path: \"/a\\tb\" tokenizer: \"/c\\td\" } "
      "batch { global_batch: 1 sequence_length: 4 } lr_schedule { steps: 1 } telemetry { run_folder: \"e\\tf\" }";
  const absl::StatusOr<Job> parsed = ParseJobText(job, "g\th/job.textproto");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->data.path, "/a\tb");
  const absl::StatusOr<Job> again = ParseRecordedJob(ResolvedJobText(*parsed), "job");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->telemetry.run_folder, "e\tf");
  EXPECT_TRUE(ValidateJob(*parsed).ok());
}

TEST(Hostile, MessagesAreTextWhateverTheSpecHolds) {
  // Regression: fuzzing found messages that were not text. They came from a value cut inside a character, from bytes of
  // an override and of a list's element, and from a path with control characters that was looked up before it was
  // refused.
  std::string euros;
  for (int i = 0; i < 40; ++i) euros += "\u20AC";
  const std::string binary_path = std::string("\x12\x06\x1a\x04/a\x1b[", 8);
  for (const std::string& message :
       {ParseError("name: \"a" + euros + "\""), ParseError("name: \"" + euros + "\""), SetError({"name=a\xff"}),
        SetError({"a\xff.b=1"}), SetError({"activation_checkpointing.recompute=[a, \xcd]"}),
        SetError({"name=\"\\377\""}), ErrorOf(ParseJobBinary(binary_path, "job.pb").status())}) {
    EXPECT_NE(message, "");
    EXPECT_EQ(FindNonText(message), absl::string_view::npos) << message;
  }
  EXPECT_EQ(SetError({"name=a\xff"}), "--set: found \"name=a\\377\"; expected UTF-8 text without control characters");
}

TEST(Hostile, BinaryEnumNumbersAndUnknownFieldsAreRefused) {
  proto::Job spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kDecoderJob, &spec));
  spec.mutable_sharding()->set_strategy(static_cast<proto::ShardingSpec::Strategy>(77));
  EXPECT_EQ(ErrorOf(ParseJobBinary(spec.SerializeAsString(), "job.pb").status()),
            "job.pb: sharding.strategy: found \"77\"; allowed: DDP, ZERO1, ZERO2, FULL_SHARD");
  spec.clear_sharding();
  spec.mutable_batch()->GetReflection()->MutableUnknownFields(spec.mutable_batch())->AddVarint(99, 1);
  EXPECT_EQ(ErrorOf(ParseJobBinary(spec.SerializeAsString(), "job.pb").status()),
            "job.pb: batch: holds field number 99, which BatchSpec does not have; was it written by another version?");
}

TEST(Hostile, TheFormOfAFileIsFoundByItsNameOrBytes) {
  proto::Job spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kDecoderJob, &spec));
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/a.job") << kDecoderJob;
  std::ofstream(folder + "/b.job") << spec.SerializeAsString();
  std::ofstream(folder + "/c.binpb") << spec.SerializeAsString();
  std::ofstream(folder + "/d.textproto") << spec.SerializeAsString();
  std::ofstream(folder + "/e.job") << "\x01\x02 neither";
  for (const char* good : {"/a.job", "/b.job", "/c.binpb"}) {
    const absl::StatusOr<Job> job = LoadJob(folder + good);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(*job, *LoadJob(folder + "/a.job"));
  }
  EXPECT_NE(ErrorOf(LoadJob(folder + "/d.textproto").status()).find("wanted UTF-8 text"), std::string::npos);
  EXPECT_NE(ErrorOf(LoadJob(folder + "/e.job").status()).find("neither textproto nor a binary job"), std::string::npos);
}

// Damages a spec at one to four places: changes, removes, inserts or swaps bytes.
std::string Mutate(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
    const size_t at = below(text.size());
    switch (below(5)) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, 1 + below(8)); break;
      case 2: text.insert(at, text.substr(below(text.size()), below(40))); break;
      case 3: text[at] = "{}<>[]:;,-#\"'\\0123456789eE.\n"[below(28)]; break;
      default: std::swap(text[at], text[below(text.size())]); break;
    }
  }
  return text;
}

TEST(Hostile, ADamagedSpecIsReadOrRefused) {
  std::mt19937 random(20240607);
  proto::Job spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kFullJob, &spec));
  const std::string binary = spec.SerializeAsString();
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const absl::Status text = ParseJobText(Mutate(kFullJob, random), "job.textproto").status();
    const absl::Status bytes = ParseJobBinary(Mutate(binary, random), "job.pb").status();
    for (const absl::Status& status : {text, bytes}) {
      if (status.ok()) continue;
      ++refused;
      ASSERT_TRUE(absl::IsInvalidArgument(status));
      ASSERT_EQ(status.message().substr(0, 4), "job.") << status;
      // The check before the protobuf parser finds every error that the parser would find, so the parser's messages
      // never show.
      ASSERT_EQ(status.message().find(": line "), absl::string_view::npos) << status;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shale

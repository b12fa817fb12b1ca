#include "engine/files/checkpoint/manifest.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/framing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.pb.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

Manifest ValidManifest() {
  Manifest m{.step = 12,
             .tokens = 34567,
             .samples = 48,
             .update_count = 11,
             .previous_norm = 0.1,
             .loss_scale = {65536, 7, 1},
             .seed = 0xfedcba9876543210,
             .job = "name: \"caf\xc3\xa9\"\n",
             .data = {.samples_per_epoch = 7,
                      .sequence_length = 96,
                      .shuffled = true,
                      .seed = ~uint64_t{0},
                      .tokenizer = "bytes",
                      .begin = 20,
                      .sources = {{"a", 1, ~uint64_t{0}, 2}, {"caf\xc3\xa9.jsonl", 3, 4, 0}}},
             .ranks = 2,
             .strategy = "ZERO2",
             .accumulation = "SHARDED",
             .values = SavedValues::kSplit,
             .parameters = {{"w", {3, 5}}, {"scalar", {}}, {"long", {kMaxInt64 / 8}}}};
  m.files = {{ShardFileName(0, 2), kCheckpointChunkBytes, {0xffffffff}},
             {ShardFileName(1, 2), kCheckpointChunkBytes + 1, {0, 0x12345678}}};
  m.evaluations = {
      .data = "texts", .last_step = 12, .last_loss = 2.75, .best_step = 8, .best_loss = -0.125, .since_best = 1};
  return m;
}

std::string ManifestRefusal(absl::string_view bytes) {
  const absl::Status status = ParseManifest(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_LT(status.message().size(), 2000);
  return std::string(status.message());
}

// Returns the refusal of a manifest that `lie` changed. Its frame and checksum are right.
std::string RefusalOfManifest(const std::function<void(Manifest&)>& lie) {
  Manifest m = ValidManifest();
  lie(m);
  return ManifestRefusal(SerializeManifest(m));
}

std::string RefusalOfProto(const std::function<void(proto::CheckpointManifest&)>& lie) {
  proto::CheckpointManifest m;
  const std::string bytes = SerializeManifest(ValidManifest());
  EXPECT_TRUE(m.ParseFromString(bytes.substr(kFrameHeadBytes)));
  lie(m);
  return ManifestRefusal(Frame("SHALEMAN", 1, m.SerializeAsString()));
}

TEST(ManifestTest, WhatIsWrittenIsRead) {
  for (SavedValues values : {SavedValues::kFloat32, SavedValues::kSplit}) {
    Manifest m = ValidManifest();
    m.values = values;
    const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, m);
  }
}

TEST(ManifestTest, FilesAreNamedByRank) {
  EXPECT_EQ(ShardFileName(3, 8), "rank-00003-of-00008.shard");
  EXPECT_EQ(ShardFileName(123456, 1000000), "rank-123456-of-1000000.shard");
}

TEST(ManifestTest, EveryTruncationIsRefused) {
  const std::string bytes = SerializeManifest(ValidManifest());
  for (size_t size = 0; size < bytes.size(); ++size) ManifestRefusal(absl::string_view(bytes).substr(0, size));
  EXPECT_THAT(ManifestRefusal(bytes + '\0'), HasSubstr("1 bytes follow its end"));
}

TEST(ManifestTest, EveryFlippedBitIsRefused) {
  std::string bytes = SerializeManifest(ValidManifest());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_FALSE(ManifestRefusal(bytes).empty());
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

TEST(ManifestTest, AnotherVersionIsToldFromDamage) {
  std::string bytes = Frame("SHALEMAN", 2, "whatever");
  const absl::Status status = ParseManifest(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
  bytes = SerializeManifest(ValidManifest());
  bytes[8] ^= 2;
  EXPECT_THAT(ManifestRefusal(bytes), HasSubstr("damaged"));
}

TEST(ManifestTest, WhatIsNoManifestIsRefused) {
  EXPECT_THAT(ManifestRefusal(Frame("SHALESHD", 1, "")), HasSubstr("does not begin with \"SHALEMAN\""));
  EXPECT_THAT(ManifestRefusal(Frame("SHALEMAN", 1, "\xff\xff")), HasSubstr("malformed"));
  EXPECT_THAT(ManifestRefusal(Frame("SHALEMAN", 1, "")), HasSubstr("its values are saved as \"\""));
  std::string claim = SerializeManifest(ValidManifest());
  for (int i = 16; i < 24; ++i) claim[i] = '\xff';
  EXPECT_THAT(ManifestRefusal(claim),
              HasSubstr("it claims a message of 18446744073709551615 bytes; at most 268435456"));
}

TEST(ManifestTest, WhatANewerProgramAddedIsRefusedAtAnyDepth) {
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(1000, 1);
  };
  using M = proto::CheckpointManifest;
  for (const std::function<void(M&)>& lie : {std::function<void(M&)>([&](M& m) { add(&m); }),
                                             {[&](M& m) { add(m.mutable_data()); }},
                                             {[&](M& m) { add(m.mutable_layout()); }},
                                             {[&](M& m) { add(m.mutable_parameters(1)); }},
                                             {[&](M& m) { add(m.mutable_files(0)); }}}) {
    EXPECT_THAT(RefusalOfProto(lie), HasSubstr("written by a newer one"));
  }
}

// Returns a manifest of `count` empty fields with tag `tag` and a right checksum.
std::string Bomb(const std::string& tag, int count) {
  std::string message;
  for (int i = 0; i < count; ++i) message.append(tag).push_back('\0');
  return Frame("SHALEMAN", 1, message);
}

// Parsing 100 MiB of empty submessages once took 6 GB, and aborted the program where there was less.
TEST(ManifestTest, MoreOfAnythingThanAJobHasIsRefusedBeforeItIsBuilt) {
  EXPECT_THAT(ManifestRefusal(Bomb("\x52", kMaxSavedParameters + 1)), HasSubstr("has more than 262144 parameters"));
  EXPECT_THAT(ManifestRefusal(Bomb("\x5a", kMaxSavedFiles + 1)), HasSubstr("has more than 1048576 files"));
  EXPECT_THAT(ManifestRefusal(Bomb("\x42", 2)), HasSubstr("malformed"));  // The field `data` twice.
  EXPECT_THAT(ManifestRefusal(Bomb("\xa2\x06", 1 << 20)), HasSubstr("written by a newer one"));
  for (const std::string& shape :
       {"\x12\x42" + std::string(66, 1),
        std::string("\x12\x01\x01\x12\x42") + std::string(66, 1)}) {  // Packed in one piece, and in two.
    const std::string parameter = absl::StrCat("\x52", std::string(1, static_cast<char>(shape.size())), shape);
    EXPECT_THAT(ManifestRefusal(Frame("SHALEMAN", 1, parameter)),
                HasSubstr("more than 64 dimensions in one parameter"));
  }
  std::string unpacked;
  for (int i = 0; i < 60; ++i) unpacked.append("\x10\x01", 2);
  unpacked += "\x12\x05\x01\x01\x01\x01\x01";
  EXPECT_THAT(ManifestRefusal(Frame("SHALEMAN", 1, absl::StrCat("\x52", "\x7f", unpacked))),
              HasSubstr("more than 64 dimensions in one parameter"));
}

TEST(ManifestTest, WhatNoWriterWritesIsMalformed) {
  for (const std::string& message :
       {std::string("\x00\x00", 2), std::string("\x0b\x0c"), std::string("\x09\x01\x02\x03\x04\x05\x06\x07\x08"),
        std::string("\x52\x05\x0a"), std::string("\x52"), std::string("\x0a\x01\x01"),
        std::string("\x88\x80\x80\x80\x80\x00\x01", 7), std::string("\x88\x80\x80\x80\x10\x01"),
        std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), std::string("\x52\xff\xff\xff\xff\x0f"),
        std::string("\x08\x01\x08\x01")}) {
    EXPECT_THAT(ManifestRefusal(Frame("SHALEMAN", 1, message)), HasSubstr("malformed")) << message;
  }
}

// A job of 405B parameters on 16,384 ranks stays far below the limits. A manifest exactly at the limit of parameters
// passes.
TEST(ManifestTest, TheLargestJobsPass) {
  Manifest m = ValidManifest();
  m.parameters.clear();
  for (int i = 0; i < 1137; ++i)
    m.parameters.push_back({absl::StrCat("block", i / 9, ".weight", i % 9), {16384, 21760}});
  m.ranks = 16384;
  m.files.clear();
  const int64_t bytes = int64_t{405'000'000'000} * 12 / m.ranks;
  for (int i = 0; i < m.ranks; ++i) {
    m.files.push_back(
        {ShardFileName(i, m.ranks), bytes, std::vector<uint32_t>((bytes - 1) / kCheckpointChunkBytes + 1, 0xdeadbeef)});
  }
  const std::string serialized = SerializeManifest(m);
  EXPECT_LT(serialized.size(), 6'000'000);
  EXPECT_TRUE(ParseManifest(serialized).value() == m);

  m = ValidManifest();
  for (int i = m.parameters.size(); i < kMaxSavedParameters; ++i) m.parameters.push_back({absl::StrCat("p", i), {3}});
  const absl::Status status = ParseManifest(SerializeManifest(m)).status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ManifestTest, AJobThatIsNotTheOneOfTheDigestIsRefused) {
  EXPECT_THAT(RefusalOfProto([](proto::CheckpointManifest& m) { m.set_job("another"); }), HasSubstr("digest"));
  // Text that is not UTF-8, with a right checksum.
  Manifest m = ValidManifest();
  m.job = "\xff\xfe";
  EXPECT_THAT(ManifestRefusal(SerializeManifest(m)), HasSubstr("malformed"));
}

TEST(ManifestTest, CountsThatCannotBeAreRefused) {
  for (int64_t bad : {int64_t{-1}, -kMaxInt64 - 1}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.step = bad; }),
                HasSubstr("contradict each other or are negative"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.tokens = bad; }),
                HasSubstr("contradict each other or are negative"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.samples = bad; }),
                HasSubstr("contradict each other or are negative"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.update_count = bad; }),
                HasSubstr("contradict each other or are negative"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.data.samples_per_epoch = bad; }), HasSubstr("its data has"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.data.sequence_length = bad; }), HasSubstr("its data has"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.files[0].size_bytes = bad; }), HasSubstr("has a size of"));
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.update_count = m.step + 1; }),
              HasSubstr("contradict each other or are negative"));
  for (int64_t bad : {int64_t{-1}, int64_t{49}}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.data.begin = bad; }),
                HasSubstr(absl::StrCat("its data begins after ", bad, " of 48 samples")));
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.data.sources[1].tokens = -1; }),
              HasSubstr("a source of its data has -1 tokens"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.data.samples_per_epoch = 0; }),
              HasSubstr("its data has 0 samples"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.data.sequence_length = 0; }), HasSubstr("samples of 0 tokens"));
}

TEST(ManifestTest, NormsThatCannotBeAreRefused) {
  for (double bad : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.previous_norm = bad; }), HasSubstr("its norm of a gradient is"));
  }
}

TEST(ManifestTest, LossScalesThatCannotBeAreRefused) {
  for (const SavedLossScale& bad : {SavedLossScale{-1, 0, 0}, SavedLossScale{std::nan(""), 0, 0},
                                    SavedLossScale{1, -1, 0}, SavedLossScale{1, 0, kMaxInt64}}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.loss_scale = bad; }), HasSubstr("its loss scale is"));
  }
}

// A position near the largest int64 was once accepted, and the first steps after it overflowed and ended the program.
TEST(ManifestTest, EvaluationsThatCannotBeAreRefused) {
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.evaluations.last_step = 13; }),
              HasSubstr("contradicts its step 12"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.evaluations.best_step = 13; }),
              HasSubstr("contradicts its step 12"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.evaluations.since_best = -1; }),
              HasSubstr("contradicts its step 12"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.evaluations.best_loss = std::nan(""); }), HasSubstr("loss"));
  Manifest m = ValidManifest();
  EXPECT_EQ(m.evaluation_loss(), 2.75);
  m.evaluations.last_step = 11;
  EXPECT_EQ(m.evaluation_loss(), std::nullopt);
}

TEST(ManifestTest, CountsThatNoRunReachesAreRefused) {
  constexpr int64_t kMaxCount = int64_t{1} << 60;
  Manifest m = ValidManifest();
  m.step = m.tokens = m.samples = m.update_count = kMaxCount;
  EXPECT_TRUE(ParseManifest(SerializeManifest(m)).ok());
  for (int64_t bad : {kMaxCount + 1, kMaxInt64}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.step = bad; }), HasSubstr(absl::StrCat("its step, ", bad)));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.step = m.update_count = bad; }),
                HasSubstr("which no run reaches"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.tokens = bad; }), HasSubstr("its number of tokens"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.samples = bad; }), HasSubstr("its number of samples"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.data.samples_per_epoch = bad; }),
                HasSubstr("its samples per epoch"));
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.data.sequence_length = bad; }),
                HasSubstr("its sequence length"));
  }
}

TEST(ManifestTest, RanksWithoutFilesAreRefused) {
  for (int64_t ranks : {int64_t{0}, int64_t{-1}, int64_t{1}, int64_t{3}, kMaxInt64}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.ranks = ranks; }),
                HasSubstr(absl::StrCat("2 files for ", ranks, " ranks")));
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.ranks = 0, m.files.clear(); }), HasSubstr("0 files for 0 ranks"));
}

TEST(ManifestTest, FilesOfOtherNamesAreRefused) {
  for (const char* name :
       {"", "../rank-00000-of-00002.shard", "/etc/passwd", "rank-00001-of-00002.shard", "rank-00000-of-00003.shard",
        "rank-0-of-2.shard", "a/rank-00000-of-00002.shard", "\x1b[2J"}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.files[0].name = name; }),
                AllOf(HasSubstr("expected rank-00000-of-00002.shard"), ::testing::Not(HasSubstr("\x1b"))));
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[0].name = std::string(1 << 20, 'x'); }),
              HasSubstr("expected"));
}

TEST(ManifestTest, AnotherNumberOfChecksumsThanChunksIsRefused) {
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[0].chunk_crcs.push_back(1); }), HasSubstr("has 2 checksums"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[1].chunk_crcs.pop_back(); }), HasSubstr("have 2 chunks"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[0].chunk_crcs.clear(); }), HasSubstr("has 0 checksums"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[0].size_bytes += 1; }), HasSubstr("have 2 chunks"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[1].size_bytes -= 1; }), HasSubstr("have 1 chunks"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.files[0].size_bytes = kMaxInt64; }), HasSubstr("has 1 checksums"));
}

TEST(ManifestTest, ShapesThatCannotBeCountedAreRefused) {
  using Shape = std::vector<int64_t>;
  for (const Shape& shape : {Shape{0}, Shape{-1}, Shape{4, 0}, Shape{kMaxInt64}, Shape{kMaxInt64 / 8 + 1},
                             Shape{int64_t{1} << 31, int64_t{1} << 31}, Shape{-1, -1}, Shape(61, 2),
                             Shape{int64_t{1} << 62, 4}, Shape{1, 1, -kMaxInt64 - 1}}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.parameters[0].shape = shape; }),
                HasSubstr("parameter w has a dimension of"));
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters[0].shape.assign(65, 1); }),
              HasSubstr("more than 64 dimensions"));
  Manifest m = ValidManifest();
  m.parameters[0].shape.assign(64, 1);
  EXPECT_TRUE(ParseManifest(SerializeManifest(m)).ok());
}

TEST(ManifestTest, ParametersWithoutAUsableNameAreRefused) {
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters.clear(); }), HasSubstr("no parameters"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters[1].name = "w"; }),
              HasSubstr("parameter w is in it twice"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters[1].name = "\xff"; }), HasSubstr("malformed"));
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string("\x1b[31m"), std::string("a\0b", 3),
                                  std::string(1001, 'n'), std::string(1 << 20, 'n')}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { m.parameters[1].name = name; }),
                HasSubstr("a name has 1 to 1,000 printable"));
  }
}

TEST(ManifestTest, ValuesInAnotherFormAreRefused) {
  EXPECT_THAT(RefusalOfProto([](proto::CheckpointManifest& m) { m.mutable_layout()->set_values("FP64"); }),
              HasSubstr("saved as \"FP64\"; known are FP32, SPLIT and BF16"));
  EXPECT_THAT(RefusalOfProto([](proto::CheckpointManifest& m) { m.mutable_layout()->clear_values(); }),
              HasSubstr("saved as \"\""));
}

TEST(ManifestTest, TheStatesOfAnOptimizerAreRecorded) {
  Manifest m = ValidManifest();
  EXPECT_EQ(m.states, AdamWStates());
  proto::CheckpointManifest adamw;
  ASSERT_TRUE(adamw.ParseFromString(SerializeManifest(m).substr(kFrameHeadBytes)));
  EXPECT_FALSE(adamw.has_states()) << "a manifest without states is AdamW's";
  for (const std::vector<SavedState>& states :
       {std::vector<SavedState>{},
        {{"momentum"}},
        {{.name = "r", .extent = SavedExtent::kRows}, {.name = "c", .extent = SavedExtent::kColumns}},
        {{"m", DType::kUInt8}, {"m_scale", DType::kFloat32, 256}}}) {
    m.states = states;
    const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, m);
  }
}

TEST(ManifestTest, AParameterMayHaveSomeOfTheStates) {
  Manifest m = ValidManifest();
  m.states = {{"m"}, {"v"}, {"m", DType::kUInt8}, {"m_scale", DType::kFloat32, 256}};
  const auto set = [](Manifest& manifest, const std::vector<std::vector<int64_t>>& states) {
    for (size_t i = 0; i < states.size(); ++i) manifest.parameters[i].states = states[i];
  };
  set(m, {{0, 1}, {2, 3}, {}});
  const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, m);
  EXPECT_TRUE(m.Has(StatePart(0), m.parameters[0]));
  EXPECT_FALSE(m.Has(StatePart(0), m.parameters[1]));
  EXPECT_FALSE(m.Has(StatePart(0), m.parameters[2]));
  EXPECT_EQ(m.StatesOf(m.parameters[1]), (std::vector<SavedState>{m.states[2], m.states[3]}));
  const auto refusal = [&](const std::vector<std::vector<int64_t>>& states) {
    return RefusalOfManifest([&](Manifest& lie) {
      lie.states = m.states;
      set(lie, states);
    });
  };
  EXPECT_EQ(refusal({{0, 2}, {}, {}}), "state \"m\" of parameter w is in it twice");
  EXPECT_EQ(refusal({{0, 4}, {}, {}}), "parameter w has state 4 after state 0 of 4");
  EXPECT_EQ(refusal({{1, 1}, {}, {}}), "parameter w has state 1 after state 1 of 4");
  EXPECT_EQ(refusal({{0}, {0}}), "state \"m\" of parameter long is in it twice");
}

TEST(ManifestTest, FrozenParametersHaveAFormOfTheirOwnAndNoStates) {
  Manifest m = ValidManifest();
  m.parameters[1].frozen = true;
  for (const SavedValues frozen : {SavedValues::kFloat32, SavedValues::kBFloat16}) {
    m.frozen_values = frozen;
    const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, m);
    std::string frozen_parts, parts;
    for (const PartSpec& part : m.parts()) {
      if (m.Has(part.part, m.parameters[1])) frozen_parts += part.name + ";";
      if (m.Has(part.part, m.parameters[0])) parts += part.name + ";";
    }
    EXPECT_EQ(frozen_parts, frozen == SavedValues::kFloat32 ? "value;" : "high bits;");
    EXPECT_EQ(parts, "m;v;high bits;low bits;");
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.frozen_values = SavedValues::kSplit; }),
              HasSubstr("which is for masters"));
}

TEST(ManifestTest, ParametersIn4BitsHavePartsOfTheirOwn) {
  Manifest m = ValidManifest();
  m.parameters[1].frozen = m.parameters[1].nf4 = true;
  const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, m);
  std::string parts;
  for (const PartSpec& part : m.parts()) {
    if (m.Has(part.part, m.parameters[1])) parts += absl::StrCat(part.name, " ", part.block, ";");
    EXPECT_NE(m.Has(part.part, m.parameters[0]), IsNf4(part.part)) << part.name;
    EXPECT_EQ(BytesPerElement(part.part, m.states), part.element_bytes());
    EXPECT_EQ(BlockOf(part.part, m.states), part.block);
  }
  EXPECT_EQ(parts, "NF4 scales 16384;NF4 means 16384;NF4 codes 2;NF4 absmax 64;");
  EXPECT_EQ(StateOf(SavedPart::kNf4Codes), -1);
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters[1].nf4 = true; }),
              HasSubstr("trains, and its values are"));
}

TEST(ManifestTest, ParametersOfTheBaseHaveNoParts) {
  Manifest m = ValidManifest();
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.base = SavedBase{.folder = "base"}; }),
              HasSubstr("it has a base, and no parameter is left to it"));
  m.parameters[1].frozen = m.parameters[1].in_base = true;
  m.frozen_values = SavedValues::kBFloat16;
  for (const bool nf4 : {false, true}) {
    m.parameters[1].nf4 = nf4;
    m.base = SavedBase{.folder = "/models/base", .digest = 0xfedcba9876543210};
    const absl::StatusOr<Manifest> read = ParseManifest(SerializeManifest(m));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, m);
    for (const PartSpec& part : m.parts()) EXPECT_FALSE(m.Has(part.part, m.parameters[1])) << part.name;
    EXPECT_EQ(m.ValuesOf(m.parameters[1]), nf4 ? SavedValues::kNf4 : SavedValues::kBFloat16);
  }
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.parameters[1].in_base = true; }), HasSubstr("and there is none"));
  const auto with_base = [](Manifest& m) {
    m.base = SavedBase{.folder = "base"};
    m.parameters[1].frozen = m.parameters[1].in_base = true;
  };
  EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { with_base(m), m.parameters[1].frozen = false; }),
              HasSubstr("is left to the base, and trains"));
  for (const std::string& folder : {std::string(), std::string("a\nb"), std::string(5000, 'x')}) {
    EXPECT_THAT(RefusalOfManifest([&](Manifest& m) { with_base(m), m.base->folder = folder; }),
                HasSubstr("a path has 1 to 4,096 printable bytes"));
  }
}

TEST(ManifestTest, PartsComeInTheOrderOfTheirWidth) {
  const auto names = [](SavedValues values, const std::vector<SavedState>& states) {
    std::vector<std::string> names;
    for (const PartSpec& part : PartsOf(values, values, states)) names.push_back(part.name);
    return names;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(names(SavedValues::kFloat32, AdamWStates()), ElementsAre("m", "v", "value"));
  EXPECT_THAT(names(SavedValues::kSplit, AdamWStates()), ElementsAre("m", "v", "high bits", "low bits"));
  EXPECT_THAT(names(SavedValues::kSplit, {{"m", DType::kUInt8}, {"m_scale", DType::kFloat32, 256}}),
              ElementsAre("m_scale", "high bits", "low bits", "m"));
  EXPECT_THAT(names(SavedValues::kFloat32, {}), ElementsAre("value"));
}

TEST(ManifestTest, StatesThatNobodyKnowsAreRefused) {
  const auto refusal = [](SavedState state) {
    return RefusalOfManifest([&](Manifest& m) { m.states = {std::move(state)}; });
  };
  EXPECT_THAT(refusal({"m", DType::kInt64}), HasSubstr("state \"m\" is of type \"i64\"; known are f32, bf16 and u8"));
  EXPECT_THAT(refusal({"m", DType::kFloat32, 0}), HasSubstr("with blocks of 0 elements"));
  EXPECT_THAT(refusal({""}), HasSubstr("it has a state named \"\""));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) {
                m.states = {{"m"}, {"m"}};
              }),
              HasSubstr("state \"m\" of parameter w is in it twice"));
  EXPECT_THAT(RefusalOfManifest([](Manifest& m) { m.states.assign(kMaxSavedStates + 1, {"m"}); }),
              HasSubstr("has more than 16 states of an optimizer"));
}

}  // namespace
}  // namespace shale

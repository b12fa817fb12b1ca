#include "engine/files/checkpoint/compare.h"

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

// The parts of a parameter that are compared.
constexpr std::array<SavedPart, 3> kStateParts = {SavedPart::kValue, StatePart(0), StatePart(1)};

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> Lines(const std::vector<FieldDifference>& fields) {
  std::vector<std::string> lines;
  for (const FieldDifference& f : fields) lines.push_back(absl::StrCat(f.field, ": ", f.a, " | ", f.b));
  return lines;
}

class CompareTest : public ::testing::Test {
 protected:
  // Keeps all values in (-2, 2), so that none is NaN. Another test covers what a NaN loses when it is saved as kSplit.
  CompareTest() {
    for (int parameter = 0; parameter < std::ssize(state_.parameters()); ++parameter) {
      for (SavedPart part : kStateParts) {
        for (int64_t i = 0; i < state_.parameters()[parameter].elements(); ++i) {
          const auto bits = std::bit_cast<uint32_t>(state_.Elements(part, parameter)[i]);
          state_.Set(part, parameter, i, std::bit_cast<float>((bits & 0xbfffffff) >> (i % 2)));
        }
      }
    }
  }

  CheckpointDifference Difference(const SampleState& a, const SampleForm& form_a, const SampleState& b,
                                  const SampleForm& form_b) {
    a.WriteCheckpoint(temp_.Path("a"), form_a);
    b.WriteCheckpoint(temp_.Path("b"), form_b);
    return Compared();
  }
  CheckpointDifference Compared() {
    const absl::StatusOr<CheckpointReader> first = CheckpointReader::Open(temp_.Path("a"));
    const absl::StatusOr<CheckpointReader> second = CheckpointReader::Open(temp_.Path("b"));
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    absl::StatusOr<CheckpointDifference> difference = CompareCheckpoints(*first, *second);
    EXPECT_TRUE(difference.ok()) << difference.status();
    std::filesystem::remove_all(temp_.Path("a"));
    std::filesystem::remove_all(temp_.Path("b"));
    return *std::move(difference);
  }

  // Compares a checkpoint with itself under another manifest.
  CheckpointDifference WithManifest(const std::function<void(Manifest&)>& change) {
    state_.WriteCheckpoint(temp_.Path("a"), {});
    Manifest m = state_.WriteCheckpoint(temp_.Path("b"), {});
    change(m);
    temp_.Write("b/MANIFEST", SerializeManifest(m));
    return Compared();
  }

  TempFolder temp_;
  SampleState state_ = SmallSample();
};

TEST_F(CompareTest, TheSameStateInAnyFormIsEqual) {
  const SampleForm forms[] = {{1, SavedValues::kFloat32}, {3, SavedValues::kSplit}, {3, SavedValues::kFloat32}};
  for (const SampleForm& a : forms) {
    for (const SampleForm& b : forms) {
      const CheckpointDifference difference = Difference(state_, a, state_, b);
      EXPECT_TRUE(difference.Equal(0));
      EXPECT_EQ(difference.parameters.size(), 5);
      EXPECT_THAT(difference.state, IsEmpty());
      EXPECT_EQ(difference.writing.size(), (a.ranks != b.ranks) + (a.values != b.values));
    }
  }
}

TEST_F(CompareTest, OneBitIsFoundWhereItIs) {
  for (int parameter = 0; parameter < 5; ++parameter) {
    for (size_t part = 0; part < kStateParts.size(); ++part) {
      SampleState other = state_;
      const int64_t last = state_.parameters()[parameter].elements() - 1;
      const float before = state_.Elements(kStateParts[part], parameter)[last];
      const float after = std::bit_cast<float>(std::bit_cast<uint32_t>(before) ^ 1);
      other.Set(kStateParts[part], parameter, last, after);
      const CheckpointDifference difference =
          Difference(state_, {.ranks = 3, .values = SavedValues::kSplit}, other, {.ranks = 1});
      EXPECT_FALSE(difference.Equal(0));
      EXPECT_TRUE(difference.Equal(1e-6));
      for (int p = 0; p < 5; ++p) {
        for (size_t q = 0; q < kStateParts.size(); ++q) {
          const PartDifference& found = difference.parameters[p].parts[q];
          EXPECT_EQ(found.different, p == parameter && q == part) << p << " " << q;
          if (found.different == 0) continue;
          EXPECT_EQ(found.largest, std::abs(static_cast<double>(before) - after));
          EXPECT_EQ(found.relative(), found.largest / found.magnitude);
        }
      }
    }
  }
}

TEST_F(CompareTest, AFrozenParameterIsComparedByItsValuesAlone) {
  const CheckpointDifference difference = Difference(state_, {.frozen = 1}, state_, {});
  ASSERT_EQ(difference.state.size(), 1);
  EXPECT_EQ(difference.state[0].field, "parameter block.weight");
  EXPECT_EQ(difference.state[0].a, "frozen");
  EXPECT_EQ(difference.state[0].b, "trains");
  EXPECT_EQ(difference.parameters[1].parts[0].elements, 7 * 11 * 13);
  EXPECT_EQ(difference.parameters[1].parts[1].elements, 0);
  EXPECT_EQ(difference.parameters[2].parts[1].elements, 1);
  EXPECT_TRUE(Difference(state_, {.frozen = 1}, state_, {.ranks = 3, .frozen = 1}).Equal(0));
}

TEST_F(CompareTest, DifferencesAreMeasuredByThePart) {
  struct Case {
    float a, b;
    double largest;
  };
  constexpr float kHuge = std::numeric_limits<float>::max();
  for (const Case& c : {Case{1, 3, 2},
                        {0.0f, -0.0f, 0},
                        {kHuge, -kHuge, 2.0 * kHuge},
                        {kNan, 1, kInfinity},
                        {1, kInfinity, kInfinity},
                        {kInfinity, -kInfinity, kInfinity},
                        {kNan, std::bit_cast<float>(0x7fc00001), 0},
                        {kNan, kInfinity, kInfinity}}) {
    SampleState a({{"p", {3}}}, 1);
    for (SavedPart part : kStateParts) {
      for (int i = 0; i < 3; ++i) a.Set(part, 0, i, 4);
    }
    SampleState b = a;
    a.Set(StatePart(0), 0, 1, c.a);
    b.Set(StatePart(0), 0, 1, c.b);
    const CheckpointDifference difference = Difference(a, {}, b, {});
    const PartDifference& part = difference.parameters[0].parts[1];
    EXPECT_EQ(part.different, 1) << c.a << " " << c.b;
    EXPECT_EQ(part.largest, c.largest) << c.a << " " << c.b;
    EXPECT_EQ(part.magnitude, std::isfinite(c.a) ? std::max(4.0f, std::abs(c.a)) : 4.0f);
    EXPECT_FALSE(difference.Equal(0));
    EXPECT_EQ(difference.Equal(0.5), part.relative() <= 0.5) << c.a << " " << c.b;
    EXPECT_EQ(difference.Equal(1e30), std::isfinite(c.largest)) << c.a << " " << c.b;
  }
  // Without a difference relative() is 0, whatever the magnitude. A difference in a part of magnitude 0 is infinite.
  EXPECT_EQ(PartDifference().relative(), 0);
  EXPECT_EQ((PartDifference{.different = 1, .largest = kInfinity, .magnitude = 0}.relative()), kInfinity);
}

TEST_F(CompareTest, FieldsOfTheStateAreNamed) {
  const CheckpointDifference all = WithManifest([](Manifest& m) {
    m.step = 5, m.update_count = 4, m.tokens = 6, m.samples = 7, m.seed = 8;
    m.data = {.samples_per_epoch = 9, .sequence_length = 10, .shuffled = false, .seed = 11, .tokenizer = "other"};
  });
  EXPECT_THAT(Lines(all.state), ElementsAre("step: 4 | 5", "updates: 3 | 4", "tokens: 384 | 6", "samples: 12 | 7",
                                            "seed: 7 | 8", "samples per epoch: 5 | 9", "tokens per sample: 32 | 10",
                                            "shuffled: yes | no", "data seed: 9 | 11", "tokenizer: bytes | other"));
  EXPECT_FALSE(all.Equal(1e30));
  EXPECT_THAT(all.writing, IsEmpty());
  // How a checkpoint was written is reported and does not count as a difference.
  const CheckpointDifference written = WithManifest([](Manifest& m) {
    m.strategy = "DDP", m.accumulation = "NO_SYNC";
    m.job = "model {\n  decoder {\n    width: 33\n  }\n}\nset: 1\nset: \"a: {\"\n";
  });
  EXPECT_THAT(Lines(written.writing), ElementsAre("strategy: FULL_SHARD | DDP", "accumulation: LAYERED | NO_SYNC",
                                                  "job: model.decoder.width: 32 | 33", "job: set:  | 1, \"a: {\"",
                                                  "job: sharding.ranks: 2 | "));
  EXPECT_TRUE(written.Equal(0));
  // The order of groups decides the order of their states.
  EXPECT_THAT(WithManifest([](Manifest& m) { std::swap(m.states[0], m.states[1]); }).state, IsEmpty());
}

TEST_F(CompareTest, HostileJobsAreNotComparedByField) {
  // Regression: each field line copied the names of all messages around it, so that time and memory grew with the
  // square of the job.
  const auto repeat = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  const auto compare = [&](const std::string& job) {
    return Lines(WithManifest([&](Manifest& m) { m.job = job; }).writing);
  };
  const std::string sample = absl::StrCat("a job of ", state_.ManifestOf({}).job.size(), " bytes");
  EXPECT_THAT(compare(std::string((1 << 20) + 1, '\n')),
              ElementsAre(absl::StrCat("job: not compared: ", sample,
                                       " | a job of 1048577 bytes; at most 1048576 are compared")));
  EXPECT_THAT(compare(repeat("a {\nb: 1\n", 65)),
              ElementsAre(absl::StrCat("job: not compared: ", sample, " | a job with messages nested deeper than 64")));
  EXPECT_THAT(
      compare(std::string(1000, 'a') + " {\n" + repeat("b: 1\n", 1000)),
      ElementsAre(absl::StrCat("job: not compared: ", sample,
                               " | a job with messages whose names have 1001 bytes; at most 256 are compared")));
  // 64 messages inside one another are fine, and so are ends of messages that did not begin.
  EXPECT_THAT(compare(repeat("}\n", 1000) + repeat("a {\n", 64) + "b: 1\n"),
              ElementsAre(absl::StrCat("job: ", repeat("a.", 64), "b:  | 1"), "job: model.decoder.width: 32 | ",
                          "job: sharding.ranks: 2 | "));
}

TEST_F(CompareTest, ParametersThatOnlyOneHasAreNamed) {
  SampleState a({{"same", {4}}, {"gone", {2, 3}}, {"turned", {2, 3}}}, 1);
  SampleState b({{"turned", {3, 2}}, {"new", {}}, {"same", {4}}}, 1);
  const CheckpointDifference difference = Difference(a, {}, b, {});
  EXPECT_THAT(Lines(difference.state),
              ElementsAre("parameter gone: [2, 3] | ", "parameter turned: [2, 3] | [3, 2]", "parameter new:  | []"));
  ASSERT_EQ(difference.parameters.size(), 1);
  EXPECT_EQ(difference.parameters[0].parameter.name, "same");
  EXPECT_FALSE(difference.Equal(1e30));
}

TEST_F(CompareTest, StatisticsAreOfTheFiniteElements) {
  // More elements than one batch: a ramp of mean 0 with one NaN in the middle.
  constexpr int64_t kElements = 200'001;
  SampleState state({{"ramp", {kElements}}, {"nothing", {2}}}, 1);
  double squares = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const double value = static_cast<double>(i - kElements / 2) / 1024;
    squares += value * value;
    state.Set(StatePart(1), 0, i, static_cast<float>(value));
  }
  const double middle = state.Elements(StatePart(1), 0)[kElements / 2];
  ASSERT_EQ(middle, 0);
  state.Set(StatePart(1), 0, kElements / 2, kNan);
  state.Set(SavedPart::kValue, 1, 0, -kInfinity);
  state.Set(SavedPart::kValue, 1, 1, kNan);
  state.WriteCheckpoint(temp_.Path("a"), {.ranks = 3, .values = SavedValues::kSplit});
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(temp_.Path("a"));
  ASSERT_TRUE(reader.ok());
  CheckpointValues values(*reader);
  const PartStatistics ramp = StatisticsOf(values, StatePart(1), state.parameters()[0]).value();
  EXPECT_EQ(ramp.maximum, 100'000.0 / 1024);
  EXPECT_EQ(ramp.minimum, -100'000.0 / 1024);
  // Sums of multiples of 1/1024 are exact in fp64.
  EXPECT_EQ(ramp.mean, 0);
  EXPECT_DOUBLE_EQ(ramp.rms, std::sqrt(squares / (kElements - 1)));
  EXPECT_EQ(ramp.non_finite, 1);
  const PartStatistics nothing = StatisticsOf(values, SavedPart::kValue, state.parameters()[1]).value();
  EXPECT_EQ(nothing.non_finite, 2);
  EXPECT_EQ(nothing.minimum, 0);
  EXPECT_EQ(nothing.rms, 0);
}

TEST_F(CompareTest, DamageIsNoDifference) {
  state_.WriteCheckpoint(temp_.Path("a"), {});
  state_.WriteCheckpoint(temp_.Path("b"), {});
  FlipBit(ShardPath(temp_.Path("b"), 0, 1), 8 * 5000);
  const CheckpointReader first = CheckpointReader::Open(temp_.Path("a")).value();
  const CheckpointReader second = CheckpointReader::Open(temp_.Path("b")).value();
  EXPECT_EQ(CompareCheckpoints(first, second).status().code(), absl::StatusCode::kDataLoss);
  CheckpointValues values(second);
  EXPECT_EQ(StatisticsOf(values, SavedPart::kValue, state_.parameters()[0]).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace shale

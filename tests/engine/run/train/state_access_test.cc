// Laws of the state of a trainer that a program reads and writes by name and slice.
#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "tests/engine/copied_state.h"
#include "tests/engine/run/train/own_data.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWeight[] = "blocks.0.ffn.down.weight";

class StateAccessTest : public OwnDataTest {
 protected:
  std::unique_ptr<Trainer> MustCreate(const Job& job) {
    auto trainer = Create(job, &data_);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  }

  MadeUpData data_{Describe(false)};
};

TEST_F(StateAccessTest, AStateThatIsCopiedSliceBySliceTrainsOnWithTheSameBits) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"sharding.ranks=3"},
           {"sharding.ranks=2", "sharding.strategy=DDP"},
           {"sharding.ranks=3", "sharding.strategy=ZERO1"},
           {"sharding={ranks: 4 shard_ranks: 2 strategy: ZERO2}"},
           {"precision.compute=BF16", "sharding.ranks=3"},
           {"precision={compute: BF16 master: SPLIT}", "sharding.ranks=2"},
           {"precision.compute=BF16", "optimizer.state=LEAN", "sharding.ranks=2"},
           {"optimizer.epsilon=", "optimizer.rule=SGD", "optimizer.momentum=0.9"},
           {"optimizer.epsilon=", "optimizer.rule=LION", "sharding.ranks=2"},
           {"optimizer.rule=ADAMW_8BIT", "sharding.ranks=2"},
           {"optimizer.epsilon=", "optimizer={rule: ADAFACTOR learning_rate: 1}", "sharding.ranks=3"},
           {"optimizer.epsilon=", "optimizer.rule=MUON", "sharding.ranks=3"},
           {"optimizer={update: IN_BACKWARD clipping: PREVIOUS_NORM non_finite: SKIP}", "sharding.ranks=2"}}) {
    SCOPED_TRACE(absl::StrJoin(overrides, " "));
    testing::ExpectStateCanBeCopied(MakeJob(overrides), [&](const Job& job) { return MustCreate(job); });
  }
}

TEST_F(StateAccessTest, ASliceChangesNothingBesideIt) {
  auto trainer = MustCreate(MakeJob({"sharding.ranks=3", "precision={compute: BF16 master: SPLIT}"}));
  ASSERT_NE(trainer, nullptr);
  std::vector<float> all(240), read(240);
  ASSERT_TRUE(trainer->state().ReadParameter(kWeight, absl::MakeSpan(all)).ok());
  for (int i = 60; i < 190; ++i) all[i] = 0.01f * static_cast<float>(i);
  ASSERT_TRUE(trainer->state().WriteParameter(kWeight, 60, absl::MakeConstSpan(all).subspan(60, 130)).ok());
  ASSERT_TRUE(trainer->state().ReadParameter(kWeight, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, all);
  ASSERT_TRUE(trainer->state().ReadParameter(kWeight, 100, absl::MakeSpan(read).first(2)).ok());
  EXPECT_EQ(read[1], all[101]);
}

TEST_F(StateAccessTest, AFormOfFewerBitsReadsBackWhatItHolds) {
  auto trainer = MustCreate(MakeJob({"precision.compute=BF16", "optimizer.state=LEAN"}));
  ASSERT_NE(trainer, nullptr);
  const std::vector<float> values = {1.0f + 0x1p-8f + 0x1p-12f, 0.375f};
  std::vector<float> read(2);
  ASSERT_TRUE(trainer->state().WriteParameter(kWeight, 3, values).ok());
  ASSERT_TRUE(trainer->state().ReadParameter(kWeight, 3, absl::MakeSpan(read)).ok());
  EXPECT_THAT(read, ElementsAre(1.0f + 0x1p-7f, 0.375f));
  ASSERT_TRUE(trainer->state().WriteOptimizerState("v", kWeight, 3, values).ok());
  ASSERT_TRUE(trainer->state().ReadOptimizerState("v", kWeight, 3, absl::MakeSpan(read)).ok());
  EXPECT_THAT(read, ElementsAre(1.0f + 0x1p-7f, 0.375f));
}

TEST_F(StateAccessTest, GradientsAreReadBySlice) {
  auto trainer = MustCreate(MakeJob({"memory.keep_gradients=true", "sharding.ranks=3"}));
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->Step().ok());
  std::vector<float> all(240), part(130);
  ASSERT_TRUE(trainer->state().ReadGradient(kWeight, absl::MakeSpan(all)).ok());
  ASSERT_TRUE(trainer->state().ReadGradient(kWeight, 60, absl::MakeSpan(part)).ok());
  EXPECT_EQ(part, std::vector<float>(all.begin() + 60, all.begin() + 190));
  EXPECT_NE(part, std::vector<float>(130));
}

TEST_F(StateAccessTest, GradientsHaveNoLossScale) {
  std::vector<float> first(240), gradient(240);
  for (const char* const scale : {"1", "256", "4096"}) {
    auto trainer = MustCreate(MakeJob({"memory.keep_gradients=true", absl::StrCat("precision={compute: FP16 "
                                                                                  "growth_interval: 1 init_scale: ",
                                                                                  scale, "}")}));
    ASSERT_NE(trainer, nullptr);
    ASSERT_TRUE(trainer->Step().ok());
    ASSERT_TRUE(trainer->state().ReadGradient(kWeight, absl::MakeSpan(gradient)).ok());
    if (scale[1] == 0) first = gradient;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      difference += (gradient[i] - first[i]) * (gradient[i] - first[i]);
      norm += first[i] * first[i];
    }
    EXPECT_LE(difference, 1e-2 * norm) << scale;
    EXPECT_GT(norm, 0);
  }
}

TEST_F(StateAccessTest, FactorsHaveAnElementForEachRowOrColumn) {
  auto trainer =
      MustCreate(MakeJob({"optimizer.epsilon=", "optimizer={rule: ADAFACTOR learning_rate: 1}", "sharding.ranks=3"}));
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->Step().ok());
  TrainerState& state = trainer->state();
  EXPECT_THAT(state.optimizer_states(), ElementsAre("row_moments", "column_moments", "vector_moments"));
  const int64_t rows = *state.OptimizerStateElements("row_moments", kWeight);
  const int64_t columns = *state.OptimizerStateElements("column_moments", kWeight);
  EXPECT_EQ(rows * columns, 240);
  // Both are means of the squares of the same gradient, so their own means are the same.
  std::vector<float> of_rows(rows), of_columns(columns);
  ASSERT_TRUE(state.ReadOptimizerState("row_moments", kWeight, 0, absl::MakeSpan(of_rows)).ok());
  ASSERT_TRUE(state.ReadOptimizerState("column_moments", kWeight, 0, absl::MakeSpan(of_columns)).ok());
  const auto mean = [](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  EXPECT_GT(mean(of_rows), 0);
  EXPECT_NEAR(mean(of_rows), mean(of_columns), 1e-5 * mean(of_rows));
  const std::vector<float> other = {0.25f, 0.5f};
  ASSERT_TRUE(state.WriteOptimizerState("row_moments", kWeight, 1, other).ok());
  std::copy(other.begin(), other.end(), of_rows.begin() + 1);
  std::vector<float> read(rows);
  ASSERT_TRUE(state.ReadOptimizerState("row_moments", kWeight, 0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, of_rows);
  EXPECT_EQ(state.ReadOptimizerState("row_moments", kWeight, 1, absl::MakeSpan(read)).message(),
            absl::StrCat("state row_moments of blocks.0.ffn.down.weight has ", rows, " elements; asked for ", rows,
                         " from number 1"));
  EXPECT_EQ(state.ReadOptimizerState("vector_moments", kWeight, 0, absl::MakeSpan(read)).message(),
            "the optimizer keeps no state vector_moments of blocks.0.ffn.down.weight; its states: row_moments, "
            "column_moments");
}

TEST_F(StateAccessTest, WhatIsNotThereIsNamed) {
  auto trainer = MustCreate(MakeJob({}));
  ASSERT_NE(trainer, nullptr);
  std::vector<float> two(2);
  const auto read = [&](const std::string& name, int64_t begin) {
    return std::string(trainer->state().ReadParameter(name, begin, absl::MakeSpan(two)).message());
  };
  EXPECT_EQ(read("blocks.0.ffn.down.weigth", 0),
            "the model has no parameter blocks.0.ffn.down.weigth; did you mean blocks.0.ffn.down.weight?");
  for (const int64_t begin : {int64_t{-1}, int64_t{239}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(read(kWeight, begin),
              absl::StrCat("parameter blocks.0.ffn.down.weight has 240 elements; asked for 2 from number ", begin));
  }
  EXPECT_EQ(trainer->state().WriteParameter(kWeight, 239, two).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(trainer->state().optimizer_states(), ElementsAre("m", "v"));
  EXPECT_EQ(trainer->state().ReadOptimizerState("momentum", kWeight, 0, absl::MakeSpan(two)).message(),
            "the optimizer keeps no state momentum of blocks.0.ffn.down.weight; its states: m, v");
  EXPECT_EQ(trainer->state().WriteOptimizerState("m", kWeight, 239, two).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(StateAccessTest, StatesThatShareScalesAreRefusedWithAWayOut) {
  auto trainer = MustCreate(MakeJob({"optimizer.rule=ADAMW_8BIT"}));
  ASSERT_NE(trainer, nullptr);
  std::vector<float> two(2);
  EXPECT_THAT(trainer->state().optimizer_states(), ElementsAre("m", "v", "m_scale", "v_scale"));
  for (const std::string& state : trainer->state().optimizer_states()) {
    const absl::Status status = trainer->state().WriteOptimizerState(state, kWeight, 0, two);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(
        status.message(),
        absl::StrCat("elements of state ", state, " cannot be read or written one by one: the optimizer keeps its ",
                     "moments in 8 bits, 256 to a scale; use optimizer.rule=ADAMW, or save a checkpoint and read ",
                     "codes and scales from it"));
  }
}

TEST_F(StateAccessTest, AfterAFailedStepTheStateIsReadAndNotWritten) {
  auto trainer = MustCreate(MakeJob({}));
  ASSERT_NE(trainer, nullptr);
  std::vector<float> value = {std::numeric_limits<float>::infinity()}, read(1);
  ASSERT_TRUE(trainer->state().WriteParameter(kWeight, 5, value).ok());
  EXPECT_EQ(trainer->Step().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(trainer->state().ReadParameter(kWeight, 5, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, value);
  const absl::Status status = trainer->state().WriteParameter(kWeight, 5, {1.0f});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no step can use what is written"));
}

}  // namespace
}  // namespace shale

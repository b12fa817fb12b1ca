// Bits that flip in the state of a rank while it trains, and the check that notices them (runtime.check_every_steps).
#include <cstddef>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "tests/engine/run/train/resume_fixture.h"
#include "tests/engine/run/verify/wrong_backend.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

// Flips a bit of what a rank's updates have written, when that rank launches op `launch` of step `step`.
struct Flip {
  int64_t rank = 0;
  int64_t step = 0;
  int64_t launch = 0;
  uint64_t where = 0;  // Chooses the bit.
};

// Sees the ops of all ranks. Each rank launches its ops on a thread of its own.
class Flipper {
 public:
  explicit Flipper(const Flip& flip) : flip_(flip) {}

  void See(Op& op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Rank& rank = ranks_[std::this_thread::get_id()];
    if (const Update* update = op.As<Update>()) {
      if (!rank.updating) rank.state.clear();
      rank.updating = true;
      if (update->shard_stride > 0) rank.number = update->shard_begin / update->shard_stride;
      Update::Visit(*update, [&](absl::string_view, const Tensor& t, Access access) {
        if (t.present() && access == Access::kReadWrite) rank.state.push_back(t);
      });
      return;
    }
    if (std::exchange(rank.updating, false)) {
      ++rank.step;
      rank.launches = 0;
    }
    if (rank.step == flip_.step) launches_ = std::max(launches_, rank.launches + 1);
    if (!flipped_ && rank.number == flip_.rank && rank.step == flip_.step && rank.launches == flip_.launch) {
      const Tensor& t = rank.state[flip_.where % rank.state.size()];
      const uint64_t bit = flip_.where / rank.state.size() % (8 * t.extent_bytes());
      static_cast<std::byte*>(t.data)[bit / 8] ^= std::byte{1} << (bit % 8);
      flipped_ = true;
    }
    ++rank.launches;
  }

  bool flipped() const { return flipped_; }
  int64_t launches() const { return launches_; }  // Of a rank in step Flip::step, before its update.

 private:
  struct Rank {
    int64_t number = 0;  // Without shards, all ranks do the same, and the first one to come is taken.
    int64_t step = 1, launches = 0;
    bool updating = false;
    std::vector<Tensor> state;
  };
  const Flip flip_;
  std::mutex mutex_;
  std::map<std::thread::id, Rank> ranks_;
  bool flipped_ = false;
  int64_t launches_ = 0;
};

class StateCheckTest : public ResumeTest {
 protected:
  absl::Status TrainWith(const Job& job, Flipper& flipper) {
    const testing::WrongBackend backend([&](Op& op) { flipper.See(op); });
    auto trainer =
        Trainer::Create(job, {.backend = &backend, .checkpoint_folder = Path(absl::StrCat("run-", ++runs_))});
    return trainer.ok() ? (*trainer)->Run({}) : trainer.status();
  }
  int runs_ = 0;
};

// Regression: the check looked after the update, when the gather of ZERO1 and ZERO2 had written over a flipped weight,
// and an update had taken up a flipped master. It noticed 0 of 8.
TEST_F(StateCheckTest, ABitThatFlipsBetweenTwoUpdatesIsNoticed) {
  constexpr int kFlips = 2;
  static std::mt19937_64 random(50);  // Goes on when the test is repeated.
  for (const char* sharding : {"ranks: 3 strategy: DDP", "ranks: 3 strategy: ZERO1", "ranks: 3 strategy: ZERO2",
                               "ranks: 3 strategy: FULL_SHARD", "ranks: 4 shard_ranks: 2"}) {
    SCOPED_TRACE(sharding);
    const Job job = MakeJob({absl::StrCat("sharding={", sharding, "}"), "precision.compute=BF16", "lr_schedule.steps=3",
                             "lr_schedule.warmup_steps=1", "runtime.check_every_steps=1", "runtime.synchronous=true"});
    Flipper none({.rank = -1, .step = 2});
    ASSERT_TRUE(TrainWith(job, none).ok());
    ASSERT_GT(none.launches(), 10);
    for (int i = 0; i < kFlips; ++i) {
      const bool sharded = std::string(sharding).find("DDP") == std::string::npos;
      Flip flip{.rank = sharded ? static_cast<int64_t>(random() % 2) : 0,
                .step = 2 + static_cast<int64_t>(random() % 2),
                .launch = static_cast<int64_t>(random() % none.launches()),
                .where = random()};
      SCOPED_TRACE(absl::StrCat("step ", flip.step, ", launch ", flip.launch, " of rank ", flip.rank));
      Flipper flipper(flip);
      const absl::Status status = TrainWith(job, flipper);
      EXPECT_TRUE(flipper.flipped());
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(" changed before the update of step ",
                                                                        flip.step, ", and nothing but an update")));
    }
  }
}

TEST_F(StateCheckTest, TheCheckChangesNoBitAndNoByteOfThePlan) {
  for (const char* sharding : {"strategy: ZERO2", "strategy: FULL_SHARD"}) {
    const auto train = [&](int every, const std::string& update) {
      const Job job = MakeJob({absl::StrCat("sharding={ranks: 3 ", sharding, "}"),
                               absl::StrCat("runtime.check_every_steps=", every), update});
      const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
      EXPECT_TRUE(trainer.ok()) << trainer.status();
      std::vector<double> losses = {static_cast<double>((*trainer)->plan().arena_bytes)};
      const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
        EXPECT_EQ(report.peak_bytes_measured, report.peak_bytes_planned);
        losses.push_back(report.loss);
        return absl::OkStatus();
      }});
      EXPECT_TRUE(status.ok()) << status;
      return losses;
    };
    for (const char* update :
         {"optimizer.update=AFTER_BACKWARD", "optimizer={update: IN_BACKWARD clipping: PER_UNIT non_finite: SKIP}"}) {
      SCOPED_TRACE(absl::StrCat(sharding, update));
      const std::vector<double> never = train(0, update);
      EXPECT_EQ(train(1, update), never);
      EXPECT_EQ(train(2, update), never);
    }
  }
}

// The program may write to the state between steps.
TEST_F(StateCheckTest, WhatTheProgramWritesIsNoFlip) {
  const Job job = MakeJob({"runtime.check_every_steps=1", "sharding.strategy=FULL_SHARD"});
  const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const std::vector<float> value = {0.125f};
  const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport&) {
    return (*trainer)->state().WriteParameter((*trainer)->state().parameters()[0].name, 0, value);
  }});
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace shale

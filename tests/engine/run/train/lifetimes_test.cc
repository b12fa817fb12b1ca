// Laws of trainers and generators that come and go in one process: each begins and ends with all its threads and its
// memory, whenever it ends.
//
//   lifetimes_test --creations=1000   creates and destroys that many trainers instead of 30
#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "engine/api/generator.h"
#include "gmock/gmock.h"
#include "kernels/ops/loss.h"
#include "tests/engine/files/io/faulty_file_system.h"
#include "tests/engine/files/io/process_resources.h"
#include "tests/engine/run/train/creations.h"
#include "tests/engine/run/train/own_data.h"
#include "tests/engine/run/train/resume_fixture.h"
#include "tests/engine/run/verify/wrong_backend.h"

namespace shale {
namespace {

class LifetimesTest : public OwnDataTest {
 protected:
  // Returns a job with two ranks of two threads, which generates and saves while it trains.
  static Job LifetimesJob(const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"sharding.ranks=2", "runtime.threads_per_rank=2", "runtime.generate=true",
                                    "checkpoint.asynchronous=true"};
    all.insert(all.end(), more.begin(), more.end());
    return MakeJob(all);
  }

  MadeUpData data_{Describe(false)};
};

TEST_F(LifetimesTest, ThreadsFilesAndMemoryAreThoseOfBeforeAfterAnyNumberOfTrainers) {
  const Job job = LifetimesJob();
  int64_t threads = 0, descriptors = 0, resident = 0;
  for (int i = 0; i < Creations() + 10; ++i) {
    if (i == 10) {  // Libraries and the allocator have what they keep.
      threads = Threads();
      descriptors = OpenDescriptors();
      resident = ResidentBytes();
    }
    auto trainer = Create(job, &data_);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    if (i % 3 == 0) continue;  // One of three ends before its first step.
    ASSERT_TRUE((*trainer)->Step().ok());
    ASSERT_TRUE((*trainer)->generator().Logits({1, 2}).ok());
  }
  AwaitThreads(threads);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  // An arena of this job has some 100 KiB, and a thread's stack alone would count some 10 KiB.
  if (ResidenceIsOurs()) {
    EXPECT_LT(ResidentBytes() - resident, 2 << 20);
  }
}

// A rank has threads of its own for its ops, beside the thread that calls them.
TEST_F(LifetimesTest, ARankHasOneThreadMoreForEachOfItsThreadsPerRankButOne) {
  const int64_t before = Threads();
  const auto threads_with = [&](int64_t threads_per_rank) {
    const Job job = LifetimesJob(
        {"runtime.ops=FAST", "sharding.ranks=3", absl::StrCat("runtime.threads_per_rank=", threads_per_rank)});
    // Threads of the start, which were joined, may be listed for a moment: not after every step.
    int64_t least = std::numeric_limits<int64_t>::max();
    {
      auto trainer = Create(job, &data_);
      EXPECT_TRUE(trainer.ok()) << trainer.status();
      for (int step = 0; trainer.ok() && step < 3; ++step) {
        const absl::StatusOr<StepReport> report = (*trainer)->Step();
        EXPECT_TRUE(report.ok()) << report.status();
        least = std::min(least, Threads());
      }
    }
    AwaitThreads(before);
    return least;
  };
  const int64_t one = threads_with(1);
  for (const int64_t threads : {2, 4}) EXPECT_EQ(threads_with(threads) - one, 3 * (threads - 1));
}

TEST_F(LifetimesTest, TwoTrainersAndAGeneratorRunSideBySide) {
  const Job first_job = LifetimesJob();
  const Job second_job = LifetimesJob({"sharding.ranks=3", "runtime.threads_per_rank=1", "runtime.seed=2"});
  std::string checkpoint;
  const auto losses = [&](const Job& job, const std::string& folder) {
    std::vector<double> found;
    auto trainer = Create(job, &data_, folder);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return found;
    while (!(*trainer)->done()) {
      const absl::StatusOr<StepReport> report = (*trainer)->Step();
      EXPECT_TRUE(report.ok()) << report.status();
      if (!report.ok()) return found;
      found.push_back(report->loss);
    }
    if (!folder.empty()) checkpoint = *(*trainer)->SaveCheckpoint();
    return found;
  };
  const std::vector<double> first = losses(first_job, "run"), second = losses(second_job, "");
  const auto logits = [&] {
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(checkpoint);
    EXPECT_TRUE(reader.ok()) << reader.status();
    auto generator = Generator::Create(*reader, CreateBackend);
    EXPECT_TRUE(generator.ok()) << generator.status();
    const absl::StatusOr<absl::Span<const float>> found = (*generator)->Logits({3, 4, 5});
    EXPECT_TRUE(found.ok()) << found.status();
    return std::vector<float>(found->begin(), found->end());
  };
  const std::vector<float> expected = logits();
  const int64_t threads = Threads();
  for (int i = 0; i < std::max(2, Creations() / 30); ++i) {
    std::thread one([&] { EXPECT_EQ(losses(first_job, ""), first); });
    std::thread other([&] { EXPECT_EQ(losses(second_job, ""), second); });
    std::thread generator([&] { EXPECT_EQ(logits(), expected); });
    one.join();
    other.join();
    generator.join();
  }
  AwaitThreads(threads);
}

TEST_F(LifetimesTest, ATrainerMovesBetweenThreads) {
  const Job job = LifetimesJob();
  auto expected = Create(job, &data_), moving = Create(job, &data_);
  ASSERT_TRUE(expected.ok() && moving.ok());
  while (!(*expected)->done()) {
    const absl::StatusOr<StepReport> wanted = (*expected)->Step();
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    std::thread([&] {
      const absl::StatusOr<StepReport> report = (*moving)->Step();
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->loss, wanted->loss);
    }).join();
  }
  std::thread([&] { moving->reset(); }).join();
}

TEST_F(LifetimesTest, AnotherThreadStopsARunThatIsThenDestroyed) {
  const Job job = LifetimesJob({"lr_schedule.steps=1000000"});
  for (int i = 0; i < 3; ++i) {
    auto trainer = Create(job, &data_);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    std::atomic<bool> runs = false;
    std::thread other([&] {
      while (!runs) std::this_thread::yield();
      (*trainer)->RequestStop();
    });
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport&) {
      runs = true;
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LT((*trainer)->steps_done(), 1000000);
    other.join();
  }
}

// One of three ranks fails in one of its three micro-batches, while the others compute or wait for it.
TEST_F(LifetimesTest, ATrainerIsDestroyedInTheMiddleOfAStep) {
  const Job job = MakeJob({"sharding.ranks=3"});
  int64_t threads = 0, resident = 0;
  for (int i = 0; i < 9 + std::max(9, Creations() / 10); ++i) {
    if (i == 9) {
      threads = Threads();
      resident = ResidentBytes();
    }
    std::vector<int32_t> out_of_range(kPositions, kIds);
    std::atomic<int> losses = 0;
    const testing::WrongBackend backend([&](Op& op) {
      auto* loss = op.As<CrossEntropy>();
      if (loss != nullptr && losses++ == i % 9) loss->targets_T.data = out_of_range.data();
    });
    auto trainer = Trainer::Create(job, {.backend = &backend, .data = &data_});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const absl::StatusOr<StepReport> report = (*trainer)->Step();
    EXPECT_EQ(report.status().code(), absl::StatusCode::kOutOfRange) << report.status();
  }
  AwaitThreads(threads);
  if (ResidenceIsOurs()) {
    EXPECT_LT(ResidentBytes() - resident, 2 << 20);
  }
}

// A file system that creates no files while its gate is shut.
class GatedFiles : public FaultyFileSystem {
 public:
  GatedFiles() : FaultyFileSystem({}) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    waits_ = true;
    const std::lock_guard lock(gate_);
    return FaultyFileSystem::Create(path);
  }
  void Shut() { gate_.lock(); }
  void Open() { gate_.unlock(); }
  bool waits() const { return waits_; }

 private:
  std::mutex gate_;
  std::atomic<bool> waits_ = false;
};

// A callback that throws is the only way out of Run while a save is under way.
TEST_F(LifetimesTest, ATrainerThatIsDestroyedDuringASaveCompletesIt) {
  const Job job = LifetimesJob({"checkpoint.every_steps=2"});
  GatedFiles files;
  {
    const auto backend = CreateBackend(job);
    auto trainer = Trainer::Create(
        job, {.backend = backend->get(), .data = &data_, .checkpoint_folder = Path("run"), .files = &files});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    files.Shut();
    EXPECT_THROW(
        {
          const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
            if (report.step == 3) throw std::runtime_error("enough");
            return absl::OkStatus();
          }});
          ADD_FAILURE() << status;
        },
        std::runtime_error);
    while (!files.waits()) std::this_thread::yield();
    files.Open();
  }
  const absl::StatusOr<CheckpointReader> saved = CheckpointReader::Open(From("run", 2).path);
  EXPECT_TRUE(saved.ok()) << saved.status();
}

TEST_F(LifetimesTest, AStartThatFailsHalfWayLeavesNothing) {
  const Job job = LifetimesJob();
  Iterator iterator;
  PullCallbacks callbacks = iterator.Callbacks();
  callbacks.next = nullptr;  // Found after the arenas were allocated, when the data starts.
  PullSource broken(Describe(false), callbacks);
  int64_t threads = 0, resident = 0;
  for (int i = 0; i < 5 + std::max(10, Creations() / 10); ++i) {
    if (i == 5) {
      threads = Threads();
      resident = ResidentBytes();
    }
    EXPECT_FALSE(Create(LifetimesJob({"data.order=SEQUENTIAL"}), &broken).ok());
    EXPECT_EQ(Create(job, &data_, "empty", {.from = ResumeFrom::kLatest}).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(Create(LifetimesJob({"memory.budget_bytes=10000"}), &data_).status().code(),
            absl::StatusCode::kResourceExhausted);
  AwaitThreads(threads);
  if (ResidenceIsOurs()) {
    EXPECT_LT(ResidentBytes() - resident, 2 << 20);
  }
  EXPECT_TRUE(Create(job, &data_, "empty").ok());  // The folder is not locked.
}

}  // namespace
}  // namespace shale

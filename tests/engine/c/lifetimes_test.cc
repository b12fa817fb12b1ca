// Laws of trainers and generators that come and go in one process, through the C interface: each begins and ends with
// all its threads and its memory, whenever it ends.
//
//   lifetimes_test --creations=1000   creates and destroys that many trainers instead of 30
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/c/c_fixture.h"
#include "tests/engine/files/io/process_resources.h"
#include "tests/engine/run/train/creations.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Where callbacks of the engine wait until the test lets them go on.
class Gate {
 public:
  void Shut() { Set(false); }
  void Open() { Set(true); }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void AwaitVisitor() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

// Samples as of ReadMadeUp, behind a gate.
struct GatedData {
  Gate gate;
  std::atomic<shale_code> code = SHALE_OK;  // What a read returns.
  std::atomic<int> reads = 0, reading = 0;
  int free_reads = 0;  // So many reads do not wait.

  shale_data Description() {
    shale_data data = MadeUp();
    data.user = this;
    data.read = [](void* user, int64_t sample, const shale_sample* out, shale_error* error) {
      auto& self = *static_cast<GatedData*>(user);
      ++self.reading;
      if (self.reads++ >= self.free_reads) self.gate.Pass();
      const shale_code made = ReadMadeUp(nullptr, sample, out, error);
      --self.reading;
      return self.code == SHALE_OK ? made : self.code.load();
    };
    return data;
  }
};

// Trains a job to its end and returns the losses. Any number of threads may call this at once.
std::vector<double> LossesOf(shale_job job, const shale_trainer_options& options, bool saves = false) {
  shale_error error = SHALE_INIT(shale_error);
  shale_trainer trainer = 0;
  std::vector<double> losses;
  EXPECT_EQ(shale_trainer_create(job, &options, &trainer, &error), SHALE_OK) << error.message;
  shale_step_report report = SHALE_INIT(shale_step_report);
  while (shale_trainer_step(trainer, &report, &error) == SHALE_OK) losses.push_back(report.loss);
  EXPECT_EQ(error.code, SHALE_FAILED_PRECONDITION) << error.message;
  if (saves) {
    EXPECT_EQ(shale_trainer_save(trainer, nullptr, 0, nullptr, &error), SHALE_OK) << error.message;
  }
  EXPECT_EQ(shale_trainer_free(trainer, &error), SHALE_OK) << error.message;
  return losses;
}

// Draws tokens from the newest checkpoint of a folder. Any number of threads may call this at once.
std::vector<int32_t> Drawn(const std::string& folder, const shale_model& model) {
  shale_error error = SHALE_INIT(shale_error);
  shale_generator generator = 0;
  EXPECT_EQ(shale_generator_create(folder.c_str(), &model, &generator, &error), SHALE_OK) << error.message;
  const int32_t prompt[] = {1, 2, 3};
  std::vector<int32_t> tokens;
  const auto keep = [](void* user, int32_t token) {
    static_cast<std::vector<int32_t>*>(user)->push_back(token);
    return 0;
  };
  EXPECT_EQ(shale_generator_generate(generator, prompt, 3, 5, nullptr, keep, &tokens, &error), SHALE_OK)
      << error.message;
  EXPECT_EQ(shale_generator_free(generator, &error), SHALE_OK) << error.message;
  return tokens;
}

class LifetimesInC : public CTest {
 protected:
  // Returns a job with two ranks of two threads, which generates and saves while it trains. The program brings its
  // model and its data.
  shale_job MakeJob(const std::vector<std::string>& more = {}) {
    std::vector<std::string> overrides = {"runtime.generate=true", "runtime.threads_per_rank=2",
                                          "checkpoint.asynchronous=true"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    std::vector<const char*> pointers;
    for (const std::string& each : overrides) pointers.push_back(each.c_str());
    shale_job job = 0;
    EXPECT_EQ(shale_job_parse(kSmallJob, "job.textproto", pointers.data(), pointers.size(), SHALE_MODEL_FROM_PROGRAM,
                              &job, &error_),
              SHALE_OK)
        << error_.message;
    return job;
  }
  shale_trainer_options Options(const shale_data& data, const std::string* folder = nullptr) {
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    options.model = &model_;
    options.data = &data;
    if (folder != nullptr) options.checkpoint_folder = folder->c_str();
    return options;
  }
  // Calls `begin_and_end` again and again, and expects that the process then has the threads and the memory that it had
  // after the first calls.
  void ExpectNothingLeft(int calls, const std::function<void(int)>& begin_and_end) {
    const int first = std::min(calls, 10);  // After these, libraries and the allocator have what they keep.
    int64_t threads = 0, resident = 0;
    for (int i = 0; i < first + calls && !HasFailure(); ++i) {
      if (i == first) {
        threads = Threads();
        resident = ResidentBytes();
      }
      begin_and_end(i);
    }
    if (HasFailure()) return;
    AwaitThreads(threads);
    // A thread's stack alone would count some 10 KiB each time.
    if (ResidenceIsOurs()) {
      EXPECT_LT(ResidentBytes() - resident, 2 << 20);
    }
  }

  const shale_model model_ = [] {
    shale_model model = Mlp();
    model.vocabulary = kMadeUpTokens;  // For plans, which do not know the data.
    return model;
  }();
  const shale_data made_up_ = MadeUp();
};

TEST_F(LifetimesInC, ThreadsAndMemoryAreThoseOfBeforeAfterAnyNumberOfTrainersAndGenerators) {
  const std::string folder = Path("checkpoints");
  const shale_job saving = MakeJob();
  LossesOf(saving, Options(made_up_, &folder), /*saves=*/true);
  shale_job_free(saving, nullptr);
  std::atomic<int> events = 0;
  ExpectNothingLeft(Creations(), [&](int i) {
    if (i % 5 == 0) {
      EXPECT_THAT(Drawn(folder, model_), SizeIs(5));
    }
    const shale_job job = MakeJob();
    shale_trainer_options options = Options(made_up_);
    options.on_event = [](void* user, const char*) { ++*static_cast<std::atomic<int>*>(user); };
    options.on_event_user = &events;
    const shale_trainer trainer = Create(job, options);
    ASSERT_NE(trainer, 0) << error_.message;
    if (i % 3 != 0) {  // One of three ends before its first step.
      ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
      const int32_t prompt[] = {1, 2};
      const auto ignore = [](void*, int32_t) { return 0; };
      ASSERT_EQ(shale_trainer_generate(trainer, prompt, 2, 3, nullptr, ignore, nullptr, &error_), SHALE_OK)
          << error_.message;
    }
    shale_plan plan = 0;
    ASSERT_EQ(shale_plan_create(job, &model_, &plan, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK);
    EXPECT_EQ(shale_plan_free(plan, &error_), SHALE_OK);
    EXPECT_EQ(shale_job_free(job, &error_), SHALE_OK);
  });
  EXPECT_GE(events, Creations());
}

TEST_F(LifetimesInC, TwoTrainersAndAGeneratorRunSideBySide) {
  const shale_job first_job = MakeJob();
  const shale_job second_job = MakeJob({"sharding.ranks=3", "runtime.threads_per_rank=1", "runtime.seed=2"});
  const std::string folder = Path("checkpoints");
  const shale_trainer_options options = Options(made_up_);
  const std::vector<double> first = LossesOf(first_job, Options(made_up_, &folder), /*saves=*/true);
  const std::vector<double> second = LossesOf(second_job, options);
  const std::vector<int32_t> tokens = Drawn(folder, model_);
  ASSERT_THAT(first, SizeIs(6));
  ASSERT_THAT(tokens, SizeIs(5));
  const int64_t threads = Threads();
  for (int i = 0; i < std::max(2, Creations() / 30); ++i) {
    std::thread one([&] { EXPECT_EQ(LossesOf(first_job, options), first); });
    std::thread other([&] { EXPECT_EQ(LossesOf(second_job, options), second); });
    std::thread generator([&] { EXPECT_EQ(Drawn(folder, model_), tokens); });
    one.join();
    other.join();
    generator.join();
  }
  AwaitThreads(threads);
  shale_job_free(first_job, nullptr);
  shale_job_free(second_job, nullptr);
}

// The step waits for a sample while another thread frees the trainer, asks for a stop and lets the sample fail or come.
TEST_F(LifetimesInC, ATrainerIsFreedInTheMiddleOfAStep) {
  const shale_job job = MakeJob();
  ExpectNothingLeft(std::max(5, Creations() / 10), [&](int i) {
    GatedData gated;
    gated.gate.Shut();
    const shale_data data = gated.Description();
    const shale_trainer trainer = Create(job, Options(data));
    ASSERT_NE(trainer, 0) << error_.message;
    shale_code ended = SHALE_UNKNOWN;
    std::thread steps([&] { ended = shale_trainer_step(trainer, nullptr, nullptr); });
    gated.gate.AwaitVisitor();
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_UNAVAILABLE);
    EXPECT_THAT(error_.message, HasSubstr("another call uses this trainer"));
    EXPECT_EQ(shale_trainer_request_stop(trainer, &error_), SHALE_OK);
    const shale_code wanted = i % 2 == 0 ? SHALE_OK : SHALE_CANCELLED;
    gated.code = wanted;
    gated.gate.Open();
    steps.join();
    EXPECT_EQ(ended, wanted);
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_INVALID_ARGUMENT);
  });
  shale_job_free(job, nullptr);
}

// The first step is done, and the samples of the second are being read.
TEST_F(LifetimesInC, NoSampleIsReadAfterATrainerIsFreed) {
  const shale_job job = MakeJob();
  ExpectNothingLeft(std::max(5, Creations() / 10), [&](int) {
    GatedData gated;
    gated.free_reads = 4;  // The global batch.
    gated.gate.Shut();
    const shale_data data = gated.Description();
    const shale_trainer trainer = Create(job, Options(data));
    ASSERT_NE(trainer, 0) << error_.message;
    ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
    gated.gate.AwaitVisitor();
    std::thread opens([&] { gated.gate.Open(); });
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(gated.reading, 0);
    opens.join();
    EXPECT_LE(gated.reads, 8);
  });
  shale_job_free(job, nullptr);
}

// One thread steps or saves without a pause, and another frees the trainer as soon as it can.
TEST_F(LifetimesInC, ATrainerMayBeFreedBesideAnyCall) {
  const shale_job job = MakeJob({"lr_schedule.steps=1000000"});
  const std::string folder = Path("checkpoints"), exported = Path("model.safetensors");
  for (int i = 0; i < std::max(6, Creations() / 30); ++i) {
    shale_trainer_options options = Options(made_up_, &folder);
    options.resume = SHALE_RESUME_LATEST_OR_START;
    const shale_trainer trainer = Create(job, options);
    ASSERT_NE(trainer, 0) << error_.message;
    std::atomic<int> calls = 0;
    std::vector<shale_code> codes;
    std::thread user([&] {
      do {
        codes.push_back(calls % 2 == 0 || i % 2 == 0 ? shale_trainer_step(trainer, nullptr, nullptr)
                                                     : shale_trainer_save(trainer, nullptr, 0, nullptr, nullptr));
      } while (++calls < 12 && codes.back() == SHALE_OK);
    });
    while (calls < 2 + i % 5) std::this_thread::yield();
    shale_code freed;
    while ((freed = shale_trainer_free(trainer, &error_)) == SHALE_UNAVAILABLE) std::this_thread::yield();
    EXPECT_EQ(freed, SHALE_OK) << error_.message;
    user.join();
    const shale_code last = codes.back();
    codes.pop_back();
    EXPECT_THAT(codes, ::testing::Each(SHALE_OK));
    EXPECT_TRUE(last == SHALE_OK || last == SHALE_INVALID_ARGUMENT) << last;
    if (i % 2 == 0) continue;
    EXPECT_EQ(shale_export_parameters(folder.c_str(), SHALE_F32, exported.c_str(), &error_), SHALE_OK)
        << error_.message;
  }
  shale_job_free(job, nullptr);
}

// A callback of a program in C++ may throw. Then the run ends beside a save that began a step before.
TEST_F(LifetimesInC, ATrainerThatIsFreedDuringASaveCompletesIt) {
  const shale_job job = MakeJob({"checkpoint.every_steps=2"});
  const int64_t threads = Threads();
  for (int i = 0; i < 3; ++i) {
    const std::string folder = Path(absl::StrCat("checkpoints", i));
    const shale_trainer trainer = Create(job, Options(made_up_, &folder));
    ASSERT_NE(trainer, 0) << error_.message;
    const auto on_step = [](void*, const shale_step_report* report) -> int32_t {
      if (report->step == 3) throw std::runtime_error("enough");
      return 0;
    };
    EXPECT_EQ(shale_trainer_run(trainer, on_step, nullptr, &error_), SHALE_INTERNAL);
    EXPECT_STREQ(error_.message, "enough");
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK) << error_.message;
    EXPECT_THAT(Drawn(folder, model_), SizeIs(5));
  }
  AwaitThreads(threads);
  shale_job_free(job, nullptr);
}

// While one thread builds the model of a trainer, another frees its job and trains another one.
TEST_F(LifetimesInC, AJobIsFreedInTheMiddleOfAStart) {
  const std::vector<double> expected = [&] {
    const shale_job job = MakeJob();
    std::vector<double> losses = LossesOf(job, Options(made_up_));
    shale_job_free(job, nullptr);
    return losses;
  }();
  ASSERT_THAT(expected, SizeIs(6));
  const int64_t threads = Threads();
  Gate gate;
  gate.Shut();
  shale_model model = Mlp();
  model.user = &gate;
  model.build = [](void* user, shale_builder b, const shale_graph_options* options, shale_error* error) {
    static_cast<Gate*>(user)->Pass();
    return BuildMlp(nullptr, b, options, error);
  };
  const shale_job job = MakeJob();
  std::thread starts([&] {
    shale_trainer_options options = Options(made_up_);
    options.model = &model;
    EXPECT_EQ(LossesOf(job, options), expected);
  });
  gate.AwaitVisitor();
  EXPECT_EQ(shale_job_free(job, &error_), SHALE_OK) << error_.message;
  const shale_job other = MakeJob();
  EXPECT_EQ(LossesOf(other, Options(made_up_)), expected);
  shale_job_free(other, nullptr);
  gate.Open();
  starts.join();
  AwaitThreads(threads);
}

TEST_F(LifetimesInC, AStartThatFailsLeavesNothing) {
  const std::string folder = Path("checkpoints"), empty = Path("empty");
  const shale_job job = MakeJob({"data.order=SEQUENTIAL"});
  const shale_job too_large = MakeJob({"data.order=SEQUENTIAL", "memory.budget_bytes=10000"});
  int64_t next = 0;
  shale_data in_order = MadeUp();
  in_order.user = &next;
  in_order.in_order = 1;
  in_order.save = [](void*, char*, size_t, size_t* used, shale_error*) -> shale_code {
    *used = 0;
    return SHALE_OK;
  };
  in_order.restore = [](void*, const char*, size_t, shale_error*) -> shale_code { return SHALE_DATA_LOSS; };
  EXPECT_THAT(LossesOf(job, Options(in_order, &folder), /*saves=*/true), SizeIs(6));
  shale_model broken = Mlp();
  broken.build = [](void*, shale_builder, const shale_graph_options*, shale_error*) -> shale_code {
    return SHALE_ABORTED;
  };
  const auto expect_error = [&](shale_job started, const shale_trainer_options& options, shale_code code) {
    shale_trainer trainer = 0;
    EXPECT_EQ(shale_trainer_create(started, &options, &trainer, &error_), code) << error_.message;
    EXPECT_EQ(trainer, 0);
  };
  ExpectNothingLeft(std::max(5, Creations() / 10), [&](int) {
    shale_trainer_options options = Options(in_order);
    expect_error(too_large, options, SHALE_RESOURCE_EXHAUSTED);
    options.model = &broken;
    expect_error(job, options, SHALE_ABORTED);
    options = Options(in_order, &empty);
    options.resume = SHALE_RESUME_LATEST;
    expect_error(job, options, SHALE_NOT_FOUND);
    options = Options(in_order, &folder);
    options.resume = SHALE_RESUME_LATEST;
    expect_error(job, options, SHALE_DATA_LOSS);
  });
  EXPECT_THAT(LossesOf(job, Options(in_order, &empty)), SizeIs(6));  // The folder is not locked.
  shale_job_free(job, nullptr);
  shale_job_free(too_large, nullptr);
}

}  // namespace
}  // namespace shale

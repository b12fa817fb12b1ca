// A run allocates the memory of its ranks before its first step. Each rank has two allocations of the planned sizes,
// the arena and the pinned host memory. Nothing that a run does later asks a device for more.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "kernels/device/device.h"
#include "tests/engine/reference_backend.h"

namespace shale::testing {
namespace {

// The sizes in bytes that were asked of devices, in order.
struct Allocations {
  std::vector<int64_t> arenas, pinned;
};

class CountingDevice : public Device {
 public:
  CountingDevice(std::shared_ptr<Device> device, Allocations& allocations)
      : device_(std::move(device)), allocations_(allocations) {}
  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override {
    allocations_.arenas.push_back(size_bytes);
    return device_->Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override {
    allocations_.pinned.push_back(size_bytes);
    return device_->AllocatePinned(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override {
    return device_->CreateStream(name);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return device_->CreateEvent(); }

 private:
  const std::shared_ptr<Device> device_;
  Allocations& allocations_;
};

class CountingBackend : public Backend {
 public:
  explicit CountingBackend(Allocations& allocations) : allocations_(allocations) {}
  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    return reference_->CreateOps(ranks, device);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    std::vector<std::shared_ptr<Device>> devices = *reference_->CreateDevices(ranks, synchronous);
    for (auto& device : devices) device = std::make_shared<CountingDevice>(std::move(device), allocations_);
    return devices;
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    return reference_->CreateGroup(group);
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return reference_->DefaultBudget(ranks); }
  double NominalPeakFlops(DType) const override { return 1; }  // With 0 it would be measured, in another arena.

 private:
  const std::unique_ptr<Backend> reference_ = CreateReferenceBackend();
  Allocations& allocations_;
};

TEST(Allocations, ARunAllocatesOneArenaAndOnePieceOfPinnedMemoryForEachRank) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/allocations.", getpid());
  std::filesystem::create_directories(folder);
  const std::string text = absl::StrCat(folder, "/text");
  std::ofstream(text) << std::string(2000, 'a') << "the quick brown fox";
  const absl::StatusOr<Job> job = ParseJobText(absl::StrCat(R"(
model { decoder { family: LLAMA width: 16 layers: 1 heads: 2 hidden: 24 } }
batch { global_batch: 4 micro_batch: 1 sequence_length: 16 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 4 warmup_steps: 1 }
checkpoint { every_steps: 1 }
runtime { generate: true }
data { path: ")",
                                                            text, "\" evaluation_fraction: 0.2 }\n"),
                                               "job.textproto", {});
  ASSERT_TRUE(job.ok()) << job.status();
  // The first run starts from scratch, the second one resumes where the first ended.
  for (int run = 0; run < 2; ++run) {
    Allocations allocations;
    const CountingBackend backend(allocations);
    const absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        Trainer::Create(*job, {.backend = &backend,
                               .checkpoint_folder = absl::StrCat(folder, "/checkpoints"),
                               .resume = {.from = run > 0 ? ResumeFrom::kLatest : ResumeFrom::kNothing}});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    if (run == 0) {
      for (int64_t step = 1; step <= 2; ++step) {
        const absl::StatusOr<StepReport> report = (*trainer)->Step();
        ASSERT_TRUE(report.ok()) << report.status();
        ASSERT_TRUE((*trainer)->Evaluate(1).ok());
        ASSERT_TRUE((*trainer)->generator().Logits({'a'}).ok());
        const absl::StatusOr<std::string> saved = (*trainer)->SaveCheckpoint();
        ASSERT_TRUE(saved.ok()) << saved.status();
      }
    } else {  // Saves while training goes on.
      EXPECT_EQ((*trainer)->steps_done(), 2);
      int64_t checkpoints = 0;
      const absl::Status status = (*trainer)->Run({.on_checkpoint = [&](const CheckpointReport& report) {
        ++checkpoints;
        return report.status;
      }});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ((*trainer)->steps_done(), 4);
      EXPECT_EQ(checkpoints, 2);
    }
    const JobPlan& plan = (*trainer)->plan();
    EXPECT_EQ(allocations.arenas, std::vector<int64_t>(2, plan.arena_bytes)) << "run " << run;
    EXPECT_EQ(allocations.pinned, std::vector<int64_t>(2, plan.host_memory.total_bytes())) << "run " << run;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shale::testing

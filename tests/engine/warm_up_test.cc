// What a backend's libraries are asked before the start, and what they are asked later.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/run/runtime/backend.h"
#include "kernels/op_backend.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"
#include "tests/sharding/comm/tracing.h"

namespace shale::testing {
namespace {

// Returns all by which a library may choose an algorithm: shapes, strides, types and alignments.
std::string KeyOf(const Op& op) {
  std::string key(NameOf(op));
  VisitOperands(op, [&](absl::string_view name, const Tensor& t, Access) {
    if (!t.present()) return;
    absl::StrAppend(&key, " ", name, " ", ToString(t.dtype), " at ", reinterpret_cast<uintptr_t>(t.data) % 256, ":");
    for (int d = 0; d < t.rank; ++d) absl::StrAppend(&key, " ", t.dim(d), "/", t.stride(d));
  });
  return key;
}

struct Asked {
  std::set<std::string> before, later;
  int64_t launches_before = 0;
  bool started = false;
  std::vector<std::vector<CollectiveRecord>> collectives_before;  // By rank.
  std::deque<CollectiveTrace> collectives;

  void Start() {
    started = true;
    for (CollectiveTrace& trace : collectives) {
      collectives_before.push_back(trace.records());
      trace.Clear();
    }
  }
};

class AskedOps : public Ops {
 public:
  AskedOps(std::unique_ptr<Ops> inner, Asked* asked) : inner_(std::move(inner)), asked_(asked) {}
  int64_t ScratchBytes(const Op& op) const override { return inner_->ScratchBytes(op); }
  int64_t PackedBytes(const MatMul& op) const override { return inner_->PackedBytes(op); }
  absl::Status Prepare(const Op& op, int64_t scratch_bytes) override {
    Record(op);
    return inner_->Prepare(op, scratch_bytes);
  }

 protected:
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) override {
    Record(op);
    if (asked_ != nullptr && UsesLibrary(op) && !asked_->started) ++asked_->launches_before;
    return inner_->Launch(op, scratch, stream);
  }

 private:
  void Record(const Op& op) {
    if (asked_ != nullptr && UsesLibrary(op)) (asked_->started ? asked_->later : asked_->before).insert(KeyOf(op));
  }

  const std::unique_ptr<Ops> inner_;
  Asked* const asked_;
};

// Warms up. The arenas of one rank alone are recorded, since ranks ask at the same time.
class AskedBackend : public Backend {
 public:
  explicit AskedBackend(Asked& asked) : asked_(asked) {}
  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    Asked* const asked = device == nullptr || created_++ > 0 ? nullptr : &asked_;
    return std::make_unique<AskedOps>(inner_->CreateOps(ranks, device), asked);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return inner_->CreateDevices(ranks, synchronous);
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    return inner_->CreateGroup(group);
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return inner_->DefaultBudget(ranks); }
  bool warms_up() const override { return true; }
  absl::Status CheckMemory(const std::vector<std::shared_ptr<Device>>&, int64_t) const override {
    asked_.Start();
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Backend> inner_ = TestedBackend(OpsKind::kFast, /*threads=*/1);
  Asked& asked_;
  mutable int created_ = 0;
};

TEST(WarmUp, AsksTheLibrariesWhateverTheRunAsks) {
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Asked asked;
      const AskedBackend backend(asked);
      RunOptions options;
      options.backend = &backend;
      options.dtype = dtype;
      options.steps = 2;
      options.step.mesh = {1, 2};
      options.step.micro_batches = 3;
      options.step.accumulation = accumulation;
      const absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(6, 7, SmallDecoder().vocabulary, 1));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_GT(asked.later.size(), 4u);
      for (const std::string& key : asked.later) {
        EXPECT_TRUE(asked.before.count(key)) << key << "\nwas not asked before:\n" << absl::StrJoin(asked.before, "\n");
      }
    }
  }
}

// Once every layer of a model was warmed up, though all but the first one asked for what was known.
TEST(WarmUp, AsksOnceHoweverManyLayersAskForTheSame) {
  std::vector<int64_t> launches;
  for (const int64_t layers : {4, 9}) {
    Asked asked;
    const AskedBackend backend(asked);
    RunOptions options;
    options.backend = &backend;
    std::get<DecoderConfig>(options.model).layers = layers;
    options.step.accumulation = Accumulation::kLayered;
    const absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(3, 7, SmallDecoder().vocabulary, 1));
    ASSERT_TRUE(result.ok()) << result.status();
    for (const std::string& key : asked.later) EXPECT_TRUE(asked.before.count(key)) << key;
    launches.push_back(asked.launches_before);
  }
  EXPECT_EQ(launches[0], launches[1]);
}

// NCCL chooses an algorithm by kind, type and size, and takes memory at the first use of one.
TEST(WarmUp, RunsTheCollectivesThatTheRunRuns) {
  for (const Mesh& mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
    Asked asked;
    asked.collectives.resize(mesh.ranks());
    const AskedBackend backend(asked);
    RunOptions options;
    options.backend = &backend;
    options.dtype = DType::kBFloat16;
    options.step.mesh = mesh;
    options.wrap = [&](std::unique_ptr<Communicator> inner, int rank, StreamId stream) {
      return std::make_unique<TracingCommunicator>(std::move(inner), &asked.collectives[rank],
                                                   std::string(ToString(stream)));
    };
    const absl::StatusOr<RunResult> result =
        RunJob(options, RandomTokens(mesh.ranks(), 7, SmallDecoder().vocabulary, 1));
    ASSERT_TRUE(result.ok()) << result.status();
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto sizes = [](const std::vector<CollectiveRecord>& records) {
        std::set<std::string> found;
        for (const CollectiveRecord& record : records) {
          found.insert(absl::StrCat(record.label, " ", ToString(record.kind), " ", ToString(record.dtype), " ",
                                    record.elements));
        }
        return found;
      };
      EXPECT_GT(asked.collectives_before[rank].size(), 4u);
      EXPECT_EQ(sizes(asked.collectives_before[rank]), sizes(asked.collectives[rank].records()));
    }
  }
}

}  // namespace
}  // namespace shale::testing

// A backend of the reference ops that makes mistakes, as an op of one's own may.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/run/runtime/backend.h"
#include "kernels/op.h"
#include "tests/engine/reference_backend.h"

namespace shale::testing {

// Runs another op in the place of each op. It may change what it is given, but not the operands that are written.
using Mistake = std::function<void(Op& op)>;

class WrongOps : public Ops {
 public:
  WrongOps(std::unique_ptr<Ops> inner, const Mistake& mistake) : inner_(std::move(inner)), mistake_(mistake) {}
  int64_t ScratchBytes(const Op& op) const override { return inner_->ScratchBytes(op); }

 protected:
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) override {
    Op wrong = op;
    mistake_(wrong);
    return inner_->Launch(wrong, scratch, stream);
  }

 private:
  const std::unique_ptr<Ops> inner_;
  const Mistake mistake_;
};

class WrongBackend : public Backend {
 public:
  // The mistake is made on the threads of all ranks.
  explicit WrongBackend(Mistake mistake) : mistake_(std::move(mistake)) {}
  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    return std::make_unique<WrongOps>(inner_->CreateOps(ranks, device), mistake_);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return inner_->CreateDevices(ranks, synchronous);
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    return inner_->CreateGroup(group);
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return inner_->DefaultBudget(ranks); }

 private:
  const std::unique_ptr<Backend> inner_ = CreateReferenceBackend();
  const Mistake mistake_;
};

}  // namespace shale::testing

// UpdateInBackward: the pass that updates groups while the backward goes on.
#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include "engine/compile/program/accesses.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"

namespace shale {
namespace {

// The update of one group at the end of the plain program.
struct GroupUpdate {
  std::vector<InstructionId> totals;   // What makes the group's totals.
  InstructionId begin = -1, end = -1;  // From its PrepareUpdate to its Update, or to the all-gather of its weights.
  size_t completed = 0;                // The visit that completes its gradient.
};

class IntoBackward {
 public:
  IntoBackward(StepProgram& program, bool layered)
      : program_(program), layered_(layered), edit_(program), visits_(VisitsOf(program)) {}

  void Run(bool beside_next) {
    FindUpdates();
    FindTotals();
    OrderUpdates();
    for (auto first = updates_.begin(); first != updates_.end();) {
      const auto last = std::find_if(first, updates_.end(),
                                     [&](const GroupUpdate& update) { return update.completed != first->completed; });
      const size_t visit = beside_next ? NextBackward(first->completed) : first->completed;
      if (visit < visits_.size()) Move({first, last}, visit, /*ahead=*/beside_next);
      first = last;
    }
    edit_.KeepNumber(row_.where.symbol);
    edit_.Apply();
  }

 private:
  template <class T>
  T* OpAt(InstructionId id) {
    Op* op = std::get_if<Op>(&program_.instructions[id].action);
    return op == nullptr ? nullptr : op->As<T>();
  }

  // Returns, by buffer, the last visit that writes it.
  std::vector<size_t> LastWrites() const {
    std::vector<size_t> written(program_.buffers.size(), 0);
    for (size_t v = 0; v < visits_.size(); ++v) {
      for (InstructionId id = visits_[v].begin; id <= visits_[v].last; ++id) {
        VisitInstruction(program_.instructions[id], /*first_iteration=*/false,
                         [&](absl::string_view, const Tensor& t, Access access) {
                           if (access != Access::kRead) written[t.where.symbol] = v;
                         });
      }
    }
    return written;
  }

  void FindUpdates() {
    const std::vector<size_t> written = LastWrites();
    const auto size = static_cast<InstructionId>(program_.instructions.size());
    for (InstructionId id = program_.loops.back().begin; id < size; ++id) {
      if (const auto* prepare = OpAt<PrepareUpdate>(id)) {
        updates_.push_back({.begin = id});
        row_ = prepare->totals_3;
      }
      const auto* update = OpAt<Update>(id);
      if (update == nullptr) continue;
      const auto* widen = OpAt<Copy>(id - 1);
      const Tensor& gradient = widen == nullptr ? update->gradient_P : widen->from;
      updates_.back().completed = written[gradient.where.symbol];
      const bool gathers = id + 1 < size && std::holds_alternative<Collective>(program_.instructions[id + 1].action);
      updates_.back().end = gathers ? id + 2 : id + 1;
    }
  }

  void FindTotals() {
    for (InstructionId id = program_.loops.back().begin; id < updates_.front().begin; ++id) {
      std::vector<InstructionId>* totals = &of_all_;
      VisitInstruction(program_.instructions[id], /*first_iteration=*/false,
                       [&](absl::string_view, const Tensor& t, Access) {
                         if (t.where.symbol != row_.where.symbol) return;
                         totals = &updates_[t.where.offset_bytes / row_.extent_bytes()].totals;
                       });
      totals->push_back(id);
    }
  }

  // Sorts the updates by when they can run. The first one brings what the totals of all groups need, and the last one
  // counts the step.
  void OrderUpdates() {
    std::stable_sort(updates_.begin(), updates_.end(),
                     [](const GroupUpdate& x, const GroupUpdate& y) { return x.completed < y.completed; });
    std::vector<InstructionId>& first = updates_.front().totals;
    first.insert(first.begin(), of_all_.begin(), of_all_.end());
    for (const GroupUpdate& update : updates_) OpAt<PrepareUpdate>(update.begin)->counts = &update == &updates_.back();
  }

  // Returns the next visit with a backward, or the number of visits. After the first backward there is no forward
  // that is not recomputation.
  size_t NextBackward(size_t visit) const {
    do ++visit;
    while (visit < visits_.size() && program_.instructions[visits_[visit].last].phase == Phase::kRecompute);
    return visit;
  }

  // Moves the updates behind a visit, and their totals too, or with `ahead` before its reductions.
  void Move(const std::vector<GroupUpdate>& updates, size_t visit, bool ahead) {
    const InstructionId last = visits_[visit].last;
    InstructionId reductions = visits_[visit].begin;
    while (reductions <= last && program_.instructions[reductions].phase != Phase::kReduce) ++reductions;
    const bool reduces = reductions <= last;
    const auto move = [&](InstructionId id, bool before) {
      program_.instructions[id].last_iteration_only = !layered_ && program_.micro_batches > 1;
      if (before) return edit_.MoveBefore(reductions, id);
      // In LAYERED the visit is a loop over micro-batches, which its reductions follow.
      layered_ && !reduces ? edit_.MoveAfterLoop(last, id) : edit_.MoveAfter(last, id);
    };
    for (const GroupUpdate& update : updates) {
      for (const InstructionId id : update.totals) move(id, ahead && reduces);
    }
    for (const GroupUpdate& update : updates) {
      for (InstructionId id = update.begin; id < update.end; ++id) move(id, false);
    }
  }

  StepProgram& program_;
  const bool layered_;
  ProgramEdit edit_;
  const std::vector<VisitRange> visits_;
  std::vector<GroupUpdate> updates_;
  std::vector<InstructionId> of_all_;  // What the totals of all groups need.
  Tensor row_;                         // The totals of one group.
};

}  // namespace

void UpdateInBackward(StepProgram& program, Accumulation accumulation, int64_t ranks) {
  IntoBackward(program, accumulation == Accumulation::kLayered).Run(/*beside_next=*/ranks > 1);
}

}  // namespace shale

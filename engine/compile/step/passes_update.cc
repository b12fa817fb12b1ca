// UpdateOnHost and OffloadState: passes over the updates of a program.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"

namespace shale {
namespace {

const Op* OpAt(const StepProgram& program, InstructionId id) {
  return id < 0 ? nullptr : std::get_if<Op>(&program.instructions[id].action);
}

// The update of one group, and where the copies that it needs may stand. The other groups of its batch are updated with
// no visit between them.
struct UpdateSite {
  InstructionId update = -1;
  InstructionId widen = -1;  // The Copy that widens the gradient, or -1.
  // The first of the instructions with which a composed optimizer turns the gradient into a direction, which end right
  // before the update, or -1. They follow the Copy that widens the gradient.
  InstructionId direction = -1;
  // The first instruction that works for this group alone, or a PrepareUpdate right before it. If several optimizers
  // are prepared before the first update, that is the last of them, which may be another group's: copies may stand
  // there, too.
  InstructionId begin = -1;
  // Where its copies are issued: while the group before it in the batch is updated, or for the first two groups of the
  // batch during the visit before the batch. The last loop has no visits: there the first copies are at its beginning.
  InstructionId ahead = -1;
  InstructionId first_of_batch = -1;  // `begin` of the first site of the batch.

  // The first instruction that the update itself needs: that which reads the gradient. Without `direction`.
  InstructionId first() const { return widen < 0 ? update : widen; }
};

// Returns the first instruction of a visit that computes its micro-batch, not what prepares the visit for all of them.
InstructionId FirstOfMicroBatch(const StepProgram& program, const VisitRange& visit) {
  for (InstructionId id = visit.begin; id <= visit.last; ++id) {
    const Instruction& instruction = program.instructions[id];
    if (instruction.unit != visit.unit || instruction.micro_batch < 0) continue;
    const Op* op = OpAt(program, id);
    if (op == nullptr || !op->Is<ZeroRanges>()) return id;
  }
  return visit.begin;
}

// Returns whether an instruction writes one of these buffers.
bool Writes(const StepProgram& program, InstructionId id, const std::set<BufferId>& buffers) {
  bool writes = false;
  if (id < 0) return writes;
  VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                   [&](absl::string_view, const Tensor& t, Access access) {
                     writes |= access != Access::kRead && buffers.contains(t.where.symbol);
                   });
  return writes;
}

// Returns the site of the update `id`. What stands before it belongs to it if it writes what the site reads. A Copy
// that comes first of all that belongs to it reads the gradient, and so widens it. Any other Copy is a part of a
// direction.
UpdateSite SiteOf(const StepProgram& program, InstructionId id) {
  UpdateSite site{.update = id, .begin = id};
  std::set<BufferId> read;
  const auto before = [&](auto is) {
    return Writes(program, site.begin - 1, read) && is(OpAt(program, site.begin - 1));
  };
  const auto is_copy = [](const Op* op) { return op != nullptr && op->Is<Copy>(); };
  const auto is_prepare = [](const Op* op) { return op != nullptr && op->Is<PrepareUpdate>(); };
  const auto is_update = [](const Op* op) { return op != nullptr && op->Is<Update>(); };
  const auto add_reads = [&] {
    VisitInstruction(program.instructions[site.begin], /*first_iteration=*/false,
                     [&](absl::string_view, const Tensor& t, Access access) {
                       if (access != Access::kWrite) read.insert(t.where.symbol);
                     });
  };
  add_reads();
  while (before([&](const Op* op) { return !is_prepare(op) && !is_update(op); })) {
    --site.begin;
    add_reads();
  }
  const bool widens = site.begin < id && is_copy(OpAt(program, site.begin));
  if (widens) site.widen = site.begin;
  const InstructionId direction = widens ? site.begin + 1 : site.begin;
  if (direction < id) site.direction = direction;
  if (site.begin > 0 && is_prepare(OpAt(program, site.begin - 1))) --site.begin;
  return site;
}

// Returns the sites of all updates in order. `visits`: those of the program.
std::vector<UpdateSite> UpdateSitesOf(const StepProgram& program, const std::vector<VisitRange>& visits) {
  std::vector<UpdateSite> sites;
  size_t visit = 0, batch = 0;  // Visits that begin before the site; the first site of its batch.
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    const Op* op = OpAt(program, id);
    if (op == nullptr || !op->Is<Update>()) continue;
    UpdateSite site = SiteOf(program, id);
    const size_t visits_before = visit;
    while (visit < visits.size() && visits[visit].begin < id) ++visit;
    const bool in_last_loop = id >= program.loops.back().begin;
    const bool begins =
        sites.empty() || visit != visits_before || (in_last_loop && sites.back().update < program.loops.back().begin);
    if (begins) batch = sites.size();
    site.first_of_batch = begins ? site.begin : sites[batch].begin;
    if (sites.size() > batch + 1) {
      site.ahead = sites.back().begin;
    } else {
      site.ahead =
          in_last_loop || visit == 0 ? program.loops.back().begin : FirstOfMicroBatch(program, visits[visit - 1]);
    }
    sites.push_back(site);
  }
  return sites;
}

// Moves the updates of a program to the host.
class HostUpdates {
 public:
  HostUpdates(StepProgram& program, absl::Span<const Tensor> host_weights)
      : program_(program),
        host_weights_(host_weights),
        edit_(program),
        visits_(VisitsOf(program)),
        last_write_(program.buffers.size(), -1) {
    for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
      if (program.instructions[id].phase == Phase::kUpdate) continue;
      VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                       [&](absl::string_view, const Tensor& t, Access access) {
                         if (access != Access::kRead) last_write_[t.where.symbol] = id;
                       });
    }
  }

  void Run() {
    const std::vector<UpdateSite> sites = UpdateSitesOf(program_, visits_);
    in_backward_ = sites.front().update < program_.loops.back().begin;
    for (const UpdateSite& site : sites) MoveGradient(site);
    const UpdateSite* before = nullptr;
    for (const UpdateSite& site : sites) {
      // The weights of the group before come back while this one is updated.
      if (before != nullptr) ReturnWeights(*before, site.first(), site.update);
      before = &site;
      MoveToHost(site);
    }
    // Those of the last group come back when the micro-batches are through.
    const InstructionId end = program_.loops.back().begin;
    ReturnWeights(*before, std::max(before->update + 1, end), end);
    edit_.Apply();
    // The copies of the last batch run beside its updates.
    for (const BufferId gradient : held_to_end_) program_.buffers[gradient].held_until = LastOfUpdates();
  }

 private:
  Update& UpdateAt(const UpdateSite& site) {
    return *std::get<Op>(program_.instructions[site.update].action).As<Update>();
  }

  Tensor OnHost(const Tensor& device, BufferCategory category) {
    return edit_.AddTensor(absl::StrCat(program_.buffers[device.where.symbol].name, ".on_host"), category, device,
                           MemoryKind::kHost);
  }

  Tensor& GradientAt(const UpdateSite& site) {
    return site.widen < 0 ? UpdateAt(site).gradient_P
                          : std::get<Op>(program_.instructions[site.widen].action).As<Copy>()->from;
  }

  // Copies a gradient to the host as soon as it is complete and its turn comes.
  void MoveGradient(const UpdateSite& site) {
    Tensor& gradient = GradientAt(site);
    const Tensor device = gradient;
    gradient = OnHost(device, program_.buffers[device.where.symbol].category);
    const InstructionId at = last_write_[device.where.symbol] < site.ahead ? site.ahead : site.first_of_batch;
    edit_.InsertAhead(at, site.update, CopyInstruction(program_.instructions[site.update], device, gradient, true));
    // The backward beside which the copy runs does not wait for it: the next one, or that before the update.
    const auto visit = std::find_if(visits_.begin(), visits_.end(), [&](const VisitRange& v) {
      const Phase phase = program_.instructions[v.last].phase;
      return v.last >= at && phase != Phase::kForward && phase != Phase::kRecompute;
    });
    InstructionId& held_until = program_.buffers[device.where.symbol].held_until;
    if (visit == visits_.end()) {
      if (in_backward_) held_to_end_.push_back(device.where.symbol);
    } else {
      held_until = visit->last < site.first_of_batch ? site.first_of_batch - 1 : visit->last;
    }
  }

  void MoveToHost(const UpdateSite& site) {
    if (site.widen >= 0) {
      const Op& widen = std::get<Op>(program_.instructions[site.widen].action);
      program_.buffers[widen.As<Copy>()->to.where.symbol].memory = MemoryKind::kHost;
      program_.instructions[site.widen].stream = StreamId::kHost;
    }
    Update& update = UpdateAt(site);
    update.update_5 = MoveScalar(site, update.update_5);
    update.number_1 = MoveScalar(site, update.number_1);
    returned_ = update.weight_P;
    update.weight_P = host_weights_[update.group];
    program_.instructions[site.update].stream = StreamId::kHost;
  }

  Tensor MoveScalar(const UpdateSite& site, const Tensor& device) {
    if (!device.present()) return {};
    const auto [at, is_new] = scalars_.try_emplace(device.where.symbol);
    if (!is_new) return at->second;
    at->second = OnHost(device, BufferCategory::kData);
    Instruction copy = CopyInstruction(program_.instructions[site.update], device, at->second, /*to_host=*/true);
    // On the host stream, because the copy stream would have to wait for the norm.
    copy.stream = StreamId::kHost;
    edit_.InsertBefore(site.first(), std::move(copy));
    return at->second;
  }

  // Copies the weights that MoveToHost updated last to the device, before instruction `at`. The copy is issued as often
  // as instruction `like`.
  void ReturnWeights(const UpdateSite& site, InstructionId at, InstructionId like) {
    const Tensor& host = host_weights_[UpdateAt(site).group];
    if (host.where == returned_.where) return;
    Instruction copy = CopyInstruction(program_.instructions[site.update], returned_, host, /*to_host=*/false);
    copy.last_iteration_only = program_.instructions[like].last_iteration_only;
    edit_.InsertBefore(at, copy);
    const auto* gather = std::get_if<Collective>(&program_.instructions[site.update + 1].action);
    if (gather == nullptr || gather->local.where != returned_.where) return;
    program_.instructions[site.update + 1].last_iteration_only = copy.last_iteration_only;
    edit_.MoveBefore(at, site.update + 1);
  }

  // Returns the last instruction that updates a group or brings its weights back.
  InstructionId LastOfUpdates() const {
    InstructionId last = static_cast<InstructionId>(program_.instructions.size()) - 1;
    while (program_.instructions[last].stream != StreamId::kHost) --last;
    const auto brings = [&](InstructionId id) {
      const StreamId stream = program_.instructions[id].stream;
      return program_.instructions[id].phase == Phase::kUpdate &&
             (stream == StreamId::kCopy || stream == StreamId::kGather);
    };
    while (brings(last + 1)) ++last;
    return last;
  }

  StepProgram& program_;
  const absl::Span<const Tensor> host_weights_;
  ProgramEdit edit_;
  const std::vector<VisitRange> visits_;
  std::vector<InstructionId> last_write_;  // By buffer: the last instruction before the updates that writes it, or -1.
  std::vector<BufferId> held_to_end_;
  bool in_backward_ = false;            // Whether units are updated between visits.
  Tensor returned_;                     // The weights on the device of the group that MoveToHost handled last.
  std::map<BufferId, Tensor> scalars_;  // Copies in host memory, by the buffer of the scalar.
};

bool IsOnHost(const StepProgram& program, const Tensor& t) {
  return t.present() && program.buffers[t.where.symbol].memory == MemoryKind::kHost;
}

// Adds a buffer of the arena for a tensor in host memory.
Tensor AddFetched(const StepProgram& program, ProgramEdit& edit, const Tensor& host) {
  const Buffer& buffer = program.buffers[host.where.symbol];
  const BufferCategory category = buffer.category;
  return edit.AddTensor(absl::StrCat(buffer.name, ".fetched"), category, host);
}

// Copies the shards that all-gathers read into the arena. With one shard, the copy takes the place of the all-gather.
void FetchForGathers(StepProgram& program, ProgramEdit& edit) {
  // The all-gathers of the visit before, and of the one before that: the first of each.
  InstructionId first = -1, before = -1;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    Instruction& instruction = program.instructions[id];
    auto* gather = std::get_if<Collective>(&instruction.action);
    if (gather == nullptr || gather->kind != CollectiveKind::kAllGather || !IsOnHost(program, gather->local)) continue;
    if (gather->local.extent_bytes() == gather->full.extent_bytes()) {
      instruction.stream = StreamId::kCopy;
      instruction.action = Transfer{.device = gather->full, .host = gather->local};
      continue;
    }
    const bool same_visit = first >= 0 && program.instructions[first].unit == instruction.unit &&
                            program.instructions[first].phase == instruction.phase;
    if (!same_visit) before = std::exchange(first, id);
    const Tensor host = gather->local;
    gather->local = AddFetched(program, edit, host);
    edit.InsertBefore(before < 0 ? first : before,
                      CopyInstruction(instruction, gather->local, host, /*to_host=*/false));
  }
}

// Copies what updates on the device read and write into the arena and back. What makes a direction for an update reads
// and writes the same copies.
void FetchForUpdates(StepProgram& program, ProgramEdit& edit) {
  for (const UpdateSite& site : UpdateSitesOf(program, VisitsOf(program))) {
    const Instruction& update = program.instructions[site.update];
    if (update.stream == StreamId::kHost) continue;
    std::map<BufferId, Tensor> fetched;  // By the buffer in host memory.
    const auto fetch = [&](Tensor& t) {
      if (!IsOnHost(program, t)) return;
      const Tensor host = t;
      const auto [at, is_new] = fetched.try_emplace(host.where.symbol);
      if (is_new) {
        at->second = AddFetched(program, edit, host);
        edit.InsertAhead(site.ahead, site.update, CopyInstruction(update, at->second, host, /*to_host=*/false));
        edit.InsertAfter(site.update, CopyInstruction(update, at->second, host, /*to_host=*/true));
      }
      t = at->second;
    };
    ChangeOperands(program.instructions[site.update], fetch);
    if (site.direction < 0) continue;
    for (InstructionId id = site.direction; id < site.update; ++id) ChangeOperands(program.instructions[id], fetch);
  }
}

}  // namespace

bool HasUpdates(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op != nullptr && op->Is<Update>();
  });
}

void UpdateOnHost(StepProgram& program, absl::Span<const Tensor> host_weights) {
  HostUpdates(program, host_weights).Run();
}

void OffloadState(StepProgram& program) {
  ProgramEdit edit(program);
  FetchForGathers(program, edit);
  FetchForUpdates(program, edit);
  edit.Apply();
}

}  // namespace shale

// RoundInBackward: the pass that rounds what a rank sends as soon as it is complete.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// An operand in the fp32 gradient of a unit.
struct GradientAccess {
  InstructionId id = -1;
  ElementRange elements;    // Of the gradient.
  bool is_written = false;  // Whether a matmul writes all of them at once, in every iteration.
};

// The fp32 gradient of a unit, which is rounded as a whole, and what the pass makes of it.
struct WideGradient {
  InstructionId rounding = -1;
  std::vector<InstructionId> zeroings;   // They zero what no other op writes.
  std::vector<GradientAccess> accesses;  // All others.
  bool in_one_iteration = true;          // Whether all of these run as often as the rounding.
  std::vector<GradientAccess> early;     // What is rounded as soon as it is written.
  std::vector<ElementRange> rests;       // What stays in fp32 until the rounding, between those, in order.
  std::vector<Tensor> tensors_of_rests;
};

// Returns what of `ranges` lies in `whole`, counted from the begin of `whole`.
std::vector<ElementRange> PartsIn(const ElementRange& whole, const std::vector<ElementRange>& ranges) {
  std::vector<ElementRange> parts;
  for (const ElementRange& range : ranges) {
    const ElementRange part = Intersect(range, whole);
    if (part.begin < part.end) parts.push_back({part.begin - whole.begin, part.end - whole.begin});
  }
  return parts;
}

// Returns what of `range` lies in none of `others`, which are in order.
std::vector<ElementRange> PartsOutside(const std::vector<ElementRange>& others, const ElementRange& range) {
  std::vector<ElementRange> parts;
  int64_t at = range.begin;
  for (const ElementRange& other : others) {
    const ElementRange part = Intersect(range, other);
    if (part.begin == part.end) continue;
    if (at < part.begin) parts.push_back({at, part.begin});
    at = part.end;
  }
  if (at < range.end) parts.push_back({at, range.end});
  return parts;
}

// Returns an instruction that runs `op` when `like` runs, and for the same unit.
Instruction InstructionLike(const Instruction& like, Op op) {
  return {.action = std::move(op),
          .stream = like.stream,
          .phase = like.phase,
          .unit = like.unit,
          .micro_batch = like.micro_batch};
}

class EarlyRounder {
 public:
  EarlyRounder(StepProgram& program, int64_t piece_bytes)
      : program_(program),
        piece_bytes_(piece_bytes),
        edit_(program),
        gradient_of_(program.buffers.size(), -1),
        copied_(program.buffers.size(), -1) {}

  void Run() {
    FindRoundings();
    if (gradients_.empty()) return;
    FindAccesses();
    for (WideGradient& gradient : gradients_) Divide(gradient);
    BringMicroBatch();
    for (WideGradient& gradient : gradients_) {
      if (gradient.early.empty()) continue;
      KeepRests(gradient);
      ZeroGaps(gradient);
      for (const GradientAccess& access : gradient.early) RoundPieces(gradient, access);
      edit_.Remove(gradient.rounding);
    }
    edit_.Apply();
  }

 private:
  template <class Kind>
  const Kind* OpAt(InstructionId id) const {
    const Op* op = std::get_if<Op>(&program_.instructions[id].action);
    return op == nullptr ? nullptr : op->As<Kind>();
  }
  const Accumulate& RoundingOf(const WideGradient& gradient) const { return *OpAt<Accumulate>(gradient.rounding); }
  int64_t RepeatsOf(InstructionId id) const { return program_.loops[edit_.LoopOf(id)].repeat; }

  // Finds the gradients that are rounded to be sent, each in a buffer of its own.
  void FindRoundings() {
    for (InstructionId id = 0; id < std::ssize(program_.instructions); ++id) {
      const auto* op = OpAt<Accumulate>(id);
      if (op == nullptr || !op->by_rank || op->accumulate || program_.instructions[id].last_iteration_only) continue;
      const BufferId whole = op->x_N.where.symbol;
      const Buffer& buffer = program_.buffers[whole];
      if (buffer.persistent || buffer.slots > 1 || op->x_N.extent_bytes() != buffer.slot_bytes) continue;
      gradient_of_[whole] = static_cast<int>(gradients_.size());
      gradients_.push_back({.rounding = id});
    }
  }

  void FindAccesses() {
    for (InstructionId id = 0; id < std::ssize(program_.instructions); ++id) {
      const auto* copy = std::get_if<StepItemCopy>(&program_.instructions[id].action);
      if (copy != nullptr) copied_[copy->device.where.symbol] = id;
      VisitInstruction(program_.instructions[id], /*first_iteration=*/false,
                       [&](absl::string_view name, const Tensor& t, Access) {
                         const int gradient = gradient_of_[t.where.symbol];
                         if (gradient >= 0) NoteAccess(gradients_[gradient], id, t, /*is_product=*/name == "c");
                       });
    }
  }

  void NoteAccess(WideGradient& gradient, InstructionId id, const Tensor& t, bool is_product) {
    if (id == gradient.rounding) return;
    const bool one_loop = edit_.LoopOf(id) == edit_.LoopOf(gradient.rounding);
    gradient.in_one_iteration &= one_loop || (RepeatsOf(id) == 1 && RepeatsOf(gradient.rounding) == 1);
    const ElementRange all = {0, RoundingOf(gradient).x_N.elements()};
    if (t.where.shard_stride_bytes != 0) {
      gradient.accesses.push_back({.id = id, .elements = all});
      return;
    }
    const int64_t begin = t.where.offset_bytes / SizeOf(DType::kFloat32);
    const ElementRange elements = {begin, begin + t.extent()};
    if (OpAt<ZeroRanges>(id) != nullptr && elements == all) {
      gradient.zeroings.push_back(id);
    } else {
      gradient.accesses.push_back({id, elements, is_product && IsWrittenAtOnce(id) && begin % kRandomBlock == 0});
    }
  }

  // Returns whether an instruction is a matmul that overwrites c, without gaps, in every iteration.
  bool IsWrittenAtOnce(InstructionId id) const {
    const Instruction& instruction = program_.instructions[id];
    const auto* op = OpAt<MatMul>(id);
    if (op == nullptr || op->packed_b.present() || instruction.last_iteration_only) return false;
    // Without accumulation, the form of the first iteration is that of all.
    const bool overwrites = !op->accumulate || (instruction.first_iteration_differs && RepeatsOf(id) == 1);
    return overwrites && op->c_MN.contiguous() && op->c_MN.dtype == DType::kFloat32;
  }

  // Decides what is rounded early, and what stays.
  void Divide(WideGradient& gradient) const {
    if (!gradient.in_one_iteration) return;
    std::sort(gradient.accesses.begin(), gradient.accesses.end(),
              [](const GradientAccess& x, const GradientAccess& y) { return x.elements.begin < y.elements.begin; });
    std::vector<GradientAccess> apart;  // Accesses that overlap have become one, which stays.
    for (const GradientAccess& access : gradient.accesses) {
      if (apart.empty() || apart.back().elements.end <= access.elements.begin) {
        apart.push_back(access);
        apart.back().is_written &= !IsZeroed(gradient, access.elements);
      } else {
        apart.back().elements.end = std::max(apart.back().elements.end, access.elements.end);
        apart.back().is_written = false;
      }
    }
    bool after_rest = false;
    for (const GradientAccess& access : apart) {
      if (access.is_written) {
        gradient.early.push_back(access);
      } else if (after_rest) {
        gradient.rests.back().end = access.elements.end;
      } else {
        gradient.rests.push_back(access.elements);
      }
      after_rest = !access.is_written;
    }
    const auto splits_block = [](const ElementRange& rest) { return rest.begin % kRandomBlock != 0; };
    if (std::any_of(gradient.rests.begin(), gradient.rests.end(), splits_block)) gradient.early.clear();
  }

  bool IsZeroed(const WideGradient& gradient, const ElementRange& elements) const {
    return std::any_of(gradient.zeroings.begin(), gradient.zeroings.end(),
                       [&](InstructionId id) { return !PartsIn(elements, *OpAt<ZeroRanges>(id)->ranges).empty(); });
  }

  // Moves the copy of the number of the micro-batch ahead of the first op that is rounded early: it stands before the
  // first rounding.
  void BringMicroBatch() {
    auto first = static_cast<InstructionId>(program_.instructions.size());
    InstructionId copy = -1;
    for (const WideGradient& gradient : gradients_) {
      const Tensor& number = RoundingOf(gradient).micro_batch_1;
      if (!number.present() || gradient.early.empty()) continue;
      copy = copied_[number.where.symbol];
      for (const GradientAccess& access : gradient.early) first = std::min(first, access.id);
    }
    if (copy < first) return;
    program_.instructions[copy].phase = program_.instructions[first].phase;
    edit_.MoveBefore(first, copy);
  }

  // Gives what stays buffers of its own, and rounds each where the whole gradient was rounded.
  void KeepRests(WideGradient& gradient) {
    const Instruction& like = program_.instructions[gradient.rounding];
    const Accumulate& rounding = RoundingOf(gradient);
    const BufferId whole = rounding.x_N.where.symbol;
    for (const ElementRange& rest : gradient.rests) {
      const Tensor tensor = Temporary(whole, ".rest", {rest.end - rest.begin});
      gradient.tensors_of_rests.push_back(tensor);
      edit_.InsertBefore(gradient.rounding, InstructionLike(like, RoundingOf(rounding, tensor, rest.begin)));
    }
    const auto move = [&](Tensor& t) {
      if (t.where.symbol != whole) return;
      const int64_t begin = t.where.offset_bytes / SizeOf(DType::kFloat32);
      for (size_t i = 0; i < gradient.rests.size(); ++i) {
        const ElementRange& rest = gradient.rests[i];
        if (begin < rest.begin || begin >= rest.end) continue;
        t.where = gradient.tensors_of_rests[i].where;
        t.where.offset_bytes = (begin - rest.begin) * SizeOf(DType::kFloat32);
        return;
      }
    };
    for (const GradientAccess& access : gradient.accesses) ChangeOperands(program_.instructions[access.id], move);
  }

  // Zeroes gaps: those within what stays where they were zeroed before, and the others in what is sent.
  void ZeroGaps(const WideGradient& gradient) {
    std::vector<ElementRange> outside;
    for (const InstructionId id : gradient.zeroings) {
      const std::vector<ElementRange>& ranges = *OpAt<ZeroRanges>(id)->ranges;
      for (size_t i = 0; i < gradient.rests.size(); ++i) {
        InsertZeroing(id, gradient.tensors_of_rests[i], PartsIn(gradient.rests[i], ranges));
      }
      for (const ElementRange& range : ranges) {
        const std::vector<ElementRange> parts = PartsOutside(gradient.rests, range);
        outside.insert(outside.end(), parts.begin(), parts.end());
      }
      edit_.Remove(id);
    }
    InsertZeroing(gradient.rounding, RoundingOf(gradient).total_N, std::move(outside));
  }

  void InsertZeroing(InstructionId at, const Tensor& x, std::vector<ElementRange> ranges) {
    if (ranges.empty()) return;
    ZeroRanges op{.x_N = x, .ranges = std::make_shared<const std::vector<ElementRange>>(std::move(ranges))};
    edit_.InsertBefore(at, InstructionLike(program_.instructions[at], std::move(op)));
  }

  // Puts matmuls of some rows each in the place of one of all rows, and rounds the result of each at once.
  void RoundPieces(const WideGradient& gradient, const GradientAccess& access) {
    Instruction& instruction = program_.instructions[access.id];
    TakeForm(instruction, /*first_iteration=*/true);
    const MatMul& whole = *OpAt<MatMul>(access.id);
    const Accumulate& rounding = RoundingOf(gradient);
    const int64_t rows = RowsOfPiece(whole, rounding.x_N.extent_bytes()), columns = whole.n();
    for (int64_t begin = 0; begin < whole.m(); begin += rows) {
      const int64_t count = std::min(rows, whole.m() - begin);
      MatMul piece = whole;
      piece.a = whole.a.Slice(whole.transpose_a ? 1 : 0, begin, count);
      const Tensor flat = Temporary(rounding.x_N.where.symbol, ".piece", {count * columns});
      piece.c_MN = flat.Reshape({count, columns});
      edit_.InsertBefore(access.id, InstructionLike(instruction, std::move(piece)));
      const int64_t element = access.elements.begin + begin * columns;
      edit_.InsertBefore(access.id, InstructionLike(instruction, RoundingOf(rounding, flat, element)));
    }
    edit_.Remove(access.id);
  }

  // Returns how many rows a piece has. Pieces are as few as fit, of about equal size, in multiples of kernels' tiles.
  int64_t RowsOfPiece(const MatMul& op, int64_t gradient_bytes) const {
    constexpr int64_t kTileRows = 256;
    const int64_t most = std::max(piece_bytes_, gradient_bytes / StepOptions::kMostSentParts);
    const int64_t fitting = most / (op.n() * SizeOf(DType::kFloat32));
    // The scales of a in tiles lie column by column, so rows cannot be cut out of them.
    if (fitting >= op.m() || op.scales != Float8Scales::kOne) return op.m();
    const int64_t unit = fitting >= kTileRows ? kTileRows : kRandomBlock;
    const int64_t pieces = CeilDivide(op.m(), std::max(unit, RoundDown(fitting, unit)));
    return RoundUp(CeilDivide(op.m(), pieces), unit);
  }

  // Returns the op that rounds `x`, the elements of the gradient from `begin` on.
  static Op RoundingOf(const Accumulate& all, const Tensor& x, int64_t begin) {
    Accumulate part = all;
    part.x_N = x;
    part.total_N = all.total_N.Slice(0, begin, x.elements());
    part.part_begin = begin;
    return part;
  }

  Tensor Temporary(BufferId whole, const char* suffix, std::initializer_list<int64_t> shape) {
    const Buffer& buffer = program_.buffers[whole];
    return edit_.AddTensor(buffer.name + suffix, buffer.category, Tensor::Contiguous(DType::kFloat32, shape));
  }

  StepProgram& program_;
  const int64_t piece_bytes_;
  ProgramEdit edit_;
  std::vector<WideGradient> gradients_;
  std::vector<int> gradient_of_;       // By buffer of the program before: its index in gradients_, or -1.
  std::vector<InstructionId> copied_;  // By buffer of the program before: what copies an item of the step to it, or -1.
};

}  // namespace

void RoundInBackward(StepProgram& program, int64_t piece_bytes) { EarlyRounder(program, piece_bytes).Run(); }

}  // namespace shale

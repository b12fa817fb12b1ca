#include "tests/engine/compile/memory/random_program.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/compile/program/range_set.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

class Generator {
 public:
  Generator(uint64_t seed, const RandomProgramOptions& options) : random_(seed), options_(options) {}

  StepProgram Generate() {
    repeat_ = 1 + Pick(options_.largest_repeat);
    const int64_t persistent = 1 + Pick(3);
    for (int64_t i = 0; i < persistent; ++i) NewBuffer(/*persistent=*/true, /*slots=*/1);
    while (builder_.next() < options_.instructions) EmitLoop();
    StepProgram program = builder_.Finish();
    program.micro_batches = repeat_;
    for (Buffer& buffer : program.buffers) {
      if (Pick(8) == 0) buffer.held_until = static_cast<InstructionId>(Pick(std::ssize(program.instructions)));
    }
    return program;
  }

 private:
  // The bytes of a buffer that may be read, as bytes of its slots: those that earlier loops wrote in any slot, and
  // those that the current iteration has written. Bytes in `after` may be read once the current loop has ended.
  struct Readable {
    RangeSet before, in_iteration, after;
  };

  int64_t Pick(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  BufferId NewBuffer(bool persistent, int64_t slots) {
    const int64_t bytes = 2 * (1 + Pick(options_.largest_buffer_bytes / 2));
    const BufferId id = builder_.AddBuffer(absl::StrCat("b", readable_.size()), bytes, slots, persistent);
    readable_.push_back({});
    if (persistent) readable_.back().before.Add({0, bytes});
    return id;
  }

  const Buffer& buffer(BufferId id) { return builder_.program().buffers[id]; }

  void EmitLoop() {
    loop_ = Pick(2) == 0;
    loop_ ? builder_.Loop(repeat_) : builder_.Once();
    const int64_t count = 1 + Pick(std::max(1, options_.instructions / 3));
    for (int64_t i = 0; i < count; ++i) EmitInstruction();
    for (size_t b = 0; b < readable_.size(); ++b) {
      Readable& r = readable_[b];
      for (const RangeSet* set : {&r.in_iteration, &r.after}) {
        for (ByteRange range : set->ranges()) r.before.Add(range);
      }
      r.in_iteration.clear();
      r.after.clear();
    }
  }

  void EmitInstruction() {
    const StreamId stream = static_cast<StreamId>(Pick(3) == 0 ? Pick(4) : last_stream_);
    last_stream_ = Pick(4);
    last_only_ = loop_ && Pick(10) == 0;
    taken_.clear();
    Instruction* instruction = nullptr;
    Tensor scratch;
    if (stream == StreamId::kCompute && Pick(4) == 0) scratch = NewScratch();
    switch (Pick(11)) {
      case 0: instruction = &EmitAccumulate(stream); break;
      case 1: instruction = &EmitZero(stream); break;
      case 2: {
        const Tensor local = Read();
        instruction = &builder_.Add(stream, Collective{.local = local, .full = Write()});
        break;
      }
      case 3: {
        const Tensor full = Read();
        instruction = &builder_.Add(
            stream, Collective{.kind = CollectiveKind::kReduceScatterSum, .local = Write(), .full = full});
        break;
      }
      case 4: instruction = &builder_.Add(stream, StepItemCopy{StepItem::kInputs, Write()}); break;
      case 5: instruction = &builder_.Add(stream, StepItemCopy{StepItem::kTotals, Read()}); break;
      case 9: instruction = &EmitOffload(stream); break;
      case 10: instruction = &EmitFetch(stream); break;
      case 6: {
        const Tensor read = Read(), updated = Read(/*to_update=*/true);
        instruction = &builder_.Touch(stream, {read}, {}, {updated});
        break;
      }
      default: {
        const Tensor a = Read(), b = Read();
        instruction = &builder_.Touch(stream, {a, b}, {Write()});
      }
    }
    instruction->last_iteration_only = last_only_;
    instruction->scratch = scratch;
  }

  Tensor NewScratch() {
    const BufferId id = NewBuffer(false, 1);
    taken_.push_back(id);
    return builder_.Bytes(id);
  }

  Instruction& EmitAccumulate(StreamId stream) {
    const Tensor x = Read();
    const BufferId total = NewBuffer(false, 1);
    last_only_ = false;
    readable_[total].in_iteration.Add({0, buffer(total).slot_bytes});
    if (Pick(2) == 0) return builder_.PackInFirst(stream, x, builder_.Bytes(total), Tensor());
    return builder_.AccumulateAfterFirst(stream, x, builder_.Bytes(total));
  }

  // Zeroes a new buffer, or zeroes one range of it and writes the rest with another instruction.
  Instruction& EmitZero(StreamId stream) {
    const BufferId id = NewBuffer(false, 1);
    const int64_t elements = buffer(id).slot_bytes / 2, cut = Pick(elements + 1);
    last_only_ = false;
    if (cut > 0) builder_.Touch(stream, {}, {builder_.Bytes(id, 0, 2 * cut)});
    readable_[id].in_iteration.Add({0, buffer(id).slot_bytes});
    return builder_.Add(StreamId::kCompute, Op(ZeroRanges{.x_N = builder_.Bytes(id),
                                                          .ranges = std::make_shared<const std::vector<ElementRange>>(
                                                              std::vector<ElementRange>{{cut, elements}})}));
  }

  // Copies all of a buffer that the current iteration has written to the host. Writes a buffer instead if it finds
  // none.
  Instruction& EmitOffload(StreamId stream) {
    last_only_ = false;
    const BufferId from = Choose([&](BufferId b) {
      const absl::Span<const ByteRange> here = readable_[b].in_iteration.ranges();
      return buffer(b).slots == 1 && here.size() == 1 && here[0] == ByteRange{0, buffer(b).slot_bytes};
    });
    if (from < 0) return builder_.Touch(stream, {}, {Write()});
    const BufferId to = builder_.AddHostBuffer(absl::StrCat("h", readable_.size()), buffer(from).slot_bytes,
                                               loop_ && Pick(3) == 0 ? repeat_ : 1);
    readable_.push_back({});
    readable_[to].in_iteration.Add({0, buffer(to).slot_bytes});
    return builder_.Add(stream, Transfer{builder_.Bytes(from), builder_.Bytes(to), /*to_host=*/true});
  }

  // Copies all of a host buffer into a new device buffer. Writes a buffer instead if there is no host buffer.
  Instruction& EmitFetch(StreamId stream) {
    last_only_ = false;
    std::vector<BufferId> whole;
    for (size_t b = 0; b < readable_.size(); ++b) {
      const Readable& r = readable_[b];
      const bool written = !r.before.ranges().empty() || !r.in_iteration.ranges().empty();
      const bool host = buffer(static_cast<BufferId>(b)).memory == MemoryKind::kHost;
      if (host && written && (buffer(static_cast<BufferId>(b)).slots == 1 || loop_)) whole.push_back(b);
    }
    if (whole.empty()) return builder_.Touch(stream, {}, {Write()});
    const BufferId from = whole[Pick(std::ssize(whole))];
    const BufferId to = builder_.AddBuffer(absl::StrCat("b", readable_.size()), buffer(from).slot_bytes);
    readable_.push_back({});
    readable_[to].in_iteration.Add({0, buffer(to).slot_bytes});
    return builder_.Add(stream, Transfer{builder_.Bytes(to), builder_.Bytes(from)});
  }

  // Returns a device buffer for which `fits` holds and which this instruction has not used yet, most likely a recent
  // one, or -1 if it finds none.
  template <class Fits>
  BufferId Choose(Fits fits) {
    for (int attempt = 0; attempt < 6; ++attempt) {
      const int64_t n = std::ssize(readable_);
      const BufferId id = static_cast<BufferId>(Pick(3) == 0 ? Pick(n) : n - 1 - Pick(std::min<int64_t>(n, 8)));
      if (buffer(id).memory == MemoryKind::kHost) continue;
      if (std::find(taken_.begin(), taken_.end(), id) == taken_.end() && fits(id)) return id;
    }
    return -1;
  }

  Tensor Read(bool to_update = false) {
    const BufferId id = Choose([&](BufferId b) {
      const Readable& r = readable_[b];
      return (!r.before.ranges().empty() || !r.in_iteration.ranges().empty()) && (buffer(b).slots == 1 || loop_);
    });
    if (id < 0) return {};
    taken_.push_back(id);
    const Readable& r = readable_[id];
    const absl::Span<const ByteRange> ranges =
        r.in_iteration.ranges().empty() || (Pick(2) == 0 && !r.before.ranges().empty()) ? r.before.ranges()
                                                                                        : r.in_iteration.ranges();
    const ByteRange range = ranges[Pick(std::ssize(ranges))];
    const int64_t bytes = buffer(id).slot_bytes;
    if (!to_update && options_.places_by_rank && range == ByteRange{0, bytes} && bytes >= 4 && Pick(4) == 0) {
      return ByRank(id);
    }
    return Part(id, range);
  }

  Tensor Write() {
    BufferId id = -1;
    if (Pick(3) == 0) id = Choose([&](BufferId b) { return buffer(b).slots == 1 || loop_; });
    if (id < 0) id = NewBuffer(false, loop_ && Pick(5) == 0 ? repeat_ : 1);
    taken_.push_back(id);
    const int64_t bytes = buffer(id).slot_bytes;
    if (buffer(id).persistent && options_.places_by_rank && bytes >= 4 && Pick(4) == 0) return ByRank(id);
    const Tensor t = Part(id, {0, bytes});
    const ByteRange written{t.where.offset_bytes, t.where.offset_bytes + t.extent_bytes()};
    // An instruction of the last iteration writes only one of several slots.
    if (!last_only_) readable_[id].in_iteration.Add(written);
    if (last_only_ && buffer(id).slots == 1) readable_[id].after.Add(written);
    return t;
  }

  // Returns half of a buffer: the first half on rank 0, the second on rank 1.
  Tensor ByRank(BufferId id) {
    const int64_t half = buffer(id).slot_bytes / 4 * 2;
    Tensor t = builder_.Bytes(id, 0, half);
    t.where.shard_stride_bytes = half;
    return t;
  }

  // Returns the range, a part of it, or two rows of it with a gap between them.
  Tensor Part(BufferId id, ByteRange range) {
    const int64_t elements = (range.end - range.begin) / 2;
    if (Pick(3) != 0 || elements < 4) return builder_.Bytes(id, range.begin, 2 * elements);
    const int64_t begin = Pick(elements - 3), count = 3 + Pick(elements - begin - 2);
    Tensor t = builder_.Bytes(id, range.begin + 2 * begin, 2 * count);
    if (Pick(3) != 0) return t;
    t.rank = 2;
    t.shape = {2, 1 + Pick(count / 2)};
    t.strides = {count - t.shape[1], 1};
    return t;
  }

  std::mt19937_64 random_;
  const RandomProgramOptions options_;
  ProgramBuilder builder_;
  std::vector<Readable> readable_;  // By buffer.
  std::vector<BufferId> taken_;     // Used by the instruction that is being built.
  int64_t repeat_ = 1;
  int64_t last_stream_ = 0;
  bool loop_ = false;
  bool last_only_ = false;
};

}  // namespace

StepProgram RandomProgram(uint64_t seed, const RandomProgramOptions& options) {
  return Generator(seed, options).Generate();
}

StepProgram LayeredProgram(int layers, uint64_t seed) {
  std::mt19937_64 random(seed);
  ProgramBuilder builder;
  const auto buffer = [&](absl::string_view name, int64_t kibibytes) {
    return builder.AddBuffer(std::string(name), 1024 * kibibytes + 2 * static_cast<int64_t>(random() % 100));
  };
  std::vector<BufferId> shards, gathered(layers), outputs(layers), gradients(layers);
  for (int l = 0; l < layers; ++l) shards.push_back(builder.AddPersistent(absl::StrCat("shard", l), 4096));
  const auto gather = [&](int l) {
    if (l < 0 || l >= layers) return;
    gathered[l] = buffer("gathered", 4000);
    builder.Add(StreamId::kGather, Collective{.local = builder.Bytes(shards[l]), .full = builder.Bytes(gathered[l])});
  };
  std::vector<std::vector<BufferId>> kept(layers);
  builder.Loop(4);
  gather(0);
  for (int l = 0; l < layers; ++l) {
    gather(l + 1);
    BufferId at = l > 0 ? outputs[l - 1] : -1;
    for (int op = 0; op < 10; ++op) {
      const BufferId out = buffer("activation", op % 3 == 0 ? 700 : 170);
      std::vector<Tensor> reads = {builder.Bytes(gathered[l])};
      if (at >= 0) reads.push_back(builder.Bytes(at));
      builder.Touch(StreamId::kCompute, reads, {builder.Bytes(out)});
      if (op % 2 == 0) kept[l].push_back(out);
      at = out;
    }
    outputs[l] = at;
  }
  BufferId d = buffer("gradient", 170);
  builder.Touch(StreamId::kCompute, {builder.Bytes(outputs[layers - 1])}, {builder.Bytes(d)});
  for (int l = layers - 1; l >= 0; --l) {
    gather(l - 1);
    gradients[l] = buffer("unit_gradient", 8000);
    if (l + 1 < layers) builder.program().buffers[gradients[l + 1]].held_until = builder.next() + 10;
    const int64_t part = builder.program().buffers[gradients[l]].slot_bytes / 2;
    for (int op = 0; op < 10; ++op) {
      const BufferId out = buffer("workspace", op % 3 == 0 ? 700 : 170);
      const BufferId saved = kept[l][op / 2];
      std::vector<Tensor> writes = {builder.Bytes(out)};
      if (op < 2) writes.push_back(builder.Bytes(gradients[l], op * part / 2 * 2, op == 0 ? part / 2 * 2 : -1));
      builder.Touch(StreamId::kCompute, {builder.Bytes(d), builder.Bytes(saved), builder.Bytes(gathered[l])}, writes);
      d = out;
    }
    builder.Touch(StreamId::kReduce, {builder.Bytes(gradients[l])}, {}, {builder.Bytes(shards[l])});
  }
  return builder.Finish();
}

}  // namespace shale::testing

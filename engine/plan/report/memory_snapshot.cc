#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/plan_text.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/program/program.h"
#include "engine/plan/report/pickle_writer.h"

namespace shale {
namespace {

// Opcodes of Python's pickletools.
constexpr char kProto[] = "\x80\x02";
constexpr char kEmptyDict = '}', kEmptyList = ']', kMark = '(', kSetItems = 'u', kAppends = 'e';
constexpr char kBinInt = 'J', kLong1 = '\x8a', kBinUnicode = 'X', kLongBinPut = 'r', kLongBinGet = 'j', kStop = '.';

// Items of one APPENDS. Readers may pass all of them as arguments of one call, so their number is limited.
constexpr int64_t kMostItems = 1000;

class SnapshotWriter {
 public:
  SnapshotWriter(const StepProgram& program, const MemoryPlan& plan, int64_t arena_bytes)
      : program_(program),
        plan_(plan),
        arena_bytes_(arena_bytes),
        lifetimes_(ComputeLifetimes(program)),
        buffer_frames_(program.buffers.size()),
        instruction_frames_(program.instructions.size()) {}

  std::string Write() {
    pickle_.BeginDict();
    pickle_.Text("segments");
    pickle_.BeginList();
    pickle_.Item();
    WriteArena();
    pickle_.EndList();
    pickle_.Text("device_traces");
    pickle_.BeginList();  // By device.
    pickle_.Item();
    pickle_.BeginList();
    WriteStep();
    pickle_.EndList();
    pickle_.EndList();
    pickle_.EndDict();
    return pickle_.Finish();
  }

 private:
  void Member(absl::string_view key, int64_t value) {
    pickle_.Text(key);
    pickle_.Integer(value);
  }
  void Member(absl::string_view key, absl::string_view value) {
    pickle_.Text(key);
    pickle_.Text(value);
  }

  // The viewer can't tell two live buffers at one address apart, so those without bytes are left out.
  bool Shown(BufferId b) const {
    return program_.buffers[b].size_bytes() > 0 && program_.buffers[b].memory == MemoryKind::kDevice;
  }

  // Writes the segment as it is after the step, when only the persistent buffers are live. The viewer expects blocks
  // without gaps, so a block includes the unused bytes up to the next buffer.
  void WriteArena() {
    std::vector<BufferId> persistent;
    int64_t live = 0;
    for (BufferId b = 0; b < static_cast<BufferId>(program_.buffers.size()); ++b) {
      if (!program_.buffers[b].persistent || !Shown(b)) continue;
      persistent.push_back(b);
      live += program_.buffers[b].size_bytes();
    }
    pickle_.BeginDict();
    Member("device", 0);
    Member("address", 0);
    Member("total_size", arena_bytes_);
    Member("allocated_size", live);
    Member("active_size", live);
    Member("requested_size", live);
    Member("stream", 0);
    Member("segment_type", "large");
    pickle_.Text("frames");
    WriteFrames(std::nullopt, -1);
    pickle_.Text("blocks");
    pickle_.BeginList();
    for (size_t i = 0; i < persistent.size(); ++i) {
      const int64_t end = i + 1 < persistent.size() ? plan_.addresses[persistent[i + 1]] : plan_.persistent_bytes;
      WriteBlock(persistent[i], plan_.addresses[persistent[i]], end);
    }
    if (plan_.persistent_bytes < arena_bytes_) WriteBlock(std::nullopt, plan_.persistent_bytes, arena_bytes_);
    pickle_.EndList();
    pickle_.EndDict();
  }

  void WriteBlock(std::optional<BufferId> buffer, int64_t begin, int64_t end) {
    pickle_.Item().BeginDict();
    Member("address", begin);
    Member("size", end - begin);
    Member("requested_size", buffer ? program_.buffers[*buffer].size_bytes() : 0);
    Member("state", buffer ? "active_allocated" : "inactive");
    pickle_.Text("frames");
    WriteFrames(buffer, -1);
    pickle_.EndDict();
  }

  void WriteStep() {
    WriteEvent("segment_alloc", 0, arena_bytes_, std::nullopt, -1);
    for (BufferId b = 0; b < static_cast<BufferId>(program_.buffers.size()); ++b) {
      if (program_.buffers[b].persistent && Shown(b)) WriteEvent("alloc", b, -1);
    }
    const std::vector<LiveChange> changes = LiveChanges(program_, lifetimes_);
    for (const Loop& loop : program_.loops) {
      const int64_t iterations = std::min<int64_t>(loop.repeat, 2);
      for (int64_t iteration = 0; iteration < iterations; ++iteration) {
        for (InstructionId id = loop.begin; id < loop.end; ++id) {
          for (BufferId b : changes[id].begins) {
            if (iteration == 0 || LivesAnew(b, loop)) WriteEvent("alloc", b, id);
          }
          for (BufferId b : changes[id].ends) {
            if (iteration + 1 < iterations && !LivesAnew(b, loop)) continue;
            WriteEvent("free_requested", b, id);
            WriteEvent("free_completed", b, id);
          }
        }
      }
    }
  }

  // Returns whether each iteration of the loop allocates and frees the buffer. Otherwise the buffer stays live from the
  // first iteration to the last.
  bool LivesAnew(BufferId b, const Loop& loop) const {
    const Lifetime& life = lifetimes_[b];
    return life.first >= loop.begin && life.last < loop.end && (life.first > loop.begin || life.last + 1 < loop.end);
  }

  void WriteEvent(absl::string_view action, BufferId b, InstructionId id) {
    if (Shown(b)) WriteEvent(action, plan_.addresses[b], program_.buffers[b].size_bytes(), b, id);
  }

  void WriteEvent(absl::string_view action, int64_t address, int64_t bytes, std::optional<BufferId> buffer,
                  InstructionId id) {
    pickle_.Item().BeginDict();
    Member("action", action);
    Member("addr", address);
    Member("size", bytes);
    Member("stream", 0);
    pickle_.Text("frames");
    WriteFrames(buffer, id);
    pickle_.EndDict();
  }

  // Writes the frames of an event. No buffer stands for the arena, and id -1 for the time before the step.
  void WriteFrames(std::optional<BufferId> buffer, InstructionId id) {
    pickle_.BeginList();
    pickle_.Item();
    if (buffer) {
      const Buffer& b = program_.buffers[*buffer];
      WriteFrame(buffer_frames_[*buffer], b.name, *buffer, ToString(b.category));
    } else {
      WriteFrame(arena_frame_, "arena", 0, "all buffers of one rank");
    }
    if (id >= 0) {
      const Instruction& i = program_.instructions[id];
      pickle_.Item();
      WriteFrame(instruction_frames_[id], i.unit < 0 ? "step" : program_.units[i.unit], id,
                 absl::StrCat(NameOf(i), ", ", ToString(i.phase), ", ", ToString(i.stream), " stream"));
    }
    pickle_.EndList();
  }

  // Writes a frame and remembers it in `written`. If `written` is set already, refers to that frame.
  void WriteFrame(std::optional<uint32_t>& written, absl::string_view file, int64_t line, absl::string_view name) {
    if (written) return pickle_.Recall(*written);
    pickle_.BeginDict();
    Member("filename", file);
    Member("line", line);
    Member("name", name);
    pickle_.EndDict();
    written = pickle_.Remember();
  }

  const StepProgram& program_;
  const MemoryPlan& plan_;
  const int64_t arena_bytes_;
  const std::vector<Lifetime> lifetimes_;
  PickleWriter pickle_;
  std::optional<uint32_t> arena_frame_;
  std::vector<std::optional<uint32_t>> buffer_frames_, instruction_frames_;  // By id.
};

}  // namespace

PickleWriter::PickleWriter() : bytes_(kProto) {}

void PickleWriter::Little32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(value >> shift & 0xff);
}

void PickleWriter::Integer(int64_t value) {
  if (value == static_cast<int32_t>(value)) {
    bytes_ += kBinInt;
    Little32(static_cast<uint32_t>(value));
    return;
  }
  bytes_ += kLong1;
  bytes_ += '\x08';
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(static_cast<uint64_t>(value) >> shift & 0xff);
}

void PickleWriter::Text(absl::string_view utf8) {
  if (const auto found = texts_.find(utf8); found != texts_.end()) return Recall(found->second);
  bytes_ += kBinUnicode;
  Little32(static_cast<uint32_t>(utf8.size()));
  bytes_.append(utf8.data(), utf8.size());
  texts_.emplace(utf8, Remember());
}

void PickleWriter::BeginDict() {
  bytes_ += kEmptyDict;
  bytes_ += kMark;
}

void PickleWriter::EndDict() { bytes_ += kSetItems; }

void PickleWriter::BeginList() {
  bytes_ += kEmptyList;
  bytes_ += kMark;
  items_.push_back(0);
}

PickleWriter& PickleWriter::Item() {
  if (items_.back() == kMostItems) {
    bytes_ += kAppends;
    bytes_ += kMark;
    items_.back() = 0;
  }
  ++items_.back();
  return *this;
}

void PickleWriter::EndList() {
  bytes_ += kAppends;
  items_.pop_back();
}

uint32_t PickleWriter::Remember() {
  bytes_ += kLongBinPut;
  Little32(remembered_);
  return remembered_++;
}

void PickleWriter::Recall(uint32_t number) {
  bytes_ += kLongBinGet;
  Little32(number);
}

std::string PickleWriter::Finish() { return std::move(bytes_ += kStop); }

std::string MemorySnapshot(const JobPlan& plan) {
  return SnapshotWriter(plan.train.step.program, plan.train.memory, plan.arena_bytes).Write();
}

}  // namespace shale

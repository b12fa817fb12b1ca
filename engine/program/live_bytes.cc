#include "engine/program/live_bytes.h"

namespace shale {

LiveBytes PersistentBytes(const StepProgram& program) {
  LiveBytes live;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && buffer.memory == MemoryKind::kDevice) live.Add(buffer);
  }
  return live;
}

std::vector<LiveChange> LiveChanges(const StepProgram& program, const std::vector<Lifetime>& lifetimes) {
  std::vector<LiveChange> changes(program.instructions.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || buffer.memory == MemoryKind::kHost || !lifetimes[b].used()) continue;
    changes[lifetimes[b].first].begins.push_back(static_cast<BufferId>(b));
    changes[lifetimes[b].last].ends.push_back(static_cast<BufferId>(b));
  }
  return changes;
}

}  // namespace shale

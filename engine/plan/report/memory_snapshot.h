// Writes a memory plan for PyTorch's viewer of memory snapshots (https://pytorch.org/memory_viz).
//
// PickleWriter writes Python pickles of dicts, lists, texts and integers, in protocol 2, which the viewer reads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"

namespace shale {

// Writes one value, for example
//
//   PickleWriter pickle;
//   pickle.BeginDict();
//   pickle.Text("sizes");
//   pickle.BeginList();
//   for (int64_t size : sizes) pickle.Item().Integer(size);
//   pickle.EndList();
//   pickle.EndDict();
//   std::string bytes = pickle.Finish();
//
// Write a dict as its keys, each followed by its value. The pickle stores equal texts once. To store another value
// once, use Remember and Recall.
class PickleWriter {
 public:
  PickleWriter();

  void Integer(int64_t value);
  void Text(absl::string_view utf8);
  void BeginDict();
  void EndDict();
  void BeginList();
  // Begins the next item of the innermost open list. The next call writes the item.
  PickleWriter& Item();
  void EndList();

  // Remember returns a number for the value that was written or ended last. Recall writes the value with this number
  // again, as a reference.
  uint32_t Remember();
  void Recall(uint32_t number);

  // Returns the pickle. Call it once, after the value is complete.
  std::string Finish();

 private:
  void Little32(uint32_t value);

  std::string bytes_;
  std::vector<int64_t> items_;  // By open list: the number of items since its last APPENDS.
  std::map<std::string, uint32_t, std::less<>> texts_;
  uint32_t remembered_ = 0;
};

// Returns a pickle with the contents of torch.cuda.memory._snapshot(): one segment, which is the arena of one rank from
// address 0 on, and the history of one step. The history begins with the allocation of the arena and of the persistent
// buffers. Every transient buffer of the arena is allocated at its planned address before the first instruction that
// needs it (alloc), and freed after the last one (free_requested, free_completed). A loop is shown for its first
// iteration and, if it repeats, once more for its last.
//
// The frames of an event are the buffer and the instruction, innermost first. The viewer shows them like this:
//
//   blocks.3.ffn.gate_up:118:activations kept         name, BufferId and category
//   blocks.3:57:MatMul, forward, compute stream       unit, InstructionId, and what the instruction is
//
// The largest sum of live sizes is MemoryPlan::lower_bound_bytes. Memory outside the arena is not shown. REQUIRES:
// `plan` is the plan of `program`, and `arena_bytes` is at least its peak.
std::string MemorySnapshot(const StepProgram& program, const MemoryPlan& plan, int64_t arena_bytes);

}  // namespace shale

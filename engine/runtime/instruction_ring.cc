#include "engine/runtime/instruction_ring.h"

#include <chrono>

namespace shale {

void InstructionRing::BeginRun(const StepProgram& program) {
  const std::lock_guard<std::mutex> lock(mutex_);
  program_ = &program;
  ++run_;
}

absl::Status InstructionRing::EnqueueBegin(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration) {
  return Enqueue(stream, {.id = static_cast<uint32_t>(instruction),
                          .iteration = static_cast<uint32_t>(iteration),
                          .stream = static_cast<uint32_t>(id),
                          .ends = 0});
}

absl::Status InstructionRing::EnqueueEnd(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration) {
  return Enqueue(stream, {.id = static_cast<uint32_t>(instruction),
                          .iteration = static_cast<uint32_t>(iteration),
                          .stream = static_cast<uint32_t>(id),
                          .ends = 1});
}

absl::Status InstructionRing::Enqueue(Stream& stream, Place place) {
  return stream.RunOnHost([this, place] {
    Note(place);
    return absl::OkStatus();
  });
}

void InstructionRing::Note(Place place) {
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamNotes& stream = streams_[place.stream];
  if (place.ends != 0 && stream.count > 0) {
    InstructionNote& last = stream.notes[(stream.count - 1) % kKept];
    const bool begun = last.run == run_ && last.id == static_cast<InstructionId>(place.id) &&
                       last.iteration == static_cast<int32_t>(place.iteration) && last.finished_ns == 0;
    if (begun) {
      last.finished_ns = now;
      return;
    }
  }
  stream.notes[stream.count++ % kKept] = {.program = program_,
                                          .run = run_,
                                          .id = static_cast<InstructionId>(place.id),
                                          .iteration = static_cast<int32_t>(place.iteration),
                                          .stream = static_cast<StreamId>(place.stream),
                                          .begun_ns = place.ends != 0 ? 0 : now,
                                          .finished_ns = place.ends != 0 ? now : 0};
}

std::vector<InstructionNote> InstructionRing::notes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<InstructionNote> notes;
  for (const StreamNotes& stream : streams_) {
    for (size_t i = stream.count > kKept ? stream.count - kKept : 0; i < stream.count; ++i) {
      notes.push_back(stream.notes[i % kKept]);
    }
  }
  return notes;
}

}  // namespace shale

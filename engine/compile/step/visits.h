// Visit: one turn of a unit. PlanVisits decides the order of visits in a program.
//
// Segments of activation checkpointing are decided here, while a program is emitted, and not by a pass over the plain
// program. The emitter knows from the graph what must run again before the backward of a segment: which values that
// backward reads, which nodes make them, and which groups these nodes read. A pass would have to find all of this in
// the instructions, and clone them with their buffers, all-gathers and, in LAYERED, loops.
#pragma once

#include <vector>

#include "engine/compile/graph/graph.h"
#include "engine/compile/program/program.h"
#include "engine/compile/step/options.h"

namespace shale {

// What a unit computes in one visit.
enum class VisitWork {
  kForward,
  kForwardAndBackward,  // The last unit: its backward follows its forward at once.
  kForwardAgain,        // Computes what backward needs and forward did not keep, in a segment
                        // (engine/compile/step/options_enums.h).
  kBackward,            // Includes the recomputation that the unit's backward needs.
};

// Returns the phase of a visit that does `work`. Returns kForward for kForwardAndBackward.
Phase PhaseOf(VisitWork work);

// Returns whether `work` writes gradients.
inline bool HasBackward(VisitWork work) {
  return work == VisitWork::kForwardAndBackward || work == VisitWork::kBackward;
}

// One turn of a unit on the compute stream, for one micro-batch or, in LAYERED, for all of them.
struct Visit {
  int unit = -1;
  VisitWork work = VisitWork::kForward;
  bool operator==(const Visit&) const = default;
};

// Where a unit stands in a segment.
enum class SegmentRole {
  kOutside,  // In no segment. Its forward keeps what DecideKept (unit_emitter.h) says.
  kInside,   // Followed by another unit of its segment. Runs forward again, and then keeps what DecideKept says.
  kLast,     // Last in its segment. Keeps nothing: its backward recomputes what it reads from the unit's input.
};

// Returns the first unit that has a backward: all later units have one too. It is the lowest one with a parameter that
// trains, and the number of units if the graph is not for training.
int FirstBackward(const ModelGraph& model);

// Returns the role of each unit. A unit that is not a block divides a segment. The last unit, and units without a
// backward, are in no segment.
std::vector<SegmentRole> SegmentRolesOf(const ModelGraph& model, const std::vector<Segment>& segments);

// Returns all visits of a program in order. `places` has the role of each unit. All units run forward; then they run
// backward from the last one to `first_backward` (FirstBackward). Before the backward of a segment, all its units but
// the last run forward again, in order:
//
//   units          E  0 1 2  3 4  H                with segments 0 1 2 and 3 4
//   forward        E  0 1 2  3 4  H                keeps the inputs of 0 and 3, and what E and H keep
//   backward                      H  3'  4 3  0' 1'  2 1 0  E
std::vector<Visit> PlanVisits(const std::vector<SegmentRole>& places, int first_backward);

}  // namespace shale

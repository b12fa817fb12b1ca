// The order in which a step works through the units of a model.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/program/program.h"
#include "engine/step/segments.h"

namespace shale {

// What a unit computes while the compute stream works for it.
enum class Work {
  kForward,
  kForwardAndBackward,  // The last unit: its backward follows its forward at once.
  kForwardAgain,        // What the backward of a segment (engine/step/segments.h) needs and forward did not keep.
  kBackward,            // With what it computes again itself.
};

// Returns the phase in which `work` begins.
Phase PhaseOf(Work work);

// Whether `work` writes gradients.
inline bool HasBackward(Work work) { return work == Work::kForwardAndBackward || work == Work::kBackward; }

// A unit in its turn, for one micro-batch or, in LAYERED, for all of them.
struct Visit {
  int unit = -1;
  Work work = Work::kForward;
  bool operator==(const Visit&) const = default;
};

// Where a unit stands in a segment.
enum class Place {
  kOutside,  // It is in no segment, and its forward keeps what backward reads.
  kInside,   // Another unit of its segment follows. It runs forward again, and that keeps what backward reads.
  kLast,     // It is the last one of its segment. Its backward follows that, and computes it again from its input.
};

// Returns the places of all units. A unit that is no block divides a segment, and the last unit is in none.
std::vector<Place> PlacesOf(const ModelGraph& model, const std::vector<Segment>& segments);

// Returns all visits of a program, by the places of its units: forward of all units; then, if `training`, backward from
// the last unit to the first. Before the backward of a segment all its units but the last run forward again, in order:
//
//   units          E  0 1 2  3 4  H                with segments 0 1 2 and 3 4
//   forward        E  0 1 2  3 4  H                keeps the inputs of 0 and 3, and what E and H keep
//   backward                      H  3'  4 3  0' 1'  2 1 0  E
std::vector<Visit> PlanVisits(const std::vector<Place>& places, bool training);

}  // namespace shale

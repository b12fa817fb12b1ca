#include "engine/compile/step/visits.h"

#include <cstdint>
#include <iterator>

namespace shale {

Phase PhaseOf(VisitWork work) {
  switch (work) {
    case VisitWork::kForward:
    case VisitWork::kForwardAndBackward: return Phase::kForward;
    case VisitWork::kForwardAgain: return Phase::kRecompute;
    case VisitWork::kBackward: return Phase::kBackward;
  }
  return Phase::kForward;
}

int FirstBackward(const ModelGraph& model) {
  const int units = static_cast<int>(model.units.size());
  if (model.mode != GraphMode::kTraining) return units;
  int first = units - 1;
  while (first > 0 && model.units[first - 1].output_gradient >= 0) --first;
  return first;
}

std::vector<SegmentRole> SegmentRolesOf(const ModelGraph& model, const std::vector<Segment>& segments) {
  const int64_t last = std::ssize(model.units) - 1;
  const auto in_segment = [&](int64_t u, const Segment& segment) {
    const int64_t layer = model.units[u].layer;
    return u < last && segment.first <= layer && layer < segment.first + segment.blocks;
  };
  std::vector<SegmentRole> places(model.units.size(), SegmentRole::kOutside);
  const int first_backward = FirstBackward(model);
  auto segment = segments.begin();  // Blocks stand in order.
  for (int64_t u = 0; u < last && segment != segments.end(); ++u) {
    if (!in_segment(u, *segment)) continue;
    if (u >= first_backward) places[u] = in_segment(u + 1, *segment) ? SegmentRole::kInside : SegmentRole::kLast;
    if (model.units[u].layer + 1 == segment->first + segment->blocks) ++segment;
  }
  return places;
}

std::vector<Visit> PlanVisits(const std::vector<SegmentRole>& places, int first_backward) {
  const int last = static_cast<int>(places.size()) - 1;
  std::vector<Visit> visits;
  for (int u = 0; u < last; ++u) visits.push_back({u, VisitWork::kForward});
  visits.push_back({last, first_backward <= last ? VisitWork::kForwardAndBackward : VisitWork::kForward});
  for (int u = last - 1; u >= first_backward; --u) {
    if (places[u] == SegmentRole::kLast) {
      int first = u;
      while (first > 0 && places[first - 1] == SegmentRole::kInside) --first;
      for (int again = first; again < u; ++again) visits.push_back({again, VisitWork::kForwardAgain});
    }
    visits.push_back({u, VisitWork::kBackward});
  }
  return visits;
}

}  // namespace shale

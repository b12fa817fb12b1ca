// Code that the kernels of update rules share. A rule needs an overload of StartUpdate, in a file of its own.
//
// [Note: elementwise rules] A rule whose states have one element for each weight is a struct of its rates.
// UpdateKernel does the rest. It makes one pass and is bound by memory. A thread owns eight adjacent elements, in packs
// of 16 bytes, and reads them from all tensors before it writes. Operands that do not begin at 16-byte addresses go
// element by element. The struct has
//   kStates                                 the number of states
//   struct Step; StepOf(update)             what all elements of a launch have in common
//   Apply(step, gradient, decays, s, p)     updates one element: its states s[0] ... s[kStates - 1] and its master p
//
// The edges at which weight decay begins and ends are parameters of the launch. A thread finds out how many of them lie
// at or before its first element. A shard with more edges than a launch takes needs several launches, which touch
// separate elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/masters.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {

// The elements at which decay begins or ends, numbered from the first element of a launch, strictly increasing.
template <int kMost>
struct DecayEdges {
  static constexpr int kMaxEdges = kMost;
  bool decays_at_first = false;
  int count = 0;
  int64_t at[kMost] = {};

  // Returns the number of edges at or before element i.
  SHALE_DEVICE int UpTo(int64_t i) const {
    int begin = 0, end = count;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (at[middle] <= i) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
};

// Tells for adjacent elements, one after the other, whether they have weight decay.
template <class Edges>
class DecayCursor {
 public:
  SHALE_DEVICE DecayCursor(const Edges& edges, int64_t first) : edges_(edges), edge_(edges.UpTo(first)) {}
  // Returns whether element i has weight decay. REQUIRES: i is `first` at the first call, then one more at each call.
  SHALE_DEVICE bool DecaysAt(int64_t i, bool is_first) {
    if (!is_first && edge_ < edges_.count && edges_.at[edge_] == i) ++edge_;
    return edges_.decays_at_first != (edge_ % 2 != 0);
  }

 private:
  const Edges& edges_;
  int edge_;
};

// Returns the edges of the decayed ranges in the shard, as element numbers of the shard. Adjacent ranges are merged and
// have no edge between them.
std::vector<int64_t> EdgesOf(const Update& op);

// Returns `op` restricted to elements [begin, end) of its shard. REQUIRES: begin is a multiple of BlockOf(op.rule)
Update PartOf(Update op, int64_t begin, int64_t end);

// Calls start(part, edges) for parts of the shard that together cover it. Parts begin at multiples of kUnit, and each
// has at most Edges::kMaxEdges edges inside.
template <class Edges, int64_t kUnit, class Start>
absl::Status ForParts(const Update& op, const Start& start) {
  // Makes every part hold at least one element, even after its end is rounded down.
  static_assert(Edges::kMaxEdges > kUnit);
  const int64_t n = op.weight_P.elements();
  const std::vector<int64_t> all = EdgesOf(op);
  size_t next = 0;
  for (int64_t begin = 0; begin < n;) {
    while (next < all.size() && all[next] <= begin) ++next;
    Edges edges = {.decays_at_first = next % 2 != 0};
    edges.count = static_cast<int>(std::min<size_t>(Edges::kMaxEdges, all.size() - next));
    for (int i = 0; i < edges.count; ++i) edges.at[i] = all[next + i] - begin;
    const size_t beyond = next + edges.count;
    const int64_t end = beyond < all.size() ? RoundDown(all[beyond], kUnit) : n;
    SHALE_RETURN_IF_ERROR(start(PartOf(op, begin, end), edges));
    begin = end;
  }
  return absl::OkStatus();
}

inline constexpr int kUpdatePack = kPackOf<BFloat16>;
using LaunchEdges = DecayEdges<128>;

// A state in fp32.
struct FloatState {
  Global<float> at;
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(at, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& values) const {
    StoreFloats(at, i, values);
  }
};

// The states of an elementwise rule, each a FloatState or each Rounded.
template <class State, int kStates>
struct StateArrays {
  State at[kStates];
};
template <class State>
struct StateArrays<State, 0> {};

// Updates elements [i, i + N). See [Note: elementwise rules].
template <int N, class Master, class State, class Rule>
SHALE_DEVICE void UpdatePiece(const Master& master, const Global<float>& update, const Global<float>& gradient,
                              const StateArrays<State, Rule::kStates>& states, const Rule& rule,
                              const LaunchEdges& edges, int64_t i) {
  constexpr int kStates = Rule::kStates;
  const Floats<N> gradients = LoadFloats<N>(gradient, i);
  Floats<N> p = master.template Load<N>(i), own[std::max(1, kStates)];
  if constexpr (kStates > 0) {
    for (int s = 0; s < kStates; ++s) own[s] = states.at[s].template Load<N>(i);
  }
  if (update.Load(kUpdateSkip) != 0) return;
  const typename Rule::Step step = rule.StepOf(update);
  const float factor = update.Load(kUpdateGradientFactor);
  DecayCursor<LaunchEdges> cursor(edges, i);
  for (int k = 0; k < N; ++k) {
    const bool decays = cursor.DecaysAt(i + k, k == 0);
    float element[std::max(1, kStates)];
    for (int s = 0; s < kStates; ++s) element[s] = own[s].at[k];
    rule.Apply(step, gradients.at[k] * factor, decays, element, p.at[k]);
    for (int s = 0; s < kStates; ++s) own[s].at[k] = element[s];
  }
  if constexpr (kStates > 0) {
    for (int s = 0; s < kStates; ++s) states.at[s].template Store<N>(i, own[s]);
  }
  master.template Store<N>(i, p);
}

template <class Master, class State, class Rule, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    UpdateKernel(Master master, Global<float> update, Global<float> gradient, StateArrays<State, Rule::kStates> states,
                 Rule rule, LaunchEdges edges, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x) * N;
  if (i + N <= n) {
    UpdatePiece<N>(master, update, gradient, states, rule, edges, i);
  } else if constexpr (N > 1) {
    for (int64_t rest = i; rest < n; ++rest) UpdatePiece<1>(master, update, gradient, states, rule, edges, rest);
  }
}

// Returns whether the gradient, the masters and the states that have an element for each weight begin at 16-byte
// addresses.
bool HasPacks(const Update& op);

// Call run(states) with the states of `op`, which has sizeof...(kIndices) of them.
template <class Run, size_t... kIndices>
absl::Status WithStates(const Update& op, std::index_sequence<kIndices...>, const Run& run) {
  constexpr int kStates = sizeof...(kIndices);
  const auto name = [&](size_t s) { return StatesOf(op.rule)[s].name.data(); };
  if (HasBFloat16States(op.rule)) {
    return run(
        StateArrays<Rounded, kStates>{{Rounded(op, op.states[kIndices], name(kIndices), StateStream(kIndices))...}});
  }
  return run(StateArrays<FloatState, kStates>{{FloatState{Whole<float>(op.states[kIndices], name(kIndices))}...}});
}
template <class Run>
absl::Status WithStates(const Update&, std::index_sequence<>, const Run& run) {
  return run(StateArrays<FloatState, 0>());
}

// Updates the shard by an elementwise rule.
template <class Rule>
absl::Status StartElementwise(const char* name, const Update& op, const Rule& rule, StreamHandle stream) {
  return ForParts<LaunchEdges, kUpdatePack>(op, [&](const Update& part, const LaunchEdges& edges) {
    const int64_t n = part.weight_P.elements();
    const bool packs = HasPacks(part);
    const int64_t per_block = kFlatThreads * (packs ? kUpdatePack : 1);
    const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(n, per_block))),
                               .block = dim3(kFlatThreads)};
    return WithMaster(part, [&](const auto& master) {
      return WithStates(part, std::make_index_sequence<Rule::kStates>(),
                        [&]<class State>(const StateArrays<State, Rule::kStates>& states) {
                          using Master = std::decay_t<decltype(master)>;
                          const auto kernel = packs ? UpdateKernel<Master, State, Rule, kUpdatePack>
                                                    : UpdateKernel<Master, State, Rule, 1>;
                          return Launch(name, kernel, shape, stream, master, Whole<float>(part.update_5, "update"),
                                        Whole<float>(part.gradient_P, "gradient"), states, rule, edges, n);
                        });
    });
  });
}

// Each StartUpdate applies a rule to the shard. REQUIRES: `rule` is op.rule
#define SHALE_DECLARE(Rule, kind) absl::Status StartUpdate(const Rule& rule, const Update& op, StreamHandle stream);
SHALE_EACH_UPDATE_RULE(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale::cuda

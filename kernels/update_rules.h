// Update rules. A rule says how an optimizer turns gradients into new weights, and which states it keeps for them.
//
// A rule is a struct of its hyper-parameters that declares its states. One op, Update (kernels/ops/update.h), applies
// any rule to a rank's shard of a flat group, and everything above (engine/compile/optimizer, memory plan, checkpoints,
// reports) loops over the declared states. A new rule is a struct here, with its place in UpdateRule and
// SHALE_EACH_UPDATE_RULE, a file update_<rule> of kernels in reference/, cpu/ and cuda/, and a file of tests/kernels. A
// rule has
//   kName                its name in messages
//   states()             the states that it keeps. Rules whose states have one element for each weight have a
//                        `state_dtype`, f32 or bf16 (half the memory; stochastic rounding, see Update)
//   Check(checker)       checks that each hyper-parameter is in its range. checker.DecayRate(name, value) requires a
//                        value in [0, 1), checker.NotNegative(name, value) a value of 0 or more, and
//                        checker.StateDType(dtype) f32 or bf16, checker.Require(condition, message) any condition
//
// Adafactor is an SGD after the passes of kernels/ops/adafactor.h. Updates of whole matrices (Muon) are not supported
// yet: they need a layout that keeps each matrix on one rank, and matmuls before the update.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/dynamic_map.h"

namespace shale {

// One tensor that a rule keeps beside a flat group. All bytes are zero before the first update.
struct UpdateState {
  absl::string_view name;  // Names buffers, operands, parts of checkpoints and lines of reports: "m".
  DType dtype = DType::kFloat32;
  // Elements of the group for each element of the state: 1, or the size of a block. Element i of the state belongs to
  // elements [i * block, (i + 1) * block) of the group.
  int64_t block = 1;
  // For u8 only: the code of the value 0, whatever the scale. After an update the elements between parameters have this
  // code, because their gradients are 0. Code that sets the states of parameters must set it there too.
  uint8_t zero_code = 0;
  bool operator==(const UpdateState&) const = default;
};

// Elements of a block of 8-bit states.
inline constexpr int64_t kQuantizedBlock = 256;
// No rule has more states than this.
inline constexpr int kMaxUpdateStates = 4;

// A rule's states in fp32, and the same states in bf16.
template <size_t kCount>
struct StatePair {
  std::array<UpdateState, kCount> wide, narrow;
  explicit constexpr StatePair(const std::array<absl::string_view, kCount>& names) {
    for (size_t i = 0; i < kCount; ++i) {
      wide[i] = {names[i]};
      narrow[i] = {names[i], DType::kBFloat16};
    }
  }
  absl::Span<const UpdateState> Of(DType dtype) const { return dtype == DType::kBFloat16 ? narrow : wide; }
};

// In the formulas g is the clipped gradient, p the master weight, lr the learning rate, and decay is weight_decay for
// elements that decay and 0 for others. All arithmetic is fp32.

// AdamW (Loshchilov and Hutter, 2019), in PyTorch's order of operations:
//   p -= lr * decay * p; m += (1 - beta1)(g - m); v = beta2 v + (1 - beta2) g g;
//   p -= lr / correction1 * m / (sqrt(v) / sqrt(correction2) + epsilon).
struct AdamWRule {
  static constexpr absl::string_view kName = "AdamW";
  static constexpr StatePair<2> kStates{{"m", "v"}};
  absl::Span<const UpdateState> states() const { return kStates.Of(state_dtype); }
  template <class Checker>
  void Check(Checker& c) const {
    c.DecayRate("beta1", beta1);
    c.DecayRate("beta2", beta2);
    c.NotNegative("epsilon", epsilon);
    c.NotNegative("weight_decay", weight_decay);
    c.StateDType(state_dtype);
  }

  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
  DType state_dtype = DType::kFloat32;
  bool operator==(const AdamWRule&) const = default;
};

// Stochastic gradient descent with momentum (Sutskever et al., 2013), as torch.optim.SGD without dampening:
//   d = g + decay * p; momentum = mu * momentum + d; p -= lr * (nesterov ? d + mu * momentum : momentum).
// Without momentum (mu = 0) it has no state and p -= lr * d.
struct SgdRule {
  static constexpr absl::string_view kName = "SGD";
  static constexpr StatePair<1> kStates{{"momentum"}};
  absl::Span<const UpdateState> states() const {
    return momentum == 0 ? absl::Span<const UpdateState>() : kStates.Of(state_dtype);
  }
  template <class Checker>
  void Check(Checker& c) const {
    c.DecayRate("momentum", momentum);
    c.NotNegative("weight_decay", weight_decay);
    c.Require(!nesterov || momentum != 0, "nesterov is set and momentum is 0; wanted momentum, or no nesterov");
    c.StateDType(state_dtype);
  }

  float momentum = 0.9f, weight_decay = 0.0f;
  bool nesterov = false;  // Only with momentum.
  DType state_dtype = DType::kFloat32;
  bool operator==(const SgdRule&) const = default;
};

// Lion (Chen et al., 2023, algorithm 2):
//   p -= lr * decay * p; p -= lr * sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g.
struct LionRule {
  static constexpr absl::string_view kName = "Lion";
  static constexpr StatePair<1> kStates{{"m"}};
  absl::Span<const UpdateState> states() const { return kStates.Of(state_dtype); }
  template <class Checker>
  void Check(Checker& c) const {
    c.DecayRate("beta1", beta1);
    c.DecayRate("beta2", beta2);
    c.NotNegative("weight_decay", weight_decay);
    c.StateDType(state_dtype);
  }

  float beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0.1f;
  DType state_dtype = DType::kFloat32;
  bool operator==(const LionRule&) const = default;
};

// AdamW whose m and v are stored in 8 bits by blocks of kQuantizedBlock elements (Dettmers et al., 2022, as
// bitsandbytes defines it). An element of m is SignedMap[code] * m_scale of its block, one of v UnsignedMap[code] *
// v_scale; the maps are in kernels/dynamic_map.h. The rule widens both to fp32, updates them and p as AdamW does, and
// then stores each block of the new m and v:
//   scale = the largest absolute value of the block, NaN if a value is NaN;
//   code  = that of the map's entry nearest to value / scale, or that of 0 if the ratio is NaN or the scale is 0.
// Between two entries the fp32 number nearest to their middle is the boundary; a ratio on it takes the entry nearer to
// 0. As in bitsandbytes, a negative m keeps its sign: if 0 is nearest, it takes the negative entry nearest to 0. Unlike
// in bitsandbytes, a ratio of v above 0 takes at least the entry next to 0: with a v of 0 and an m that is not 0, the
// next step with a small gradient would be m / epsilon, which is hundreds of times too long.
struct AdamW8BitRule {
  static constexpr absl::string_view kName = "AdamW8Bit";
  static constexpr UpdateState kStates[] = {{"m", DType::kUInt8, 1, SignedMap::kZeroCode},
                                            {"v", DType::kUInt8, 1, UnsignedMap::kZeroCode},
                                            {"m_scale", DType::kFloat32, kQuantizedBlock},
                                            {"v_scale", DType::kFloat32, kQuantizedBlock}};
  absl::Span<const UpdateState> states() const { return kStates; }
  template <class Checker>
  void Check(Checker& c) const {
    c.DecayRate("beta1", beta1);
    c.DecayRate("beta2", beta2);
    c.NotNegative("epsilon", epsilon);
    c.NotNegative("weight_decay", weight_decay);
  }

  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
  bool operator==(const AdamW8BitRule&) const = default;
};

using UpdateRule = std::variant<AdamWRule, SgdRule, LionRule, AdamW8BitRule>;

// Expands to X(Rule) for each rule. Code that implements all rules uses it to declare one function per rule. The
// compiler or the linker refuses a rule that is missing here or has no such function.
#define SHALE_EACH_UPDATE_RULE(X) \
  X(AdamWRule)                    \
  X(SgdRule)                      \
  X(LionRule)                     \
  X(AdamW8BitRule)

// Returns each rule with its default hyper-parameters, in the order of UpdateRule.
inline auto DefaultRules() {
  return []<size_t... kIndices>(std::index_sequence<kIndices...>) {
    return std::array{UpdateRule(std::in_place_index<kIndices>)...};
  }
  (std::make_index_sequence<std::variant_size_v<UpdateRule>>());
}

// Returns the states of a rule, in the order in which Update has them. The span is valid forever.
inline absl::Span<const UpdateState> StatesOf(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return r.states(); }, rule);
}

inline absl::string_view NameOf(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return r.kName; }, rule);
}

inline bool HasBFloat16States(const UpdateRule& rule) {
  for (const UpdateState& state : StatesOf(rule)) {
    if (state.dtype == DType::kBFloat16) return true;
  }
  return false;
}

// Returns the largest block of any state of the rule. Shards and parameters must begin at multiples of it, so that no
// block is divided.
inline int64_t BlockOf(const UpdateRule& rule) {
  int64_t block = 1;
  for (const UpdateState& state : StatesOf(rule)) block = block > state.block ? block : state.block;
  return block;
}

}  // namespace shale

// Update rules. A rule says how an optimizer turns gradients into new weights, and which states it keeps for them.
//
// A rule is a struct of its hyper-parameters that declares its states. One op, Update (kernels/ops/update.h), applies
// any rule to a rank's shard of a flat group, and everything above (engine/compile/optimizer, memory plan, checkpoints,
// reports) loops over the declared states. A new rule is a struct here, with its place in UpdateRule and
// SHALE_EACH_OPTIMIZER, a value in OptimizerSpec.Rule (proto/job/optimizer.proto), a file update_<rule> of kernels in
// reference/, cpu/ and cuda/, and a file of tests/kernels. AdafactorRule and MuonRule are no such rules but composed
// optimizers: other instructions compute a direction, which the rule last_rule() then subtracts. They have no kName,
// states() and Check. A rule has
//   kName                its name in messages of ops
//   kJobName             its name in jobs, and in messages about them: "ADAMW"
//   kDescription         its name in reports: "AdamW"
//   kDefaults            the values of hyper-parameters that a job leaves out
//   kFields              the fields of OptimizerSpec that the rule reads and that not all rules read: "beta1". A job
//                        that sets another one is refused.
//   kCorrectsBias        whether the update corrects the bias of moments with decay rates beta1 and beta2
//                        (PrepareUpdate)
//   Of(hyperparameters)  returns the rule with these hyper-parameters
//   states()             the states that it keeps. Rules whose states have one element for each weight have a
//                        `state_dtype`, f32 or bf16 (half the memory; stochastic rounding, see Update)
//   Check(checker)       checks that each hyper-parameter is in its range. checker.DecayRate(name, value) requires a
//                        value in [0, 1), checker.NotNegative(name, value) a value of 0 or more, and
//                        checker.StateDType(dtype) f32 or bf16, checker.Require(condition, message) any condition
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/dynamic_map.h"

namespace shale {

// What Muon multiplies the learning rate of a matrix of r rows and c columns by, because an orthogonal matrix with more
// elements has smaller ones.
enum class RateAdjustment : uint8_t {
  kOriginal,       // sqrt(max(1, r / c)) (Jordan et al., 2024)
  kMatchRmsAdamW,  // 0.2 sqrt(max(r, c)): the root mean square of an update is then about that of AdamW (Liu et al.,
                   // 2025)
  kSpectral,       // sqrt(r / c)
};

// The hyper-parameters of all optimizers. Each optimizer reads weight_decay and its kFields.
struct Hyperparameters {
  double learning_rate = 0;  // The default of the peak learning rate. Only jobs read it.
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  DType moments = DType::kFloat32;  // Of the states: f32 or bf16.
  bool relative_step = true, scale_parameter = true;
  int64_t newton_schulz_steps = 5;
  RateAdjustment rate_adjustment = RateAdjustment::kOriginal;
};

// Which elements a state has.
enum class StateExtent : uint8_t {
  kElements,        // One for each UpdateState::block elements of a flat group.
  kRowsAndColumns,  // One for each row and each column of a matrix, and for each element of a vector.
};

// One tensor that an optimizer keeps beside a flat group. All bytes are zero before the first update. The states of a
// rule have the extent kElements.
struct UpdateState {
  absl::string_view name;  // Names buffers, operands, parts of checkpoints and lines of reports: "m".
  DType dtype = DType::kFloat32;
  // Elements of the group for each element of the state: 1, or the size of a block. Element i of the state belongs to
  // elements [i * block, (i + 1) * block) of the group.
  int64_t block = 1;
  // For u8 only: the code of the value 0, whatever the scale. The elements that pad a flat group between its parameters
  // get this code in the first update, because their gradients are 0. Code that sets states must set it there too.
  uint8_t zero_code = 0;
  StateExtent extent = StateExtent::kElements;  // Other than kElements only with blocks of 1.
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
//   p -= lr / correction1 * m / (sqrt(v) / sqrt(correction2) + epsilon),
// where update n has correction1 = 1 - beta1^n and correction2 = 1 - beta2^n (PrepareUpdate).
struct AdamWRule {
  static constexpr absl::string_view kName = "AdamW", kJobName = "ADAMW", kDescription = "AdamW";
  static constexpr Hyperparameters kDefaults = {
      .learning_rate = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "epsilon", "moments"};
  static constexpr bool kCorrectsBias = true;
  static AdamWRule Of(const Hyperparameters& h) {
    return {.beta1 = static_cast<float>(h.beta1),
            .beta2 = static_cast<float>(h.beta2),
            .epsilon = static_cast<float>(h.epsilon),
            .weight_decay = static_cast<float>(h.weight_decay),
            .state_dtype = h.moments};
  }
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
//   d = g + decay * p; b = momentum * b + d; p -= lr * (nesterov ? d + momentum * b : b),
// where b is the state "momentum". With a momentum of 0 it has no state, and p -= lr * d.
struct SgdRule {
  static constexpr absl::string_view kName = "SGD", kJobName = "SGD", kDescription = "SGD";
  static constexpr Hyperparameters kDefaults = {.learning_rate = 0.1, .momentum = 0.9};
  static constexpr absl::string_view kFields[] = {"momentum", "nesterov", "moments"};
  static constexpr bool kCorrectsBias = false;
  static SgdRule Of(const Hyperparameters& h) {
    return {.momentum = static_cast<float>(h.momentum),
            .weight_decay = static_cast<float>(h.weight_decay),
            .nesterov = h.nesterov,
            .state_dtype = h.moments};
  }
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
  static constexpr absl::string_view kName = "Lion", kJobName = "LION", kDescription = "Lion";
  static constexpr Hyperparameters kDefaults = {
      .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "moments"};
  static constexpr bool kCorrectsBias = false;
  static LionRule Of(const Hyperparameters& h) {
    return {.beta1 = static_cast<float>(h.beta1),
            .beta2 = static_cast<float>(h.beta2),
            .weight_decay = static_cast<float>(h.weight_decay),
            .state_dtype = h.moments};
  }
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
// The boundary between two entries is the fp32 number nearest to their middle. A ratio equal to it takes the entry
// nearer to 0. As in bitsandbytes, a negative m keeps its sign: if 0 is nearest, it takes the negative entry nearest to
// 0. Unlike in bitsandbytes, a ratio of v above 0 takes at least the entry next to 0: with a v of 0 and an m that is
// not 0, the next step with a small gradient would be m / epsilon, which is hundreds of times too long.
struct AdamW8BitRule {
  static constexpr absl::string_view kName = "AdamW8Bit", kJobName = "ADAMW_8BIT", kDescription = "8-bit AdamW";
  static constexpr Hyperparameters kDefaults = AdamWRule::kDefaults;
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "epsilon"};
  static constexpr bool kCorrectsBias = true;
  static AdamW8BitRule Of(const Hyperparameters& h) {
    return {.beta1 = static_cast<float>(h.beta1),
            .beta2 = static_cast<float>(h.beta2),
            .epsilon = static_cast<float>(h.epsilon),
            .weight_decay = static_cast<float>(h.weight_decay)};
  }
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

// Adafactor (Shazeer and Stern, 2018). It is composed: the passes of kernels/ops/adafactor.h turn the gradient into a
// direction, which an SGD subtracts.
struct AdafactorRule {
  static constexpr absl::string_view kJobName = "ADAFACTOR", kDescription = "Adafactor";
  static constexpr Hyperparameters kDefaults = {.learning_rate = 1};
  static constexpr absl::string_view kFields[] = {"beta1", "moments", "relative_step", "scale_parameter"};
  static constexpr bool kCorrectsBias = false;
  // The second moments, which it keeps beside the state of the SGD.
  static constexpr UpdateState kMoments = {.name = "moments", .extent = StateExtent::kRowsAndColumns};
  static AdafactorRule Of(const Hyperparameters& h) {
    return {.beta1 = static_cast<float>(h.beta1),
            .weight_decay = static_cast<float>(h.weight_decay),
            .relative_step = h.relative_step,
            .scale_parameter = h.scale_parameter,
            .state_dtype = h.moments};
  }
  SgdRule last_rule() const { return {.momentum = beta1, .state_dtype = state_dtype}; }

  float beta1 = 0, weight_decay = 0;
  bool relative_step = true, scale_parameter = true;
  DType state_dtype = DType::kFloat32;
  bool operator==(const AdafactorRule&) const = default;
};

// Muon (Jordan et al., 2024), as torch.optim.Muon. It is composed, for matrices that blocks multiply by: with the ops
// of kernels/ops/muon.h and matmuls, every rank makes the momentum of a whole matrix nearly orthogonal, and an SGD
// subtracts its shard of the result (engine/compile/step/orthogonal_update.cc). AdamW updates all other parameters.
struct MuonRule {
  static constexpr absl::string_view kJobName = "MUON", kDescription = "Muon";
  static constexpr Hyperparameters kDefaults = {
      .learning_rate = 1e-3, .epsilon = 1e-7, .momentum = 0.95, .nesterov = true, .weight_decay = 0.1};
  static constexpr absl::string_view kFields[] = {
      "momentum", "nesterov", "epsilon", "moments", "newton_schulz_steps", "rate_adjustment"};
  static constexpr bool kCorrectsBias = false;
  // An iteration of Newton and Schulz turns each singular value s into a s + b s^3 + c s^5 with these a, b and c.
  static constexpr float kCoefficients[] = {3.4445f, -4.7750f, 2.0315f};
  static MuonRule Of(const Hyperparameters& h) {
    return {.momentum = static_cast<float>(h.momentum),
            .epsilon = static_cast<float>(h.epsilon),
            .weight_decay = static_cast<float>(h.weight_decay),
            .nesterov = h.nesterov,
            .steps = h.newton_schulz_steps,
            .adjustment = h.rate_adjustment,
            .state_dtype = h.moments};
  }
  SgdRule last_rule() const { return {.momentum = 0, .weight_decay = weight_decay}; }
  UpdateState momentum_state() const { return {.name = "momentum", .dtype = state_dtype}; }
  // Returns what the learning rate of a matrix is multiplied by.
  double RateFactor(int64_t rows, int64_t columns) const {
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    if (adjustment == RateAdjustment::kMatchRmsAdamW) return 0.2 * std::sqrt(std::max(r, c));
    return std::sqrt(adjustment == RateAdjustment::kOriginal ? std::max(1.0, r / c) : r / c);
  }

  float momentum = 0.95f, epsilon = 1e-7f, weight_decay = 0.1f;
  bool nesterov = true;
  int64_t steps = 5;  // Iterations, at least 1.
  RateAdjustment adjustment = RateAdjustment::kOriginal;
  DType state_dtype = DType::kFloat32;
  bool operator==(const MuonRule&) const = default;
};

using UpdateRule = std::variant<AdamWRule, SgdRule, LionRule, AdamW8BitRule>;

// Expands to RULE(Rule, kKind) for each rule, and to COMPOSED(Rule, kKind) for each optimizer that applies one of
// these, its last_rule(), after other instructions. kKind is its value in OptimizerKind. The order is that of
// OptimizerSpec.Rule in proto/job/optimizer.proto.
#define SHALE_EACH_OPTIMIZER(RULE, COMPOSED) \
  RULE(AdamWRule, kAdamW)                    \
  RULE(SgdRule, kSgd)                        \
  RULE(LionRule, kLion)                      \
  RULE(AdamW8BitRule, kAdamW8Bit)            \
  COMPOSED(AdafactorRule, kAdafactor)        \
  COMPOSED(MuonRule, kMuon)
#define SHALE_NOTHING(...)

// Expands to X(Rule, kKind) for each rule. Code that implements all rules uses it to declare one function per rule. The
// compiler or the linker refuses a rule that is missing here or has no such function.
#define SHALE_EACH_UPDATE_RULE(X) SHALE_EACH_OPTIMIZER(X, SHALE_NOTHING)

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

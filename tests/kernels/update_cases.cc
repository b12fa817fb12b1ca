#include "tests/kernels/update_cases.h"

#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/counter_random.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

OpCase UpdateCase(const UpdateRule& rule, const UpdateTolerances& tolerances, Masters form, int64_t n,
                  std::vector<ElementRange> decayed, int64_t shard_begin) {
  OpCase c{.name = Name(rule) + "_" + Name(form) + "_" + std::to_string(n) + "_at_" + std::to_string(shard_begin) +
                   "_to" + std::to_string(decayed.empty() ? 0 : decayed.back().end)};
  Update op = MakeUpdate(c.memory, rule, form, RandomMasters(n));
  if (!decayed.empty()) op.decayed = Ranges(std::move(decayed));
  op.shard_begin = shard_begin;
  c.op = op;
  // Where fp32 results differ, stochastic rounding may choose the other bf16 neighbor, which the comparison allows.
  c.tolerances = {{"weight", tolerances.master}, {"master", tolerances.master}, {"low", {.ignored = true}}};
  for (const UpdateState& state : StatesOf(rule)) {
    const Tolerance ignored = {.ignored = true};
    c.tolerances[std::string(state.name.data(), state.name.size())] =
        state.dtype == DType::kUInt8 ? ignored : tolerances.state;
  }
  return c;
}

// Returns the same number as uniform() of make_update_goldens.py.
double Uniform(int64_t i, int series) {
  uint32_t x = static_cast<uint32_t>(i + 1000 * series) * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<double>(x >> 8) * 0x1p-23 - 1;
}

double Gradient(int64_t i, int series) {
  const double u = Uniform(i, series);
  return std::copysign(0.25 + 0.75 * std::abs(u), u);
}

}  // namespace

std::vector<OpCase> UpdateCases(const UpdateRule& rule, const UpdateTolerances& tolerances) {
  std::vector<OpCase> cases;
  const int64_t block = BlockOf(rule);
  for (const Masters form : kAllMasters) {
    // Shards begin anywhere; those with blocks of state, or of random bits, begin at a block.
    const bool rounds = form == Masters::kNone || HasBFloat16States(rule);
    const int64_t at = block > 1 ? 3 * block : rounds ? 14 * kRandomBlock : 110;
    const auto add = [&](int64_t n, std::vector<ElementRange> decayed, int64_t shard_begin) {
      cases.push_back(UpdateCase(rule, tolerances, form, n, std::move(decayed), shard_begin));
    };
    add(0, {}, 0);
    add(1, {{0, 1}}, 0);
    add(37, {}, 0);
    // These ranges begin before the shard, end within it, are empty, lie within it, and begin behind it.
    add(100, {{0, 5}, {at - 80, at + 7}, {at + 8, at + 8}, {at + 20, at + 21}, {at + 30, at + 90}}, at);
    add(255, {{0, at + 1000}}, at);
    add(256, {{0, at + 128}}, at);
    add(257, {{at + 255, at + 256}}, at);
    add(40011, {{at + 100, at + 20000}, {at + 39000, at + 40010}}, at);
  }
  return cases;
}

ByHand::ByHand(const UpdateRule& rule, std::initializer_list<std::vector<double>> states) {
  constexpr DType kWide = DType::kFloat64;
  op_.rule = rule;
  op_.update_5 = memory_.Values(kWide, {kUpdateSize}, {0.1, 1 - 0.81, 1 - 0.9801, 0.5, 0});
  op_.gradient_P = memory_.Values(kWide, {2}, {0.4, -3.0});
  op_.weight_P = memory_.Values(kWide, {2}, {kWeights[0], kWeights[1]});
  int i = 0;
  for (const std::vector<double>& state : states) op_.states[i++] = memory_.Values(kWide, {2}, state);
  op_.decayed = Ranges({{8, 9}});
  op_.shard_begin = 7;
  image_ = RunOnReference(memory_, op_);
}

void TakeGoldenSteps(
    const UpdateRule& rule, Betas betas, int series,
    const std::function<void(const Update& op, const TestMemory& memory, std::vector<std::byte>& image)>& check) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<double> weights(kGoldenSize), states[kMaxUpdateStates];
    for (int64_t i = 0; i < kGoldenSize; ++i) weights[i] = Uniform(i, 0);
    for (int t = 1; t <= kGoldenSteps; ++t) {
      TestMemory memory;
      Update op = MakeUpdate(memory, rule, Masters::kWeight, weights);
      op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize},
                                  {kRate, 1 - std::pow(betas.beta1, t), 1 - std::pow(betas.beta2, t), 1, 0});
      std::vector<double> gradients(kGoldenSize);
      for (int64_t i = 0; i < kGoldenSize; ++i) gradients[i] = Gradient(i, series + t - 1);
      op.gradient_P = memory.Values(DType::kFloat32, {kGoldenSize}, gradients);
      for (size_t s = 0; s < StatesOf(rule).size(); ++s) {
        const int64_t size = op.states[s].dim(0);
        states[s].resize(size);
        op.states[s] = memory.Values(op.states[s].dtype, {size}, states[s]);
      }
      op.decayed = Ranges({{10, 280}});
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      for (int64_t i = 0; i < kGoldenSize; ++i) weights[i] = ElementOf(memory.Bind(op.weight_P, image.data()), i);
      for (size_t s = 0; s < StatesOf(rule).size(); ++s) {
        const Tensor state = memory.Bind(op.states[s], image.data());
        for (int64_t i = 0; i < state.dim(0); ++i) states[s][i] = ElementOf(state, i);
      }
      if (t == kGoldenSteps) check(op, memory, image);
    }
  }
}

void ExpectWords(const Tensor& got, absl::Span<const uint32_t> want, double tolerance) {
  for (int64_t i = 0; i < got.dim(0); ++i) {
    ASSERT_NEAR(ElementOf(got, i), std::bit_cast<float>(want[i]), tolerance) << i;
  }
}

}  // namespace shale::testing

#include "tests/kernels/update_ops.h"

#include <utility>
#include <variant>

#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

namespace shale::testing {
namespace {

Tensor RandomState(TestMemory& memory, const UpdateState& state, int64_t n) {
  const int64_t size = CeilDivide(n, state.block);
  // The upper half of the unsigned map has the entries from 0.1 to 1, so that v is at least 0.01.
  if (state.dtype == DType::kUInt8) return memory.RandomIntegers(state.dtype, {size}, state.name == "v" ? 128 : 0, 256);
  if (state.name == "v") return memory.Random(state.dtype, {size}, 0.01, 0.1);
  if (state.name == "v_scale") return memory.Random(state.dtype, {size}, 0.1, 0.2);
  return memory.Random(state.dtype, {size}, state.name == "m_scale" ? 0.01 : -0.1, 0.1);
}

}  // namespace

std::string Name(Masters masters) {
  switch (masters) {
    case Masters::kWeight: return "weight";
    case Masters::kFloatWide: return "wide_master";
    case Masters::kFloat: return "master";
    case Masters::kHalf: return "f16_weight";
    case Masters::kSplit: return "split";
    case Masters::kNone: return "bf16_weight";
  }
  return "";
}

std::vector<UpdateRule> AllRules() {
  std::vector<UpdateRule> rules;
  for (UpdateRule rule : DefaultRules()) {
    std::visit([](auto& r) { r.weight_decay = 0.5f; }, rule);
    rules.push_back(rule);
    std::visit(
        [&](auto r) {
          if constexpr (requires { r.state_dtype; }) {
            r.state_dtype = DType::kBFloat16;
            rules.push_back(r);
          }
        },
        rule);
  }
  rules.push_back(SgdRule{.weight_decay = 0.5f, .nesterov = true});
  rules.push_back(SgdRule{.momentum = 0, .weight_decay = 0.5f});
  return rules;
}

std::string Name(const UpdateRule& rule) {
  const absl::string_view text = NameOf(rule);
  std::string name(text.data(), text.size());
  if (const auto* sgd = std::get_if<SgdRule>(&rule)) {
    name += sgd->nesterov ? "_nesterov" : sgd->momentum != 0 ? "_momentum" : "";
  }
  if (HasBFloat16States(rule)) name += "_bf16";
  return name;
}

std::shared_ptr<const std::vector<ElementRange>> Ranges(std::vector<ElementRange> ranges) {
  return std::make_shared<const std::vector<ElementRange>>(std::move(ranges));
}

std::vector<double> RandomMasters(int64_t n) {
  TestMemory memory(7);
  const Tensor t = memory.Random(DType::kFloat32, {n});
  std::vector<std::byte> image = memory.image();
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(ElementOf(memory.Bind(t, image.data()), i));
  return values;
}

Update MakeUpdate(TestMemory& memory, const UpdateRule& rule, Masters form, const std::vector<double>& masters) {
  const int64_t n = static_cast<int64_t>(masters.size());
  Update op{.rule = rule};
  op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 0.19, 0.0975, 0.75, 0});
  op.gradient_P = memory.Random(DType::kFloat32, {n});
  const absl::Span<const UpdateState> states = StatesOf(rule);
  for (size_t i = 0; i < states.size(); ++i) op.states[i] = RandomState(memory, states[i], n);
  if (form == Masters::kWeight || form == Masters::kFloatWide) {
    op.weight_P = memory.Values(DType::kFloat32, {n}, masters);
  } else if (form == Masters::kHalf) {
    op.weight_P = memory.Values(DType::kFloat16, {n}, masters);
  } else {
    std::vector<double> weights, lows;
    for (const double p : masters) {
      const BFloat16 weight = RoundMaster(static_cast<float>(p));
      weights.push_back(ToFloat(weight));
      lows.push_back(MasterLowBits(static_cast<float>(p), weight));
    }
    op.weight_P = memory.Values(DType::kBFloat16, {n}, weights);
    if (form == Masters::kSplit) op.low_P = memory.Values(DType::kInt16, {n}, lows);
  }
  if (form == Masters::kFloat || form == Masters::kFloatWide || form == Masters::kHalf) {
    op.master_P = memory.Values(DType::kFloat32, {n}, masters);
  }
  if (op.rounds_stochastically()) {
    op.number_1 = memory.Values(DType::kInt64, {1}, {1000003});
    op.seed = 0x123456789abcdef;
    op.group = 3;
  }
  return op;
}

std::vector<float> MastersOf(const Update& symbolic, const TestMemory& memory, std::vector<std::byte>& image) {
  const Update op = *memory.Bind(symbolic, image.data()).As<Update>();
  std::vector<float> masters;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    masters.push_back(op.master_P.present() ? op.master_P.as<float>()[i]
                      : op.low_P.present()  ? JoinMaster(op.weight_P.as<BFloat16>()[i], op.low_P.as<int16_t>()[i])
                                            : static_cast<float>(ElementOf(op.weight_P, i)));
  }
  return masters;
}

Tensor StateOf(const Update& symbolic, const std::string& name, const TestMemory& memory,
               std::vector<std::byte>& image) {
  const absl::Span<const UpdateState> states = StatesOf(symbolic.rule);
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].name == name) return memory.Bind(symbolic.states[i], image.data());
  }
  SHALE_CHECK(false) << "no state " << name;
  return {};
}

}  // namespace shale::testing

// Lion. The kernel makes one pass over memory, which bounds it: it moves 20 bytes per parameter (fp32).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_lion.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/step_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns -1, 0, 1, or NaN for a NaN.
HWY_INLINE Vector SignOf(Vector x) {
  return hn::IfThenElse(hn::Gt(hn::Abs(x), Splat(0)), hn::CopySign(Splat(1), x), x);
}

// Updates elements [begin, end) of the shard. All of them have weight decay, or none has.
template <class Master, class States>
HWY_INLINE void LionRun(const LionRule& rule, const Update& op, const Master& master, const States& states,
                        int64_t begin, int64_t end, bool decays) {
  const float* update = op.update_5.as<const float>();
  const float* gradient = op.gradient_P.as<const float>();
  const Vector factor = Splat(update[kUpdateGradientFactor]), rate = Splat(update[kUpdateLearningRate]);
  const Vector shrink = Splat(update[kUpdateLearningRate] * (decays ? rule.weight_decay : 0.0f));
  const Vector beta1 = Splat(rule.beta1), rest1 = Splat(1 - rule.beta1);
  const Vector beta2 = Splat(rule.beta2), rest2 = Splat(1 - rule.beta2);
  ForVectors(end - begin, [&](int64_t offset, auto lanes) HWY_ATTR {
    const int64_t i = begin + offset;
    const Vector g = hn::Mul(lanes.Load(gradient + i), factor), m = states.Load(lanes, 0, i);
    Vector p = master.Load(lanes, i);
    p = hn::NegMulAdd(shrink, p, p);
    const Vector sign = SignOf(hn::MulAdd(rest1, g, hn::Mul(beta1, m)));
    states.Store(lanes, hn::MulAdd(rest2, g, hn::Mul(beta2, m)), 0, i);
    master.Store(lanes, hn::NegMulAdd(rate, sign, p), i);
  });
}

void LionElements(const LionRule& rule, const Update& op, int64_t begin, int64_t end) {
  ForElements<1>(op, begin, end,
                 [&](const auto& master, const auto& states, int64_t from, int64_t to, bool decays)
                     HWY_ATTR { LionRun(rule, op, master, states, from, to, decays); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(LionElements);

}  // namespace

void UpdateElements(const LionRule& rule, const Update& op, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LionElements)(rule, op, begin, end);
}

}  // namespace shale::cpu
#endif

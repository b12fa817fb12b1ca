// The arithmetic of AdamW, for the rules that store its m and v in different ways.

#if defined(SHALE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ADAMW_INL_H_
#undef SHALE_KERNELS_CPU_ADAMW_INL_H_
#else
#define SHALE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Updates elements [begin, end) of the shard by AdamWRule or AdamW8BitRule. `states` stores m and v as states 0 and 1
// (update-inl.h). All of the elements have weight decay, or none has.
template <class Rule, class Master, class States>
HWY_INLINE void AdamWRun(const Rule& rule, const Update& op, const Master& master, const States& states, int64_t begin,
                         int64_t end, bool decays) {
  const float* update = op.update_5.as<const float>();
  const float* gradient = op.gradient_P.as<const float>();
  const Vector factor = Splat(update[kUpdateGradientFactor]);
  const Vector shrink = Splat(update[kUpdateLearningRate] * (decays ? rule.weight_decay : 0.0f));
  const Vector step = Splat(update[kUpdateLearningRate] / update[kUpdateCorrection1]);
  const Vector root_correction = Splat(std::sqrt(update[kUpdateCorrection2]));
  const Vector rest1 = Splat(1 - rule.beta1), beta2 = Splat(rule.beta2), rest2 = Splat(1 - rule.beta2);
  const Vector epsilon = Splat(rule.epsilon);
  ForVectors(end - begin, [&](int64_t offset, auto lanes) HWY_ATTR {
    const int64_t i = begin + offset;
    const Vector g = hn::Mul(lanes.Load(gradient + i), factor);
    Vector p = master.Load(lanes, i);
    p = hn::NegMulAdd(shrink, p, p);
    Vector m = states.Load(lanes, 0, i);
    m = hn::MulAdd(rest1, hn::Sub(g, m), m);
    const Vector v = hn::MulAdd(hn::Mul(rest2, g), g, hn::Mul(beta2, states.Load(lanes, 1, i)));
    states.Store(lanes, m, 0, i);
    states.Store(lanes, v, 1, i);
    const Vector denominator = hn::Add(hn::Div(hn::Sqrt(v), root_correction), epsilon);
    master.Store(lanes, hn::Sub(p, hn::Div(hn::Mul(step, m), denominator)), i);
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

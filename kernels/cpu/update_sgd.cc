// SGD. The kernel makes one pass over memory, which bounds it: it moves 20 bytes per parameter (fp32) with momentum,
// and 12 without.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_sgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/step_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

enum class Momentum { kNone, kHeavyBall, kNesterov };

// Updates elements [begin, end) of the shard. All of them have weight decay, or none has.
template <Momentum kMomentum, class Master, class States>
HWY_INLINE void SgdRun(const SgdRule& rule, const Update& op, const Master& master, const States& states, int64_t begin,
                       int64_t end, bool decays) {
  const float* update = op.update_5.as<const float>();
  const float* gradient = op.gradient_P.as<const float>();
  const Vector factor = Splat(update[kUpdateGradientFactor]), rate = Splat(update[kUpdateLearningRate]);
  const Vector decay = Splat(decays ? rule.weight_decay : 0.0f), mu = Splat(rule.momentum);
  ForVectors(end - begin, [&](int64_t offset, auto lanes) HWY_ATTR {
    const int64_t i = begin + offset;
    const Vector p = master.Load(lanes, i);
    const Vector d = hn::MulAdd(decay, p, hn::Mul(lanes.Load(gradient + i), factor));
    Vector direction = d;
    if constexpr (kMomentum != Momentum::kNone) {
      const Vector momentum = hn::MulAdd(mu, states.Load(lanes, 0, i), d);
      states.Store(lanes, momentum, 0, i);
      direction = kMomentum == Momentum::kNesterov ? hn::MulAdd(mu, momentum, d) : momentum;
    }
    master.Store(lanes, hn::NegMulAdd(rate, direction, p), i);
  });
}

void SgdElements(const SgdRule& rule, const Update& op, int64_t begin, int64_t end) {
  ForElements<1>(op, begin, end,
                 [&](const auto& master, const auto& states, int64_t from, int64_t to, bool decays) HWY_ATTR {
                   if (rule.momentum == 0) return SgdRun<Momentum::kNone>(rule, op, master, states, from, to, decays);
                   if (!rule.nesterov) return SgdRun<Momentum::kHeavyBall>(rule, op, master, states, from, to, decays);
                   SgdRun<Momentum::kNesterov>(rule, op, master, states, from, to, decays);
                 });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(SgdElements);

}  // namespace

void UpdateElements(const SgdRule& rule, const Update& op, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SgdElements)(rule, op, begin, end);
}

}  // namespace shale::cpu
#endif

// AdamW. The kernel makes one pass over memory, which bounds it: it moves 28 bytes per parameter (fp32).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_adamw.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

void AdamWElements(const AdamWRule& rule, const Update& op, int64_t begin, int64_t end) {
  ForElements<2>(op, begin, end,
                 [&](const auto& master, const auto& states, int64_t from, int64_t to, bool decays)
                     HWY_ATTR { AdamWRun(rule, op, master, states, from, to, decays); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AdamWElements);

}  // namespace

void UpdateElements(const AdamWRule& rule, const Update& op, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AdamWElements)(rule, op, begin, end);
}

}  // namespace shale::cpu
#endif

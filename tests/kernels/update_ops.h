// Updates for tests: every rule, on master weights in every form.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/update.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// The forms of master weights: the fp32 weight itself, an fp32 master with an fp32, a bf16 or an f16 weight, a bf16
// weight with 16 low bits, and a bf16 weight alone.
enum class Masters { kWeight, kFloatWide, kFloat, kHalf, kSplit, kNone };
inline constexpr Masters kAllMasters[] = {Masters::kWeight, Masters::kFloatWide, Masters::kFloat,
                                          Masters::kHalf,   Masters::kSplit,     Masters::kNone};
std::string Name(Masters masters);

// Returns one of each rule, with fp32 and with bf16 states, and of each variant of SGD.
std::vector<UpdateRule> AllRules();
// Returns a name that tells variants of a rule apart: "SGD_nesterov".
std::string Name(const UpdateRule& rule);

inline constexpr double kRate = 1e-2;

std::shared_ptr<const std::vector<ElementRange>> Ranges(std::vector<ElementRange> ranges);

// Returns `n` numbers in [-1, 1) that fp32 holds.
std::vector<double> RandomMasters(int64_t n);

// Returns an update whose masters are the fp32 values of `masters`, rounded to bf16 for kNone. Gradients lie in [-1,
// 1), which the update multiplies by 0.75; m and momentum lie in [-0.1, 0.1) and v in [0.01, 0.2).
Update MakeUpdate(TestMemory& memory, const UpdateRule& rule, Masters form, const std::vector<double>& masters);

// Returns the masters of `symbolic` in an image.
std::vector<float> MastersOf(const Update& symbolic, const TestMemory& memory, std::vector<std::byte>& image);

// Returns a state of `symbolic` in an image, by its name.
Tensor StateOf(const Update& symbolic, const std::string& name, const TestMemory& memory,
               std::vector<std::byte>& image);

}  // namespace shale::testing

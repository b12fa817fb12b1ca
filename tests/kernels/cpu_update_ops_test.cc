// The ops that a GPU's host runs. That they have the bits of the other CPU ops is shown by the laws of updates on the
// host (//tests/engine:host_update_laws), which use them with the stand-in for CUDA.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/update_ops.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

TEST(CpuUpdateOps, RunUpdatesAndWhatIsNearThemAndRefuseAllElseByName) {
  const std::set<std::string> wanted = {"Accumulate", "Add",   "CombineTotals", "Copy",       "FlagNonFinite",
                                        "MeanFactor", "AdamW", "PrepareUpdate", "RecordNorm", "Sum",
                                        "SumSquares", "Lion",  "SGD",           "AdamW8Bit",  "ZeroRanges"};
  const std::unique_ptr<Ops> ops = CreateCpuUpdateOps(1);
  EXPECT_EQ(ops->host(), ops.get());
  std::set<std::string> refused;
  for (const Op& op : ValidOps()) {
    const std::string name(NameOf(op));
    const absl::Status status = ops->Prepare(op, ops->ScratchBytes(op));
    EXPECT_EQ(status.ok(), wanted.contains(name)) << name << ": " << status;
    if (status.ok()) continue;
    EXPECT_EQ(status, absl::UnimplementedError(absl::StrCat(name, " does not run on the host of a GPU")));
    refused.insert(name);
  }
  EXPECT_TRUE(refused.contains("MatMul"));
}

}  // namespace
}  // namespace shale::testing

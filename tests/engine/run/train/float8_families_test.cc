// Tests jobs whose matmuls are in fp8, from their text to their checkpoints: every family with both scalings.
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/config/fields.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

class Float8FamiliesTest : public ResumeTest {
 protected:
  Job JobOf(const std::string& family, const std::string& precision) const {
    return MakeJob({absl::StrCat("precision={compute: BF16 ", precision, "}"), "sharding.ranks=2",
                    "batch={global_batch: 3 sequence_length: 16}", "checkpoint.every_steps=2"},
                   absl::StrCat("decoder { family: ", family, " width: 32 layers: 2 heads: 2 hidden: 48 }"),
                   "steps: 3");
  }

  // Returns how many elements each part of a checkpoint has, by its name.
  std::map<std::string, size_t> PartsOf(const std::string& folder) {
    std::map<std::string, size_t> parts;
    for (const auto& [name, values] : State(Checkpoint(folder, 2))) parts[name] = values.size();
    return parts;
  }
};

// The fixture expects that each step takes the memory that was planned.
TEST_F(Float8FamiliesTest, EachTrainsAsInBf16AndGoesOnWithTheSameBits) {
  const auto& families = *FindField("model.decoder.family")->enum_type();
  for (int i = 1; i < families.value_count(); ++i) {  // The first value stands for none.
    const std::string& family = families.value(i)->name();
    const Run bf16 = Train(JobOf(family, ""), family);
    ASSERT_TRUE(bf16.status.ok()) << family << ": " << bf16.status;
    for (const char* scaling : {"TENSORWISE", "BLOCKWISE"}) {
      const std::string folder = absl::StrCat(family, "_", scaling), again = folder + "_again";
      SCOPED_TRACE(folder);
      const Job job = JobOf(family, absl::StrCat("matmuls: FP8 fp8_scaling: ", scaling));
      const Run straight = Train(job, folder);
      ASSERT_TRUE(straight.status.ok()) << straight.status;
      ASSERT_EQ(straight.losses.size(), 3);
      // The loss depends on forward alone, as in tests/engine/float8_law_test.cc.
      EXPECT_NE(straight.losses.at(1), bf16.losses.at(1));
      EXPECT_NEAR(straight.losses.at(1), bf16.losses.at(1), 0.02 * bf16.losses.at(1));
      const Run resumed = Train(job, again, From(folder, 2));
      ASSERT_TRUE(resumed.status.ok()) << resumed.status;
      EXPECT_EQ(resumed.losses, (std::map<int64_t, double>{{3, straight.losses.at(3)}}));
      ExpectSameBytes(Checkpoint(folder, 3), Checkpoint(again, 3));
      EXPECT_EQ(PartsOf(folder), PartsOf(family)) << "a checkpoint has something of fp8";
    }
  }
}

}  // namespace
}  // namespace shale

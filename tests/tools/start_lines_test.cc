#include <string>
#include <vector>

#include "engine/cluster/processes/run_start.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Counter : public EventSink {
 public:
  void Take(const RunEvent&) override { ++events; }
  int events = 0;
};

std::vector<std::string> LinesOf(int64_t arena_bytes) {
  std::vector<std::string> lines;
  Counter counter;
  StartLines sink(counter, [&](absl::string_view line) { lines.emplace_back(line.data(), line.size()); });
  sink.Take({.what = PlanReady{.parameters = 7'615'616'512, .arena_bytes = arena_bytes}});
  for (const StartStage stage : {StartStage::kAllocating, StartStage::kLoading, StartStage::kFirstStep}) {
    sink.Take({.what = Progress{stage}});
  }
  sink.Take({.what = StepReport{}});
  EXPECT_EQ(counter.events, 5);
  return lines;
}

TEST(StartLines, OnlyLargeRunsSayWhatTheirStartIsDoing) {
  EXPECT_THAT(
      LinesOf(int64_t{126} << 30),
      ElementsAre("planned: 7,615,616,512 parameters, 126 GiB a rank",
                  "allocating memory, and trying what the run will use of libraries", "setting the initial weights"));
  EXPECT_THAT(LinesOf(StartLines::kLargeArenaBytes - 1), IsEmpty());
}

}  // namespace
}  // namespace shale

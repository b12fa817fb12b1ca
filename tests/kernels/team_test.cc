// Laws of the threads that divide the work of an op.
#include "kernels/cpu/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace shale::cpu {
namespace {

TEST(Team, EachNumberHasAThreadOfItsOwn) {
  for (const int threads : {1, 2, 5}) {
    Team team(threads);
    ASSERT_TRUE(team.Start().ok());
    for (int count = 1; count <= threads; ++count) {
      // All meet here, so no thread can have two numbers.
      std::atomic<int> arrived = 0;
      std::vector<std::thread::id> ids(threads);
      team.Run(count, [&](int i) {
        ids[i] = std::this_thread::get_id();
        ++arrived;
        while (arrived < count) std::this_thread::yield();
      });
      EXPECT_EQ(arrived, count);
      EXPECT_EQ(ids[0], std::this_thread::get_id());
      EXPECT_EQ(std::set(ids.begin(), ids.begin() + count).size(), static_cast<size_t>(count));
    }
  }
}

TEST(Team, TheCallingThreadDoesAllWorkUntilTheStart) {
  Team team(3);
  int calls = 0;
  team.Run(3, [&](int i) { EXPECT_EQ(i, calls++); });
  EXPECT_EQ(calls, 3);
}

TEST(Team, EveryPartRunsOnce) {
  Team team(3);
  ASSERT_TRUE(team.Start().ok());
  ASSERT_TRUE(team.Start().ok());  // It has started.
  for (const int64_t parts : {0, 1, 2, 3, 1000}) {
    std::vector<int> runs(parts);
    team.RunParts(3, parts, [&](int64_t part, int i) {
      EXPECT_LT(i, 3);
      ++runs[part];
    });
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), parts);
  }
}

TEST(Team, ThreadsThatWaitedForLongAreWoken) {
  Team team(2);
  ASSERT_TRUE(team.Start().ok());
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Ten times as long as a helper looks for work.
    std::atomic<int> calls = 0;
    team.Run(2, [&](int number) {
      if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Then the caller sleeps.
      ++calls;
    });
    EXPECT_EQ(calls, 2);
  }
}

TEST(Team, SeveralThreadsMayCallAtOnce) {
  Team team(3);
  ASSERT_TRUE(team.Start().ok());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        std::vector<int64_t> values(37);
        ParallelFor(team, 37, 5, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(thread, 3);
          std::iota(values.begin() + begin, values.begin() + end, begin);
        });
        for (int64_t j = 0; j < 37; ++j) ASSERT_EQ(values[j], j);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Team, LoopsOverBlocksCoverTheirRangeOnce) {
  Team team(4);
  ASSERT_TRUE(team.Start().ok());
  for (const int64_t n : {0, 1, 6, 7, 8, 100}) {
    std::vector<int> visits(n);
    ParallelFor(team, n, 7, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 7, 0);
      EXPECT_LE(end - begin, 7);
      for (int64_t i = begin; i < end; ++i) ++visits[i];
    });
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), n);
  }
}

}  // namespace
}  // namespace shale::cpu

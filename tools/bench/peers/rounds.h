// Times the collectives of another library as the comm bench times those of the engine: with the same sizes, the same
// number of calls and rounds, and from the first begin to the last end of all processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

// What a library does in a process. `full` has `count` numbers, `part` those of this process.
struct Peers {
  int process = 0, processes = 1;
  std::function<void()> barrier;
  std::function<double(double)> least;  // Of the values of all processes.
  std::function<void(float*full, float*part, int64_t count)> all_gather, reduce_scatter, all_reduce;
};

// Prints a line for each collective and size in process 0: its name, bytes, and the median of seconds. The arguments
// are the smallest and the largest KiB, the factor between sizes, rounds, and seconds for each line.
inline int TimeCollectives(const Peers& peers, char** arguments) {
  const int64_t smallest = std::atoll(arguments[0]) * 1024, largest = std::atoll(arguments[1]) * 1024;
  const int64_t factor = std::atoll(arguments[2]), rounds = std::atoll(arguments[3]);
  const double share = std::atof(arguments[4]) / static_cast<double>(rounds);
  const int64_t unit = int64_t{64} * peers.processes;
  std::vector<float> full(largest / 4 + unit), part(largest / 4 + unit);  // Zeros, written once.
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const auto time = [&](const auto& collective, int64_t count, int64_t calls) {
    peers.barrier();
    const double begin = now();
    for (int64_t i = 0; i < calls; ++i) collective(full.data(), part.data(), count);
    const double end = now();
    return (-peers.least(-end) - peers.least(begin)) / static_cast<double>(calls);
  };
  const auto report = [&](const char* name, const auto& collective) {
    for (int64_t bytes = smallest; bytes <= largest; bytes *= factor) {
      const int64_t size = (bytes + unit - 1) / unit * unit;
      time(collective, size / 4, 1);
      const double first = time(collective, size / 4, 2);
      const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(share / first), 1, 200);
      std::vector<double> seconds;
      for (int64_t i = 0; i < rounds; ++i) seconds.push_back(time(collective, size / 4, calls));
      std::sort(seconds.begin(), seconds.end());
      if (peers.process == 0) std::printf("%s %lld %g\n", name, static_cast<long long>(size), seconds[rounds / 2]);
    }
  };
  report("AllGather", peers.all_gather);
  report("ReduceScatterSum", peers.reduce_scatter);
  report("AllReduceSum", peers.all_reduce);
  return 0;
}

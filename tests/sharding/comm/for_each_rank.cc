#include <thread>

#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {

void ForEachRank(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shale

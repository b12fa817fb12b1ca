#include <thread>
#include <utility>

#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

std::function<bool(int rank, int ranks)>& RanksHere() {
  static auto& here = *new std::function<bool(int, int)>();
  return here;
}

}  // namespace

void SetRanksHere(std::function<bool(int rank, int ranks)> is_here) { RanksHere() = std::move(is_here); }

void ForEachRank(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    if (RanksHere() == nullptr || RanksHere()(rank, ranks)) threads.emplace_back(body, rank);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shale

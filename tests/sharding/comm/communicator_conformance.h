// What every Communicator must do. A backend links this suite and registers itself:
//
//   INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorConformance,
//                            ::testing::Values(CommunicatorCase{"Threads", create_group, create_device}), CaseName);
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device/device.h"
#include "sharding/comm/communicator.h"

namespace shale {

using Group = std::vector<std::unique_ptr<Communicator>>;

struct CommunicatorCase {
  std::string name;
  std::function<Group(int size)> create_group;
  std::function<std::unique_ptr<Device>()> create_device;  // Host-addressable memory.
};
inline void PrintTo(const CommunicatorCase& c, std::ostream* out) { *out << c.name; }
inline std::string CaseName(const ::testing::TestParamInfo<CommunicatorCase>& info) { return info.param.name; }

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  Group CreateGroup(int size) { return GetParam().create_group(size); }

  std::unique_ptr<Device> device_ = GetParam().create_device();
};

// Runs body(rank) for every rank, each in a thread of its own, and waits.
void ForEachRank(int ranks, const std::function<void(int rank)>& body);

}  // namespace shale

// What every Device must do. A backend links this suite and registers itself:
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
//                            ::testing::Values(DeviceCase{"Threads", [] { return ...; }}), CaseName);
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "kernels/device/device.h"

namespace shale {

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> create;
};
inline void PrintTo(const DeviceCase& device_case, std::ostream* out) { *out << device_case.name; }
inline std::string CaseName(const ::testing::TestParamInfo<DeviceCase>& info) { return info.param.name; }

class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  std::unique_ptr<Stream> MakeStream(absl::string_view name);
  std::unique_ptr<Event> MakeEvent();
  std::unique_ptr<Arena> MakeArena(int64_t size_bytes);

  std::unique_ptr<Device> device_ = GetParam().create();
};

}  // namespace shale

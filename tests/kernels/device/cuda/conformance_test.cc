#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/kernels/device/device_conformance.h"

namespace shale {
namespace {

INSTANTIATE_TEST_SUITE_P(CudaOnStandIn, DeviceConformance,
                         ::testing::Values(DeviceCase{"Streams", [] { return std::make_unique<DeviceOnStandIn>(); }},
                                           DeviceCase{"Synchronous",
                                                      [] {
                                                        return std::make_unique<DeviceOnStandIn>(
                                                            CudaDeviceOptions{.synchronous = true});
                                                      }}),
                         CaseName);

}  // namespace
}  // namespace shale

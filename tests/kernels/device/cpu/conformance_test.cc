#include "kernels/device/cpu/cpu_device.h"
#include "tests/kernels/device/device_conformance.h"

namespace shale {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Cpu, DeviceConformance,
    ::testing::Values(DeviceCase{"Threads", [] { return CreateCpuDevice(); }},
                      DeviceCase{"ShallowQueues", [] { return CreateCpuDevice({.queue_depth = 3}); }},
                      DeviceCase{"OneItemQueues", [] { return CreateCpuDevice({.queue_depth = 1}); }},
                      DeviceCase{"Synchronous", [] { return CreateCpuDevice({.synchronous = true}); }}),
    CaseName);

}  // namespace
}  // namespace shale

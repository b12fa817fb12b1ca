// Runs the cases of attention_on_device.h with stand-ins for CUDA and cuDNN, so that the cases are known to work.
// tests/gpu/cudnn_test.cc runs them on a GPU.
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/cudnn/attention_on_device.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale::testing {
namespace {

CudaRuntime& Runtime() {
  static auto& runtime = *new cuda_on_host::StandInRuntime;
  return runtime;
}

INSTANTIATE_TEST_SUITE_P(StandIns, AttentionOnDeviceTest,
                         ::testing::Values(AttentionMachine{
                             .backend = {.name = "stand_in",
                                         .placement = Placement::kTogether,
                                         .runtime = Runtime,
                                         .create_matmuls =
                                             [] { return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps()); }},
                             .load =
                                 [] {
                                   static auto& library = *new AttentionStandIn;
                                   return library.Graphs();
                                 }}),
                         MachineName);

}  // namespace
}  // namespace shale::testing

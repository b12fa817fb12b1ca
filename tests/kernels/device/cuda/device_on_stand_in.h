// A CudaDevice on a stand-in for CUDA's runtime, which it owns.
#pragma once

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/cuda_device.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale {

// The destructor expects that nothing was misused and that nothing is left.
class DeviceOnStandIn : public Device {
 public:
  explicit DeviceOnStandIn(const CudaDeviceOptions& options = {},
                           const cuda_on_host::StandInOptions& stand_in = {.allow_pageable = true})
      : runtime_(stand_in), device_(*CudaDevice::Create(runtime_, options)) {}
  ~DeviceOnStandIn() override {
    device_.reset();
    EXPECT_THAT(runtime_.misuse(), ::testing::IsEmpty());
    EXPECT_TRUE(runtime_.CheckAllReleased().ok()) << runtime_.CheckAllReleased();
  }

  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override { return device_->Allocate(size_bytes); }
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override {
    return device_->AllocatePinned(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override {
    return device_->CreateStream(name);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return device_->CreateEvent(); }
  bool CanCapture() const override { return device_->CanCapture(); }

  CudaDevice& cuda() { return *device_; }
  cuda_on_host::StandInRuntime& runtime() { return runtime_; }

 private:
  cuda_on_host::StandInRuntime runtime_;
  std::unique_ptr<CudaDevice> device_;
};

}  // namespace shale

// A contiguous tensor in GPU memory that the host can fill and read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "gtest/gtest.h"
#include "kernels/device/device.h"
#include "kernels/tensor.h"

namespace shale::testing {

// Holds f32 or bf16, initially zeros. Owns its memory; borrows device and stream, which must outlive it.
class GpuTensor {
 public:
  GpuTensor(Device& device, Stream& stream, DType dtype, std::initializer_list<int64_t> shape)
      : stream_(stream), tensor_(Tensor::Contiguous(dtype, shape)) {
    arena_ = *device.Allocate(tensor_.extent_bytes());
    tensor_.data = arena_->base();
    bounce_ = *device.AllocatePinned(kPiece * 4);
  }

  const Tensor& tensor() const { return tensor_; }

  // Sets element i to value(i) for every i. Blocks until the copies have finished.
  void Fill(const std::function<float(int64_t)>& value) {
    for (int64_t begin = 0; begin < tensor_.elements(); begin += kPiece) {
      const int64_t count = std::min(kPiece, tensor_.elements() - begin);
      for (int64_t i = 0; i < count; ++i) {
        if (tensor_.dtype == DType::kFloat32) {
          reinterpret_cast<float*>(bounce_->base())[i] = value(begin + i);
        } else {
          reinterpret_cast<BFloat16*>(bounce_->base())[i] = RoundToBFloat16(value(begin + i));
        }
      }
      Move(AddressOf(begin), bounce_->base(), count * SizeOf(tensor_.dtype));
    }
  }

  // Returns element i. Blocks until all earlier work on the stream has finished.
  float At(int64_t i) const {
    Move(bounce_->base(), AddressOf(i), SizeOf(tensor_.dtype));
    return tensor_.dtype == DType::kFloat32 ? *reinterpret_cast<const float*>(bounce_->base())
                                            : ToFloat(*reinterpret_cast<const BFloat16*>(bounce_->base()));
  }

 private:
  static constexpr int64_t kPiece = 1 << 20;  // Elements.

  std::byte* AddressOf(int64_t i) const { return arena_->base() + i * SizeOf(tensor_.dtype); }
  void Move(std::byte* to, const std::byte* from, int64_t size_bytes) const {
    ASSERT_TRUE(stream_.Copy(to, from, size_bytes).ok());
    const absl::Status status = stream_.Synchronize();
    ASSERT_TRUE(status.ok()) << status;
  }

  Stream& stream_;
  Tensor tensor_;
  std::unique_ptr<Arena> arena_, bounce_;
};

}  // namespace shale::testing

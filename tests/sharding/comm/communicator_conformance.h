// What every Communicator must do. A backend links this suite and registers itself:
//
//   INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorConformance,
//                            ::testing::Values(CommunicatorCase{"Threads", create_device, create_group}), CaseName);
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device/device.h"
#include "kernels/tensor.h"
#include "sharding/comm/communicator.h"

namespace shale {

using Group = std::vector<std::unique_ptr<Communicator>>;

struct CommunicatorCase {
  std::string name;
  // Creates one device for all ranks. Its streams copy from and to any host memory.
  std::function<std::unique_ptr<Device>()> create_device;
  // Creates a group whose streams and memory are those of `device`, which outlives the group.
  std::function<Group(int size, Device& device)> create_group;
  // Whether all ranks learn of an abort through the group. If not, those of other processes learn of it through their
  // control plane, which the suite does not have.
  bool aborts_reach_all = true;
};
inline void PrintTo(const CommunicatorCase& c, std::ostream* out) { *out << c.name; }
inline std::string CaseName(const ::testing::TestParamInfo<CommunicatorCase>& info) { return info.param.name; }

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  Group CreateGroup(int size) { return GetParam().create_group(size, *device_); }

  std::unique_ptr<Device> device_ = GetParam().create_device();
};

// Makes ForEachRank leave out the ranks that are not in this process. Where several processes run the suite together,
// each creates the same groups, in which the communicators of other processes are null.
void SetRanksHere(std::function<bool(int rank, int ranks)> is_here);

// Runs body(rank) for every rank of this process, each in a thread of its own, and waits.
void ForEachRank(int ranks, const std::function<void(int rank)>& body);

// Expects that an all-reduce of `elements` numbers of very different size has the bits of fp32 sums in rank order,
// which not every kind of group promises.
void ExpectSumsInRankOrder(Group& group, Device& device, int64_t elements);

// Checks AllToAlls of several element types. Pieces have none to some thousand elements, times `times`, and lie apart.
// All ranks of the group make the call.
void CheckAllToAll(Communicator& communicator, Device& device, Stream& stream, int64_t times = 1);

// Expects that all ranks of the group, of two or more, get InvalidArgument if one sends another more than that one
// wants, which not every kind of group promises. The group is of no use afterwards.
void ExpectDifferentPiecesAreRefused(Group& group, Device& device);

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>     ? DType::kFloat32
                           : std::is_same_v<T, double>  ? DType::kFloat64
                           : std::is_same_v<T, int64_t> ? DType::kInt64
                           : std::is_same_v<T, int32_t> ? DType::kInt32
                                                        : DType::kInt16;

// Returns the first element that differs, or -1. One assertion for each element would take longer than the collectives.
template <class T>
int64_t FirstDifference(const std::vector<T>& found, const std::vector<T>& expected) {
  if (found == expected) return -1;
  return std::mismatch(found.begin(), found.end(), expected.begin(), expected.end()).first - found.begin();
}

// A vector in device memory, zeros at first. The host accesses it through copies on a stream.
template <class T>
class DeviceVector {
 public:
  DeviceVector(Device& device, int64_t size) : size_(size), arena_(*device.Allocate(size * int64_t{sizeof(T)})) {}
  DeviceVector(Device& device, const std::vector<T>& values, Stream& stream)
      : DeviceVector(device, std::ssize(values)) {
    Write(values, stream);
  }

  T* data() const { return reinterpret_cast<T*>(arena_->base()); }
  Tensor View() const { return View(0, size_); }
  Tensor View(int64_t begin, int64_t count) const { return Tensor::Contiguous(kDTypeOf<T>, {count}, data() + begin); }

  // Write and Read wait for the stream.
  void Write(const std::vector<T>& values, Stream& stream) {
    EXPECT_TRUE(stream.Copy(data(), values.data(), size_ * int64_t{sizeof(T)}).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
  }
  std::vector<T> Read(Stream& stream) const {
    std::vector<T> values(size_);
    EXPECT_TRUE(stream.Copy(values.data(), data(), size_ * int64_t{sizeof(T)}).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return values;
  }

 private:
  int64_t size_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace shale

#include "tests/kernels/test_memory.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "kernels/float8.h"
#include "kernels/integers.h"

namespace shale::testing {
namespace {

template <class T, class ValueOf>
void FillAs(const Tensor& t, ValueOf value_of) {
  for (int64_t i = 0; i < t.elements(); ++i) {
    const double value = value_of(i);
    if constexpr (sizeof(T) == 1 && std::is_class_v<T>) {
      t.as<T>()[i] = SaturateToFloat8<T>(static_cast<float>(value));
    } else if constexpr (std::is_class_v<T>) {
      t.as<T>()[i] = RoundTo<T>(static_cast<float>(value));
    } else {
      t.as<T>()[i] = static_cast<T>(value);
    }
  }
}

// Sets each element i of a contiguous tensor to value_of(i), as SetElement does. Large operands take their time.
template <class ValueOf>
void Fill(const Tensor& t, ValueOf value_of) {
  switch (t.dtype) {
    case DType::kFloat32: return FillAs<float>(t, value_of);
    case DType::kBFloat16: return FillAs<BFloat16>(t, value_of);
    case DType::kFloat16: return FillAs<Float16>(t, value_of);
    case DType::kFloat64: return FillAs<double>(t, value_of);
    case DType::kInt16: return FillAs<int16_t>(t, value_of);
    case DType::kInt32: return FillAs<int32_t>(t, value_of);
    case DType::kInt64: return FillAs<int64_t>(t, value_of);
    case DType::kUInt8: return FillAs<uint8_t>(t, value_of);
    case DType::kFloat8E4M3: return FillAs<Float8E4M3>(t, value_of);
    case DType::kFloat8E5M2: return FillAs<Float8E5M2>(t, value_of);
  }
}

}  // namespace

Tensor TestMemory::Allocate(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t = Tensor::Contiguous(dtype, shape);
  t.where.symbol = static_cast<int32_t>(buffers_.size());
  const int64_t begin = RoundUp(std::ssize(image_), 256);
  image_.resize(begin, std::byte{0xC3});
  buffers_.push_back({begin, t.extent_bytes()});
  image_.resize(begin + t.extent_bytes(), std::byte{0xFF});
  image_.resize(image_.size() + kRedZoneBytes, std::byte{0xC3});
  return t;
}

double TestMemory::Uniform(double low, double high) {
  // splitmix64 (Steele, Lea and Flood, 2014).
  uint64_t z = seed_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return low + (high - low) * static_cast<double>(z >> 11) * 0x1p-53;
}

Tensor TestMemory::Random(DType dtype, std::initializer_list<int64_t> shape, double low, double high) {
  const Tensor t = Allocate(dtype, shape);
  Fill(Bind(t, image_.data()), [&](int64_t) { return Uniform(low, high); });
  return t;
}

Tensor TestMemory::RandomIntegers(DType dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high) {
  const Tensor t = Allocate(dtype, shape);
  Fill(Bind(t, image_.data()),
       [&](int64_t) { return std::floor(Uniform(static_cast<double>(low), static_cast<double>(high))); });
  return t;
}

Tensor TestMemory::Values(DType dtype, std::initializer_list<int64_t> shape, absl::Span<const double> values) {
  const Tensor t = Allocate(dtype, shape);
  SHALE_CHECK(t.elements() == static_cast<int64_t>(values.size()));
  Fill(Bind(t, image_.data()), [&](int64_t i) { return values[i]; });
  return t;
}

Tensor TestMemory::FloatBits(std::initializer_list<int64_t> shape, absl::Span<const uint32_t> bits) {
  const Tensor t = Allocate(DType::kFloat32, shape);
  SHALE_CHECK(t.elements() == static_cast<int64_t>(bits.size()));
  std::memcpy(Bind(t, image_.data()).data, bits.data(), bits.size() * sizeof(uint32_t));
  return t;
}

Tensor TestMemory::Output(DType dtype, std::initializer_list<int64_t> shape) { return Allocate(dtype, shape); }

Tensor TestMemory::Bind(const Tensor& t, std::byte* base) const {
  Tensor bound = t;
  if (t.present()) bound.data = base + buffers_[t.where.symbol].begin + t.where.offset_bytes;
  return bound;
}

Op TestMemory::Bind(const Op& op, std::byte* base) const {
  Op bound = op;
  VisitOperands(bound, [&](absl::string_view, Tensor& t, Access) { t = Bind(t, base); });
  return bound;
}

Op TestMemory::Bind(const Op& op, absl::Span<std::byte* const> buffers) const {
  Op bound = op;
  VisitOperands(bound, [&](absl::string_view, Tensor& t, Access) {
    if (t.present()) t.data = buffers[t.where.symbol] + t.where.offset_bytes;
  });
  return bound;
}

AlignedBytes::AlignedBytes(absl::Span<const std::byte> bytes)
    : data_(static_cast<std::byte*>(std::aligned_alloc(4096, RoundUp(std::ssize(bytes), 4096)))) {
  SHALE_CHECK(data_ != nullptr);
  std::memcpy(data_, bytes.data(), bytes.size());
}

AlignedBytes::~AlignedBytes() { std::free(data_); }

int64_t OffsetOf(const Tensor& t, int64_t index) {
  int64_t offset = 0;
  for (int i = t.rank - 1; i >= 0; --i) {
    offset += index % t.shape[i] * t.strides[i];
    index /= t.shape[i];
  }
  return offset;
}

double ElementOf(const Tensor& t, int64_t index) {
  const int64_t at = OffsetOf(t, index);
  switch (t.dtype) {
    case DType::kFloat32: return t.as<const float>()[at];
    case DType::kBFloat16: return ToFloat(t.as<const BFloat16>()[at]);
    case DType::kFloat16: return ToFloat(t.as<const Float16>()[at]);
    case DType::kFloat64: return t.as<const double>()[at];
    case DType::kInt16: return t.as<const int16_t>()[at];
    case DType::kInt32: return t.as<const int32_t>()[at];
    case DType::kInt64: return static_cast<double>(t.as<const int64_t>()[at]);
    case DType::kUInt8: return t.as<const uint8_t>()[at];
    case DType::kFloat8E4M3: return ToFloat(t.as<const Float8E4M3>()[at]);
    case DType::kFloat8E5M2: return ToFloat(t.as<const Float8E5M2>()[at]);
  }
  return 0;
}

void SetElement(const Tensor& t, int64_t index, double value) {
  const int64_t at = OffsetOf(t, index);
  switch (t.dtype) {
    case DType::kFloat32: t.as<float>()[at] = static_cast<float>(value); break;
    case DType::kBFloat16: t.as<BFloat16>()[at] = RoundToBFloat16(static_cast<float>(value)); break;
    case DType::kFloat16: t.as<Float16>()[at] = RoundToFloat16(static_cast<float>(value)); break;
    case DType::kFloat64: t.as<double>()[at] = value; break;
    case DType::kInt16: t.as<int16_t>()[at] = static_cast<int16_t>(value); break;
    case DType::kInt32: t.as<int32_t>()[at] = static_cast<int32_t>(value); break;
    case DType::kInt64: t.as<int64_t>()[at] = static_cast<int64_t>(value); break;
    case DType::kUInt8: t.as<uint8_t>()[at] = static_cast<uint8_t>(value); break;
    case DType::kFloat8E4M3: t.as<Float8E4M3>()[at] = SaturateToFloat8E4M3(static_cast<float>(value)); break;
    case DType::kFloat8E5M2: t.as<Float8E5M2>()[at] = SaturateToFloat8E5M2(static_cast<float>(value)); break;
  }
}

}  // namespace shale::testing

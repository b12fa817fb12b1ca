#include "absl/strings/string_view.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/check.h"

namespace shale {
namespace {

struct DTypeRow {
  SafetensorsDType dtype;
  absl::string_view name;
  int bits;
};

constexpr DTypeRow kDTypes[] = {
    {SafetensorsDType::kF4, "F4", 4},
    {SafetensorsDType::kF6_E2M3, "F6_E2M3", 6},
    {SafetensorsDType::kF6_E3M2, "F6_E3M2", 6},
    {SafetensorsDType::kBOOL, "BOOL", 8},
    {SafetensorsDType::kU8, "U8", 8},
    {SafetensorsDType::kI8, "I8", 8},
    {SafetensorsDType::kF8_E5M2, "F8_E5M2", 8},
    {SafetensorsDType::kF8_E4M3, "F8_E4M3", 8},
    {SafetensorsDType::kF8_E8M0, "F8_E8M0", 8},
    {SafetensorsDType::kF8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {SafetensorsDType::kF8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {SafetensorsDType::kI16, "I16", 16},
    {SafetensorsDType::kU16, "U16", 16},
    {SafetensorsDType::kF16, "F16", 16},
    {SafetensorsDType::kBF16, "BF16", 16},
    {SafetensorsDType::kI32, "I32", 32},
    {SafetensorsDType::kU32, "U32", 32},
    {SafetensorsDType::kF32, "F32", 32},
    {SafetensorsDType::kI64, "I64", 64},
    {SafetensorsDType::kU64, "U64", 64},
    {SafetensorsDType::kF64, "F64", 64},
    {SafetensorsDType::kC64, "C64", 64},
};

}  // namespace

absl::string_view ToString(SafetensorsDType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

int BitsPerElement(SafetensorsDType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.bits;
  }
  SHALE_CHECK(false) << "no such dtype";
  return 8;
}

std::optional<SafetensorsDType> FindSafetensorsDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

SafetensorsDType ToSafetensors(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return SafetensorsDType::kF32;
    case DType::kBFloat16: return SafetensorsDType::kBF16;
    case DType::kFloat64: return SafetensorsDType::kF64;
    case DType::kInt16: return SafetensorsDType::kI16;
    case DType::kInt32: return SafetensorsDType::kI32;
    case DType::kInt64: return SafetensorsDType::kI64;
    case DType::kUInt8: return SafetensorsDType::kU8;
  }
  SHALE_CHECK(false) << "no such dtype";
  return SafetensorsDType::kU8;
}

}  // namespace shale

#include "kernels/cuda/cublaslt/matmul_key.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

// Returns the row stride. If there is only one row, returns its length, because the stride is never used and may be
// anything.
int64_t LeadingDimension(const Tensor& t) { return t.dim(0) == 1 ? t.dim(1) : t.stride(0); }

// Calls visit(name, field) for every field, in the order of ToString.
template <class Key, class Visit>
void VisitFields(Key& key, const Visit& visit) {
  visit("a", key.a);
  visit("b", key.b);
  visit("c", key.c);
  visit("ta", key.transpose_a);
  visit("tb", key.transpose_b);
  visit("m", key.m);
  visit("n", key.n);
  visit("k", key.k);
  visit("lda", key.lda);
  visit("ldb", key.ldb);
  visit("ldc", key.ldc);
  visit("align_a", key.align_a);
  visit("align_b", key.align_b);
  visit("align_c", key.align_c);
  visit("align_bias", key.align_bias);
  visit("bias", key.bias);
  visit("accumulate", key.accumulate);
  visit("tf32", key.tf32);
  visit("fast", key.fast);
  visit("scales", key.scales);
}

std::string Print(DType dtype) { return absl::StrCat(shale::ToString(dtype)); }
std::string Print(bool value) { return value ? "1" : "0"; }
std::string Print(int64_t value) { return absl::StrCat(value); }
std::string Print(Float8Scales scales) { return absl::StrCat(shale::ToString(scales)); }

bool Read(absl::string_view text, DType& dtype) {
  for (const DType candidate :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    if (text == shale::ToString(candidate)) {
      dtype = candidate;
      return true;
    }
  }
  return false;
}
bool Read(absl::string_view text, bool& value) {
  value = text == "1";
  return value || text == "0";
}
bool Read(absl::string_view text, int64_t& value) {
  // Only one spelling of a number is accepted: no sign, no leading zeros or spaces.
  return absl::SimpleAtoi(text, &value) && value >= 0 && absl::StrCat(value) == text;
}
bool Read(absl::string_view text, Float8Scales& scales) {
  for (const Float8Scales candidate : {Float8Scales::kOne, Float8Scales::kTiles, Float8Scales::kBlocks}) {
    if (text != shale::ToString(candidate)) continue;
    scales = candidate;
    return true;
  }
  return false;
}

bool IsAlignment(int64_t bytes, int64_t element_bytes) {
  return bytes >= element_bytes && bytes <= MatMulKey::kMaxAlignment && (bytes & (bytes - 1)) == 0;
}

// Returns whether Validate accepts such dtypes, transposes and scales.
bool FormFits(const MatMulKey& key) {
  if (!IsComputeDType(key.c)) return false;
  const bool one = key.scales == Float8Scales::kOne;
  if (!IsFloat8(key.a)) return key.a == key.b && (key.c == key.a || key.c == DType::kFloat32) && !key.fast && one;
  return IsFloat8(key.b) && (key.a == DType::kFloat8E4M3 || key.b == DType::kFloat8E4M3) && !key.transpose_a &&
         key.transpose_b && key.n % kFloat8Multiple == 0 && key.k % kFloat8Multiple == 0 &&
         (one || (key.m % kFloat8RowMultiple == 0 && !key.fast));
}

// Returns whether MatMulKey::Of could have made `key`.
bool Plausible(const MatMulKey& key) {
  const int64_t c_size = SizeOf(key.c);
  return key.m > 0 && key.n > 0 && key.k > 0 &&                                                                      //
         key.lda >= (key.transpose_a ? key.m : key.k) &&                                                             //
         key.ldb >= (key.transpose_b ? key.k : key.n) &&                                                             //
         key.ldc >= key.n &&                                                                                         //
         IsAlignment(key.align_a, SizeOf(key.a)) &&                                                                  //
         IsAlignment(key.align_b, SizeOf(key.b)) &&                                                                  //
         IsAlignment(key.align_c, c_size) &&                                                                         //
         (key.bias ? IsAlignment(key.align_bias, c_size) : key.align_bias == 0) && !(key.bias && key.accumulate) &&  //
         FormFits(key) &&                                                                                            //
         !(key.tf32 && key.a != DType::kFloat32);
}

}  // namespace

int64_t MatMulKey::AlignmentOf(const Tensor& t) {
  const int64_t address = t.data != nullptr ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data))
                                            : t.where.offset_bytes | t.where.shard_stride_bytes;
  const int64_t bits = address | kMaxAlignment;
  return bits & -bits;
}

bool MatMulKey::AddsBias(const MatMul& op) {
  if (!op.bias_N.present() || op.bias_N.dtype != op.c_MN.dtype) return false;
  if (op.is_float8() && op.c_MN.dtype == DType::kFloat32) return false;
  const int64_t row_bytes = LeadingDimension(op.c_MN) * SizeOf(op.c_MN.dtype);
  return op.c_MN.dtype == DType::kFloat32 ||
         (row_bytes % kBiasAlignment == 0 && AlignmentOf(op.c_MN) >= kBiasAlignment);
}

MatMulKey MatMulKey::Of(const MatMul& op, bool allow_tf32) {
  const bool bias = AddsBias(op);
  return {.a = op.a.dtype,
          .b = op.b.dtype,
          .c = op.c_MN.dtype,
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .m = op.m(),
          .n = op.n(),
          .k = op.k(),
          .lda = LeadingDimension(op.a),
          .ldb = LeadingDimension(op.b),
          .ldc = LeadingDimension(op.c_MN),
          .align_a = AlignmentOf(op.a),
          .align_b = AlignmentOf(op.b),
          .align_c = AlignmentOf(op.c_MN),
          .align_bias = bias ? AlignmentOf(op.bias_N) : 0,
          .bias = bias,
          .accumulate = op.accumulate || (op.bias_N.present() && !bias),
          .tf32 = allow_tf32 && op.a.dtype == DType::kFloat32,
          .fast = op.fast_accumulation,
          .scales = op.scales};
}

std::string MatMulKey::ToString() const {
  std::string text;
  VisitFields(*this, [&](absl::string_view name, const auto& field) {
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", Print(field));
  });
  return text;
}

absl::StatusOr<MatMulKey> MatMulKey::Parse(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  MatMulKey key;
  size_t at = 0;
  std::string wrong;
  VisitFields(key, [&](absl::string_view name, auto& field) {
    if (!wrong.empty()) return;
    const absl::string_view word = at < words.size() ? words[at] : absl::string_view();
    ++at;
    const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0] != name || !Read(parts[1], field)) {
      wrong = absl::StrCat("wanted ", name, "=..., found \"", word.substr(0, 40), "\"");
    }
  });
  if (wrong.empty() && at != words.size()) wrong = absl::StrCat("found more than ", at, " words");
  if (wrong.empty() && !Plausible(key)) wrong = "no matmul has these sizes, strides, alignments and types";
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat("not a matmul: ", wrong));
  return key;
}

}  // namespace shale::cuda

// TuningTable: the fastest algorithm of cuBLASLt for each product, as measured, by GPU and version of the library.
//
// Its text, which people may read and tools merge:
//
//   shale cublaslt algorithms 1
//   on NVIDIA H200, cublaslt 130100
//   ab=bf16 c=f32 ta=1 tb=0 m=4096 ... tf32=0 -> 0000000000000042 ... (an algorithm: 8 words of 16 hex digits)
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cublaslt/product_key.h"

namespace shale::cuda {

// A cublasLtMatmulAlgo_t: opaque words, which mean something to the version of the library that gave them, only.
using ProductAlgorithm = std::array<uint64_t, 8>;

class TuningTable {
 public:
  struct Machine {
    std::string gpu;              // As CUDA names it. Printable, not empty.
    int64_t library_version = 0;  // cublasLtGetVersion: 130100 is 13.1.0.
    friend auto operator<=>(const Machine&, const Machine&) = default;
  };

  // Takes what Print gives, with lines that begin with # and machines and products in any order, and nothing else; an
  // error names the line. A product that is there twice is refused.
  static absl::StatusOr<TuningTable> Parse(absl::string_view text);
  // In one order, whatever the order of Set.
  std::string Print() const;
  // 16 hex digits, of Print(): FNV-1a of 64 bits (Fowler, Noll and Vo, 1991). Tells tables apart; no protection.
  std::string Digest() const;

  // Replaces what was there. InvalidArgument for a machine that could not be printed.
  absl::Status Set(const Machine& machine, const ProductKey& key, const ProductAlgorithm& algorithm);
  // Null when there is none. Lives until the next Set.
  const ProductAlgorithm* Find(const Machine& machine, const ProductKey& key) const;
  int64_t size() const;

 private:
  std::map<Machine, std::map<ProductKey, ProductAlgorithm>> machines_;
};

}  // namespace shale::cuda

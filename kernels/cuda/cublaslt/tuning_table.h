// TuningTable: the fastest measured algorithm of cuBLASLt for each matmul, by GPU and library version.
//
// Its text form, which people can read and tools can merge, looks like this:
//
//   shale cublaslt algorithms 3
//   on NVIDIA H200, cublaslt 130100
//   a=bf16 b=bf16 c=f32 ta=1 tb=0 m=4096 ... fast=0 -> 0000000000000042 ... (an algorithm: 8 words of 16 hex digits)
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cublaslt/matmul_key.h"

namespace shale::cuda {

// The workspace that every matmul may use. NVIDIA recommends 32 MiB for Hopper.
inline constexpr int64_t kMatMulWorkspaceBytes = int64_t{32} << 20;

// A cublasLtMatmulAlgo_t: opaque words that only the library version that returned them understands.
using MatMulAlgorithm = std::array<uint64_t, 8>;

class TuningTable {
 public:
  struct Machine {
    std::string gpu;              // CUDA's name for it. Printable, not empty.
    int64_t library_version = 0;  // From cublasLtGetVersion: 130100 is 13.1.0.
    friend auto operator<=>(const Machine&, const Machine&) = default;
  };

  // Parses the output of Print. Machines and matmuls may be in any order, and lines that are empty or begin with # are
  // skipped. Returns InvalidArgument, naming the line, for anything else and for a matmul that occurs twice.
  static absl::StatusOr<TuningTable> Parse(absl::string_view text);
  // Returns the text form. Its order does not depend on the order of Set.
  std::string Print() const;
  // Returns the 64-bit FNV-1a hash of Print() (Fowler, Noll and Vo, 1991) as 16 hex digits. It tells tables apart but
  // does not protect against tampering.
  std::string Digest() const;

  // Sets the algorithm for a matmul, and replaces an earlier one if there is any. Returns InvalidArgument for a machine
  // that Print could not represent.
  absl::Status Set(const Machine& machine, const MatMulKey& key, const MatMulAlgorithm& algorithm);
  // Returns the algorithm for a matmul, or null if there is none. The result is valid until the next Set.
  const MatMulAlgorithm* Find(const Machine& machine, const MatMulKey& key) const;
  // Return the number of entries of all machines, and of one.
  int64_t size() const;
  int64_t size(const Machine& machine) const;

 private:
  std::map<Machine, std::map<MatMulKey, MatMulAlgorithm>> machines_;
};

}  // namespace shale::cuda

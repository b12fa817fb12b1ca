// Matmuls of bf16 in the tile registers of AMX. One instruction multiplies 16 rows by 16 columns over 32 bf16, sixteen
// times as much as vdpbf16ps. Private to kernels/cpu.
//
// The instructions are written as assembly, because the compiler's functions for them need a target attribute, and a
// function that has one is not inlined into kernels that lack it. Call these functions only if MayUseAmx()
// (bfloat16_instructions.h).
#pragma once

#include <cstdint>

namespace shale::cpu {

// While it exists, the eight tile registers of the calling thread have 16 rows of 64 bytes each. Other code of the
// thread that uses tile registers, such as oneDNN, must not run meanwhile.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) Configuration {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Configuration configuration;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// Strides are in bytes. Loads and stores are barriers for the compiler, which does not know what memory they access.
template <int kRegister>
inline void ClearTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kRegister));
}
template <int kRegister>
inline void LoadTile(const float* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
inline void StoreTile(float* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kRegister) : "memory");
}
template <int kSum, int kA, int kB>
inline void AddTileProduct() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

// Multiplies 32 rows of a by 32 columns of b over 16 * steps pairs of bf16. Let s be the sum over pairs i of the
// products of both elements of a[r][i] and b[i][n]. Sets c[r][n] = s, or c[r][n] += s if kAdd. A pair takes the place
// of a float. Strides are in floats, from one row in memory to the next. REQUIRES: the thread has TileRegisters.
template <bool kAdd>
inline void MultiplyAmxTiles(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t steps,
                             float* c, int64_t c_stride) {
  constexpr int64_t kSide = 16, kFloat = sizeof(float);
  float* const below = c + kSide * c_stride;
  if constexpr (kAdd) {
    LoadTile<0>(c, c_stride * kFloat);
    LoadTile<1>(c + kSide, c_stride * kFloat);
    LoadTile<2>(below, c_stride * kFloat);
    LoadTile<3>(below + kSide, c_stride * kFloat);
  } else {
    ClearTile<0>();
    ClearTile<1>();
    ClearTile<2>();
    ClearTile<3>();
  }
  for (int64_t i = 0; i < steps; ++i, a += kSide, b += kSide * b_stride) {
    LoadTile<4>(a, a_stride * kFloat);
    LoadTile<6>(b, b_stride * kFloat);
    LoadTile<7>(b + kSide, b_stride * kFloat);
    AddTileProduct<0, 4, 6>();
    AddTileProduct<1, 4, 7>();
    LoadTile<5>(a + kSide * a_stride, a_stride * kFloat);
    AddTileProduct<2, 5, 6>();
    AddTileProduct<3, 5, 7>();
  }
  StoreTile<0>(c, c_stride * kFloat);
  StoreTile<1>(c + kSide, c_stride * kFloat);
  StoreTile<2>(below, c_stride * kFloat);
  StoreTile<3>(below + kSide, c_stride * kFloat);
}

}  // namespace shale::cpu

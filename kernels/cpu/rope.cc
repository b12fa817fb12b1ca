// Rotary embedding. All rows of a position (B sequences, H heads) use the same cosines and sines. They are computed in
// fp64, by a rotation of those of the previous position, and once every kPositions positions from the angle itself. The
// error is at most 32 x 2^-53, and only one position in kPositions needs calls of sin and cos. A block of kPositions
// keeps the values of all its positions, so that it goes through memory sequence by sequence. If sequences hold several
// documents or begin at positions of their own, the tokens of a block differ in their positions from one sequence to
// the next, so each block belongs to one sequence. The bits depend on the position alone. Nothing is kept between
// launches.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "kernels/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/touch.h"
#include "kernels/integers.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/rope_frequency.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// The cosines and sines that rotate the pairs of one position, D/2 of each.
struct Turns {
  const float *cosines, *sines;
};

template <class T>
HWY_INLINE void TurnRow(T* first, int64_t half, Turns turns) {
  const auto turn = [](Vector x, Vector y, Vector cosine, Vector sine) HWY_ATTR {
    return Pair{hn::NegMulAdd(y, sine, hn::Mul(x, cosine)), hn::MulAdd(x, sine, hn::Mul(y, cosine))};
  };
  T* second = first + half;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + 2 * lanes <= half; i += 2 * lanes) {
    const Pair x = LoadPair(first + i), y = LoadPair(second + i);
    const Pair a = turn(x.a, y.a, Load(turns.cosines + i), Load(turns.sines + i));
    const Pair b = turn(x.b, y.b, Load(turns.cosines + i + lanes), Load(turns.sines + i + lanes));
    StorePair({a.a, b.a}, first + i);
    StorePair({a.b, b.b}, second + i);
  }
  ForVectors(half - i, [&](int64_t j, auto some) HWY_ATTR {
    const Pair turned = turn(some.Load(first + i + j), some.Load(second + i + j), some.Load(turns.cosines + i + j),
                             some.Load(turns.sines + i + j));
    some.Store(turned.a, first + i + j);
    some.Store(turned.b, second + i + j);
  });
}

// Permutes an array into the order in which LoadPair returns bf16.
void OrderAsPairs(float* values, int64_t count) {
#if HWY_TARGET != HWY_SCALAR
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i + 2 * lanes <= count; i += 2 * lanes) {
    const Vector low = Load(values + i), high = Load(values + i + lanes);
    Store(hn::ConcatEven(d, high, low), values + i);
    Store(hn::ConcatOdd(d, high, low), values + i + lanes);
  }
#endif
}

template <class T>
void TurnT(const Tensor& x_BSHD, int64_t begin, int64_t end, float* table) {
  const int64_t half = x_BSHD.dim(3) / 2;
  if constexpr (std::is_base_of_v<BFloat16, T>) {
    for (int64_t row = 0; row < 2 * (end - begin); ++row) OrderAsPairs(table + row * half, half);
  }
  for (int64_t b = 0; b < x_BSHD.dim(0); ++b) {
    for (int64_t position = begin; position < end; ++position) {
      const float* cosines = table + 2 * (position - begin) * half;
      T* rows = x_BSHD.as<T>() + b * x_BSHD.stride(0) + position * x_BSHD.stride(1);
      // Also reads the gap to the rows of the next position if it is at most half as long as the rows: memory streams
      // faster than it skips.
      const int64_t width = x_BSHD.dim(2) * x_BSHD.stride(2), gap = x_BSHD.stride(1) - width;
      if (x_BSHD.stride(2) == 2 * half && gap >= 0) {
        TouchRows(rows, 0, 1, position + 1 < end && gap <= width / 2 ? width + gap : width);
      }
      for (int64_t h = 0; h < x_BSHD.dim(2); ++h) TurnRow(rows + h * x_BSHD.stride(2), half, {cosines, cosines + half});
    }
  }
}

// Rotates all rows of positions [begin, end). `table` holds the cosines, then the sines of each position. For bf16 it
// is permuted.
void Turn(const Tensor& x_BSHD, int64_t begin, int64_t end, float* table) {
  ForActivations(x_BSHD.dtype, [&](auto element) HWY_ATTR { TurnT<decltype(element)>(x_BSHD, begin, end, table); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(Turn);

constexpr int64_t kPositions = 32;

// Arrays of D/2 elements in scratch: those that a launch computes once, and those of one thread.
struct RopeScratch {
  RopeScratch(const Rope& op, std::byte* data, int thread) : half(op.x_BSHD.dim(3) / 2) {
    double* doubles = reinterpret_cast<double*>(data);
    frequency = doubles;
    step_cosine = doubles + half;
    step_sine = doubles + 2 * half;
    double* own = doubles + (3 + thread * Doubles(op)) * half;
    cosine = own;
    sine = own + half;
    table = reinterpret_cast<float*>(own + 2 * half);
  }
  // Doubles per thread, in units of D/2. The two floats per position of the table take the room of one double.
  static int64_t Doubles(const Rope& op) { return 2 + std::min(kPositions, op.x_BSHD.dim(1)); }
  static int64_t SizeBytes(const Rope& op, int threads) {
    return (3 + threads * Doubles(op)) * (op.x_BSHD.dim(3) / 2) * static_cast<int64_t>(sizeof(double));
  }

  // Sets cosine and sine to those of `position`, which is a multiple of kPositions or follows the last one.
  void GoTo(int64_t position) const {
    for (int64_t i = 0; i < half; ++i) {
      if (position % kPositions == 0) {
        const double angle = static_cast<double>(position) * frequency[i];
        cosine[i] = std::cos(angle);
        sine[i] = std::sin(angle);
      } else {
        const double c = cosine[i], s = sine[i];
        cosine[i] = c * step_cosine[i] - s * step_sine[i];
        sine[i] = s * step_cosine[i] + c * step_sine[i];
      }
    }
  }
  // Stores the cosines and sines in a row of the thread's table, or of another one.
  void StoreRow(int64_t row) const { StoreRow(table, row); }
  void StoreRow(float* to, int64_t row) const {
    for (int64_t i = 0; i < half; ++i) {
      to[2 * row * half + i] = static_cast<float>(cosine[i]);
      to[(2 * row + 1) * half + i] = static_cast<float>(sine[i]);
    }
  }

  int64_t half;
  double *frequency, *step_cosine, *step_sine;  // Shared by all threads, which only read them.
  double *cosine, *sine;
  float* table;  // [positions, 2, D/2]: cosines, sines.
};

// Fills the arrays that a launch computes once.
void FillShared(const Rope& op, const RopeScratch& shared) {
  for (int64_t i = 0; i < shared.half; ++i) {
    const double frequency = RopeFrequency(op.theta, op.scaling, i, op.x_BSHD.dim(3)) * (op.inverse ? -1 : 1);
    shared.frequency[i] = frequency;
    shared.step_cosine[i] = std::cos(frequency);
    shared.step_sine[i] = std::sin(frequency);
  }
}

// Rotates all rows of an op with position ids or begins. The arrays that a launch computes once are in scratch already.
void TurnDocuments(const Rope& op, Scratch scratch, Team& team) {
  const int64_t length = op.x_BSHD.dim(1), blocks = CeilDivide(length, kPositions);
  ParallelFor(team, op.x_BSHD.dim(0) * blocks, /*block=*/1, [&](int64_t item, int64_t, int thread) {
    const RopeScratch own(op, scratch.data, thread);
    const int64_t b = item / blocks, begin = item % blocks * kPositions, end = std::min(begin + kPositions, length);
    const auto position = [&](int64_t s) { return PositionIn(op, b * length + s, length); };
    // The block may begin within a document. Positions are reached from the multiple of kPositions before them.
    for (int64_t p = RoundDown(position(begin), kPositions); p < position(begin); ++p) own.GoTo(p);
    for (int64_t s = begin; s < end; ++s) {
      own.GoTo(position(s));
      own.StoreRow(s - begin);
    }
    HWY_DYNAMIC_DISPATCH(Turn)(op.x_BSHD.Slice(0, b, 1), begin, end, own.table);
  });
}

}  // namespace

// The table lies behind what Rope itself needs.
int64_t RopeTableBytes(const Rope& op, Team& team) {
  return RopeScratch::SizeBytes(op, team.threads()) + op.x_BSHD.dim(1) * op.x_BSHD.dim(3) * int64_t{sizeof(float)};
}

const float* FillRopeTable(const Rope& op, Scratch scratch, Team& team) {
  float* const table = reinterpret_cast<float*>(scratch.data + RopeScratch::SizeBytes(op, team.threads()));
  FillShared(op, RopeScratch(op, scratch.data, 0));
  ParallelFor(team, op.x_BSHD.dim(1), kPositions, [&](int64_t begin, int64_t end, int thread) {
    const RopeScratch own(op, scratch.data, thread);
    for (int64_t position = begin; position < end; ++position) {
      own.GoTo(position);
      own.StoreRow(table, position);
    }
  });
  return table;
}

int64_t ScratchBytesOf(const Rope& op, const Context& context) {
  return RopeScratch::SizeBytes(op, context.team->threads());
}

absl::Status Run(const Rope& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  SHALE_RETURN_IF_ERROR(CheckBegins(op.kName, op.begins_B, op.x_BSHD.dim(1), std::numeric_limits<int32_t>::max()));
  FillShared(op, RopeScratch(op, scratch.data, 0));
  if (op.position_ids_BS.present() || op.begins_B.present()) {
    TurnDocuments(op, scratch, *context.team);
    return absl::OkStatus();
  }
  ParallelFor(*context.team, op.x_BSHD.dim(1), kPositions, [&](int64_t begin, int64_t end, int thread) {
    const RopeScratch own(op, scratch.data, thread);
    for (int64_t position = begin; position < end; ++position) {
      own.GoTo(position);
      own.StoreRow(position - begin);
    }
    HWY_DYNAMIC_DISPATCH(Turn)(op.x_BSHD, begin, end, own.table);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif

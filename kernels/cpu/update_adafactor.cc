// The passes of Adafactor. Memory bounds them: kSums reads the gradient twice, once for the sums of rows and once for
// those of columns, which spares partial sums for every block of rows. kDirection reads the gradient and the masters
// and writes the direction, and kScale reads and writes that.
//
// Work is divided into tiles of a parameter, which do not depend on threads, and all sums are fp64 in a fixed order.
#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_adafactor.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/element_range.h"
#include "kernels/integers.h"
#include "kernels/ops/adafactor.h"
#include "kernels/reference/scalar_ops.h"
#include "kernels/step_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

using Doubles = hn::CappedTag<double, 8>;

HWY_INLINE hn::Vec<Doubles> DoublesAt(const float* from) {
  return hn::PromoteTo(Doubles(), hn::LoadU(hn::Rebind<float, Doubles>(), from));
}
HWY_INLINE void StoreRounded(hn::Vec<Doubles> v, float* to) {
  const hn::Rebind<float, Doubles> d;
  hn::StoreU(hn::DemoteTo(d, v), d, to);
}

// Adds x^2, which is exact in fp64, to sums.
void AddSquaresOf(const float* x, int64_t count, double* sums) {
  const Doubles d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto v = DoublesAt(x + i);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::Mul(v, v)), d, sums + i);
  }
  for (; i < count; ++i) sums[i] += static_cast<double>(x[i]) * x[i];
}

// Sets direction = gradient * of_row * of_columns.
void DirectionOfRow(const float* gradient, double of_row, const double* of_columns, int64_t count, float* direction) {
  const Doubles d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto factors = hn::Mul(hn::LoadU(d, of_columns + i), hn::Set(d, of_row));
    StoreRounded(hn::Mul(DoublesAt(gradient + i), factors), direction + i);
  }
  for (; i < count; ++i) direction[i] = static_cast<float>(gradient[i] * (of_columns[i] * of_row));
}

// Sets direction = factor * direction + decay * masters. Without decay, `masters` is null.
void ScaleDirection(double factor, double decay, const float* masters, int64_t count, float* direction) {
  const Doubles d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    auto scaled = hn::Mul(DoublesAt(direction + i), hn::Set(d, factor));
    if (masters != nullptr) scaled = hn::Add(scaled, hn::Mul(DoublesAt(masters + i), hn::Set(d, decay)));
    StoreRounded(scaled, direction + i);
  }
  for (; i < count; ++i) {
    const double scaled = factor * direction[i];
    direction[i] = static_cast<float>(masters == nullptr ? scaled : scaled + decay * masters[i]);
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AddSquaresOf);
HWY_EXPORT(DirectionOfRow);
HWY_EXPORT(ScaleDirection);

using Stage = Adafactor::Stage;
constexpr int64_t kTileRows = 64, kTileColumns = 1024;

// Returns the elements of a parameter that lie in a shard of `elements` elements.
ElementRange OwnOf(const Adafactor& op, const FactoredParameter& p, int64_t elements) {
  const int64_t begin = op.shard_begin - p.begin;
  const ElementRange own = Intersect({begin, begin + elements}, {0, p.elements()});
  return own.begin < own.end ? own : ElementRange{};
}

// The part of a parameter in the shard, as rows of which the first and the last may be incomplete.
struct OwnRows {
  OwnRows(const Adafactor& op, const FactoredParameter& parameter, int64_t elements)
      : p(parameter),
        own(OwnOf(op, p, elements)),
        first(own.begin / p.columns),
        end(CeilDivide(own.end, p.columns)),
        in_shard(p.begin - op.shard_begin) {}

  // Returns which of these columns of a row the shard has.
  ElementRange Columns(int64_t row, ElementRange columns) const {
    const int64_t begin = row * p.columns;
    const ElementRange here = Intersect({own.begin - begin, own.end - begin}, columns);
    return here.begin < here.end ? here : ElementRange{};
  }
  // Returns the number in the shard of an element.
  int64_t At(int64_t row, int64_t column) const { return in_shard + row * p.columns + column; }

  int64_t tiles() const { return CeilDivide(end - first, kTileRows) * CeilDivide(p.columns, kTileColumns); }

  const FactoredParameter& p;
  const ElementRange own;
  const int64_t first, end;  // Rows.
  const int64_t in_shard;    // The number in the shard of the first element of the parameter; may be negative.
};

// Calls visit(rows, tile) for each tile of the parameters, of which a parameter has `count(rows)`, on the threads of
// the team. Tiles are numbered by parameter and tile: `number` is that in the order of all.
template <class Count, class Visit>
void ForTiles(const Adafactor& op, int64_t elements, Team& team, const Count& count, const Visit& visit) {
  int64_t all = 0;
  for (const FactoredParameter& p : *op.parameters) all += count(OwnRows(op, p, elements));
  ParallelFor(team, all, /*block=*/1, [&](int64_t number, int64_t) {
    int64_t tile = number;
    for (const FactoredParameter& p : *op.parameters) {
      const OwnRows rows(op, p, elements);
      const int64_t tiles = count(rows);
      if (tile < tiles) return visit(rows, tile, number);
      tile -= tiles;
    }
  });
}

// Returns the masters of `count` elements from number `begin` of the shard on, in `buffer` or where they are.
const float* MastersOf(const Adafactor& op, int64_t begin, int64_t count, float* buffer) {
  if (op.master_P.present()) return op.master_P.as<const float>() + begin;
  if (op.weight_P.dtype == DType::kFloat32) return op.weight_P.as<const float>() + begin;
  const BFloat16* const weight = op.weight_P.as<const BFloat16>() + begin;
  const int16_t* const low = op.low_P.present() ? op.low_P.as<const int16_t>() + begin : nullptr;
  for (int64_t i = 0; i < count; ++i) buffer[i] = JoinMaster(weight[i], low == nullptr ? int16_t{0} : low[i]);
  return buffer;
}

// The sums of some rows. Rows that the shard does not have get 0.
void SumRows(const Adafactor& op, const OwnRows& rows, int64_t tile) {
  const double factor = op.update_5.as<const float>()[kUpdateGradientFactor];
  const int64_t end = std::min(rows.p.rows, (tile + 1) * kTileRows);
  for (int64_t row = tile * kTileRows; row < end; ++row) {
    const ElementRange here = rows.Columns(row, {0, rows.p.columns});
    const int64_t count = here.end - here.begin;
    const float* const g = op.gradient_P.as<const float>() + (count == 0 ? 0 : rows.At(row, here.begin));
    op.sums.as<float>()[rows.p.row_begin + row] = static_cast<float>(
        factor * factor * SumOfSquares(g, count) + static_cast<double>(count) * Adafactor::kGradientEpsilon);
  }
}

constexpr int64_t kSumColumns = 256;

// The sums of some columns, each in the order of its rows.
void SumColumns(const Adafactor& op, const OwnRows& rows, int64_t tile) {
  const double factor = op.update_5.as<const float>()[kUpdateGradientFactor];
  const ElementRange stripe = {tile * kSumColumns, std::min(rows.p.columns, (tile + 1) * kSumColumns)};
  double sums[kSumColumns] = {}, counts[kSumColumns] = {};
  for (int64_t row = rows.first; row < rows.end; ++row) {
    const ElementRange here = rows.Columns(row, stripe);
    if (here.begin == here.end) continue;
    const int64_t at = here.begin - stripe.begin, count = here.end - here.begin;
    const float* const g = op.gradient_P.as<const float>() + rows.At(row, here.begin);
    HWY_DYNAMIC_DISPATCH(AddSquaresOf)(g, count, sums + at);
    // Only the first and the last row may be incomplete.
    const bool whole = row > rows.first && row + 1 < rows.end;
    if (!whole) std::for_each_n(counts + at, count, [](double& n) { ++n; });
  }
  const double whole_rows = static_cast<double>(std::max<int64_t>(0, rows.end - rows.first - 2));
  for (int64_t c = 0; c < stripe.end - stripe.begin; ++c) {
    op.sums.as<float>()[rows.p.column_begin + stripe.begin + c] =
        static_cast<float>(factor * factor * sums[c] + (counts[c] + whole_rows) * Adafactor::kGradientEpsilon);
  }
}

void Sums(const Adafactor& op, Team& team) {
  const int64_t elements = op.gradient_P.elements();
  float* const sums = op.sums.as<float>();
  std::fill(sums, sums + op.sums.elements(), 0.0f);  // Also between the factors of parameters.
  const auto row_tiles = [](const OwnRows& rows) {
    return rows.p.row_begin < 0 ? int64_t{0} : CeilDivide(rows.p.rows, kTileRows);
  };
  const auto column_tiles = [](const OwnRows& rows) { return CeilDivide(rows.p.columns, kSumColumns); };
  ForTiles(op, elements, team, row_tiles, [&](const OwnRows& rows, int64_t tile, int64_t) { SumRows(op, rows, tile); });
  ForTiles(op, elements, team, column_tiles,
           [&](const OwnRows& rows, int64_t tile, int64_t) { SumColumns(op, rows, tile); });
}

// Writes one tile of the direction, and its two totals.
void DirectionOfTile(const Adafactor& op, const OwnRows& rows, int64_t tile, double mean_of_rows, double* totals) {
  const FactoredParameter& p = rows.p;
  const double factor = op.update_5.as<const float>()[kUpdateGradientFactor];
  const float* const moments = op.moments.as<const float>();
  const int64_t stripes = CeilDivide(p.columns, kTileColumns), stripe = tile % stripes;
  const ElementRange columns = {stripe * kTileColumns, std::min(p.columns, (stripe + 1) * kTileColumns)};
  double of_columns[kTileColumns];
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    of_columns[c - columns.begin] = 1 / std::sqrt(static_cast<double>(moments[p.column_begin + c]));
  }
  float masters[kTileColumns];
  totals[0] = totals[1] = 0;
  const int64_t first = rows.first + tile / stripes * kTileRows, end = std::min(rows.end, first + kTileRows);
  for (int64_t row = first; row < end; ++row) {
    const ElementRange here = rows.Columns(row, columns);
    const int64_t count = here.end - here.begin;
    if (count == 0) continue;
    const int64_t at = rows.At(row, here.begin);
    const double of_row = p.row_begin < 0 ? factor : factor / std::sqrt(moments[p.row_begin + row] / mean_of_rows);
    float* const direction = op.direction_P.as<float>() + at;
    HWY_DYNAMIC_DISPATCH(DirectionOfRow)
    (op.gradient_P.as<const float>() + at, of_row, of_columns + (here.begin - columns.begin), count, direction);
    totals[0] += SumOfSquares(direction, count);
    totals[1] += SumOfSquares(MastersOf(op, at, count, masters), count);
  }
}

// Sets the elements between parameters to 0.
void ZeroBetweenParameters(const Adafactor& op) {
  float* const direction = op.direction_P.as<float>();
  const int64_t elements = op.direction_P.elements();
  int64_t at = 0;
  for (const FactoredParameter& p : *op.parameters) {
    const int64_t begin = std::clamp<int64_t>(p.begin - op.shard_begin, at, elements);
    std::fill(direction + at, direction + begin, 0.0f);
    at = std::clamp<int64_t>(p.begin + p.elements() - op.shard_begin, begin, elements);
  }
  std::fill(direction + at, direction + elements, 0.0f);
}

int64_t TilesOf(const OwnRows& rows) { return rows.tiles(); }

// Returns the most tiles that a shard of the op's size has, wherever it begins: all ranks have the same scratch.
int64_t MostTiles(const Adafactor& op) {
  const int64_t elements = op.gradient_P.elements();
  int64_t tiles = 0;
  for (const FactoredParameter& p : *op.parameters) {
    const int64_t rows = std::min(p.rows, CeilDivide(elements, p.columns) + 1);
    tiles += CeilDivide(rows, kTileRows) * CeilDivide(p.columns, kTileColumns);
  }
  return tiles;
}

// Returns the mean of the second moments of a matrix's rows.
double MeanOfRows(const Adafactor& op, const FactoredParameter& p) {
  if (p.row_begin < 0) return 1;
  const float* const rows = op.moments.as<const float>() + p.row_begin;
  double sum = 0;
  for (int64_t row = 0; row < p.rows; ++row) sum += rows[row];
  return sum / static_cast<double>(p.rows);
}

// Scratch has the mean of rows of each parameter, and then the totals of each tile.
void Direction(const Adafactor& op, Scratch scratch, Team& team) {
  const int64_t elements = op.gradient_P.elements();
  auto* const means = reinterpret_cast<double*>(scratch.data);
  double* const partials = means + op.parameters->size();
  for (size_t q = 0; q < op.parameters->size(); ++q) means[q] = MeanOfRows(op, (*op.parameters)[q]);
  ZeroBetweenParameters(op);
  ForTiles(op, elements, team, TilesOf, [&](const OwnRows& rows, int64_t tile, int64_t number) {
    DirectionOfTile(op, rows, tile, means[&rows.p - op.parameters->data()], partials + 2 * number);
  });
  double* totals = op.totals_Q2.as<double>();
  const double* partial = partials;
  for (const FactoredParameter& p : *op.parameters) {
    totals[0] = totals[1] = 0;
    for (int64_t tiles = OwnRows(op, p, elements).tiles(); tiles > 0; --tiles, partial += 2) {
      totals[0] += partial[0];
      totals[1] += partial[1];
    }
    totals += 2;
  }
}

void Scale(const Adafactor& op, Team& team) {
  const float* const update = op.update_5.as<const float>();
  const double t = static_cast<double>(*op.number_1.as<const int64_t>());
  const double relative = op.relative_step ? std::min(Adafactor::kRelativeStep, 1 / std::sqrt(t)) : 1;
  const int64_t elements = op.direction_P.elements();
  ForTiles(op, elements, team, TilesOf, [&](const OwnRows& rows, int64_t tile, int64_t) {
    const FactoredParameter& p = rows.p;
    const double* const totals = op.totals_Q2.as<const double>() + 2 * (&p - op.parameters->data());
    const double n = static_cast<double>(p.elements());
    const double clip = std::max(1.0, std::sqrt(totals[0] / n)), size = std::sqrt(totals[1] / n);
    const double rate = update[kUpdateLearningRate] * relative *
                        (op.scale_parameter ? std::max(Adafactor::kParameterEpsilon, size) : 1);
    const double factor = (1 - static_cast<double>(op.beta1)) * rate / clip;
    const double decay = p.decays ? rate * op.weight_decay : 0;
    // Here a tile is a part of the parameter's elements in a row.
    const int64_t part = CeilDivide(rows.own.end - rows.own.begin, rows.tiles());
    float masters[kTileColumns];
    const int64_t end = std::min(rows.own.end, rows.own.begin + (tile + 1) * part);
    for (int64_t e = rows.own.begin + tile * part; e < end; e += kTileColumns) {
      const int64_t at = rows.At(0, e), count = std::min(kTileColumns, end - e);
      const float* const decayed = decay == 0 ? nullptr : MastersOf(op, at, count, masters);
      HWY_DYNAMIC_DISPATCH(ScaleDirection)(factor, decay, decayed, count, op.direction_P.as<float>() + at);
    }
  });
  float* const step = op.step_5.as<float>();
  std::fill(step, step + kUpdateSize, 1.0f);
  step[kUpdateSkip] = update[kUpdateSkip];
}

}  // namespace

int64_t ScratchBytesOf(const Adafactor& op, const Context&) {
  if (op.stage != Stage::kDirection) return 0;
  return (std::ssize(*op.parameters) + 2 * MostTiles(op)) * int64_t{sizeof(double)};
}

absl::Status Run(const Adafactor& op, Scratch scratch, const Context& context) {
  switch (op.stage) {
    case Stage::kSums: Sums(op, *context.team); break;
    case Stage::kMoments: return AdafactorOnHost(op);  // Has an element for each row and column only.
    case Stage::kDirection: Direction(op, scratch, *context.team); break;
    case Stage::kScale: Scale(op, *context.team); break;
  }
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif

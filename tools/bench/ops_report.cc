#include "tools/bench/ops_report.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/files/io/json_lines.h"
#include "tools/bench/support.h"

namespace shale {
namespace {

constexpr const char* kDTypeNames[] = {"f32", "bf16"};

std::string Fraction(double value, double target) { return absl::StrCat(value < target ? "low " : "", Digits(value)); }

}  // namespace

std::string Act(const OpCase& c) { return c.dtype == DType::kBFloat16 ? "bf16" : "f32"; }

void PrintMoving(const std::vector<OpResult>& results, const OpRates& rates) {
  MarkdownTable table({{"op", true},
                       {"size", true},
                       {"act", true},
                       {"time"},
                       {"moved"},
                       {"GB/s"},
                       {rates.copies[0].column},
                       {absl::StrCat("best ", rates.copies[0].column)},
                       {rates.copies[1].column},
                       {"sets"}});
  int64_t reached = 0;
  for (const OpResult& r : results) {
    table.Add({r.test_case->name, r.test_case->sizes, Act(*r.test_case), Time(r.seconds), Megabytes(r.test_case->bytes),
               Digits(r.bytes_per_second() * 1e-9), Fraction(r.of_copy, rates.target), Digits(r.best_of_copy),
               Digits(r.of_second_copy), absl::StrCat(r.copies)});
    reached += r.of_copy >= rates.target ? 1 : 0;
  }
  if (table.empty()) return;
  std::printf("\n### Memory\n\n%s\n%ld of %zu reach %s of a copy of memory: %s.\n", table.ToString().c_str(),
              static_cast<long>(reached), results.size(), absl::StrCat(rates.target).c_str(),
              rates.copies[0].about.c_str());
}

void PrintComputing(const std::vector<OpResult>& results, const OpRates& rates) {
  const bool sustained = rates.sustained[0] + rates.sustained[1] > 0;
  std::vector<MarkdownTable::Column> columns = {{"op", true}, {"size", true}, {"act", true}, {"time"},
                                                {"GFLOP"},    {"GFLOP/s"},    {"of peak"},   {"sets"}};
  if (sustained) columns.push_back({"of sustained"});
  MarkdownTable table(columns);
  for (const OpResult& r : results) {
    const int type = IndexOf(r.test_case->dtype);
    std::vector<std::string> cells = {r.test_case->name,
                                      r.test_case->sizes,
                                      Act(*r.test_case),
                                      Time(r.seconds),
                                      Digits(r.test_case->flops * 1e-9),
                                      Digits(r.flops_per_second() * 1e-9),
                                      Digits(r.flops_per_second() / rates.peak[type]),
                                      absl::StrCat(r.copies)};
    if (sustained) {
      cells.push_back(rates.sustained[type] > 0 ? Digits(r.flops_per_second() / rates.sustained[type]) : "");
    }
    table.Add(std::move(cells));
  }
  if (table.empty()) return;
  std::printf("\n### Matmuls (M x N x K) and attention\n\nPeak: the best matmul here, ");
  for (int i = 0; i < 2; ++i) {
    if (rates.peak[i] > 0) std::printf("%s %s GFLOP/s; ", kDTypeNames[i], Digits(rates.peak[i] * 1e-9).c_str());
  }
  for (int i = 0; i < 2; ++i) {
    if (rates.sustained[i] > 0) {
      std::printf("the square one sustained, %s %s GFLOP/s; ", kDTypeNames[i],
                  Digits(rates.sustained[i] * 1e-9).c_str());
    }
  }
  std::printf("attention counts the pairs that its mask leaves.\n\n%s", table.ToString().c_str());
}

std::string ResultJson(const OpResult& r, const OpRates& rates) {
  JsonObject object;
  object.Add("op", r.test_case->name).Add("size", r.test_case->sizes).Add("act", Act(*r.test_case));
  if (!r.kernels.empty()) object.Add("kernels", r.kernels);
  object.Add("seconds", r.seconds).Add("best_seconds", r.best_seconds).Add("calls", r.calls).Add("sets", r.copies);
  object.Add("bytes", r.test_case->bytes).Add("bytes_per_second", r.bytes_per_second());
  if (r.test_case->flops > 0) {
    const int type = IndexOf(r.test_case->dtype);
    object.Add("flops", r.test_case->flops).Add("flops_per_second", r.flops_per_second());
    object.Add("of_peak", r.flops_per_second() / rates.peak[type]);
    if (rates.sustained[type] > 0) object.Add("of_sustained", r.flops_per_second() / rates.sustained[type]);
  } else {
    object.Add(rates.copies[0].json, r.of_copy).Add(absl::StrCat("best_", rates.copies[0].json), r.best_of_copy);
    object.Add(rates.copies[1].json, r.of_second_copy);
  }
  return object.ToString();
}

std::string RefusalJson(const OpCase& c, const absl::Status& why) {
  return JsonObject().Add("op", c.name).Add("size", c.sizes).Add("act", Act(c)).Add("why", why.message()).ToString();
}

}  // namespace shale

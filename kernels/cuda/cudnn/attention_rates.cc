#include "kernels/cuda/cudnn/attention_rates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"

namespace shale::cuda {
namespace {

constexpr absl::string_view kHead = "shale attention rates 1";
// How many times longer or shorter a sequence or a window may be than that of a row that speaks for it.
constexpr double kMostTimes = 2;

// Returns how many times larger the larger of two sizes is. Sizes of 0, which are no windows, count as 1.
double Times(int64_t a, int64_t b) {
  const int64_t less = std::max<int64_t>(std::min(a, b), 1), more = std::max<int64_t>(std::max(a, b), 1);
  return static_cast<double>(more) / static_cast<double>(less);
}

// Reads the number behind `name`, as in "S=1024".
bool ReadSize(absl::string_view word, absl::string_view name, int64_t& size) {
  return absl::ConsumePrefix(&word, name) && absl::SimpleAtoi(word, &size) && size > 0;
}

}  // namespace

bool AttentionRates::Row::IsAbout(const Row& other) const {
  return gpu.major == other.gpu.major && gpu.minor == other.gpu.minor && backward == other.backward &&
         width == other.width && length == other.length && causal == other.causal && window == other.window;
}

absl::StatusOr<AttentionRates::Row> AttentionRates::ParseRow(absl::string_view line) {
  const auto wrong = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(absl::StrCat("wanted ", wanted, ", found: ", line));
  };
  const std::vector<absl::string_view> halves = absl::StrSplit(line, ':');
  if (halves.size() != 2) return wrong("a shape, a colon and rates");
  const std::vector<absl::string_view> shape = absl::StrSplit(halves[0], ' ', absl::SkipEmpty());
  if (shape.size() != 5) return wrong("a row such as \"9.0 backward D=64 S=4096 causal: own 170 cudnn 152\"");
  Row row;
  const std::vector<absl::string_view> gpu = absl::StrSplit(shape[0], '.');
  if (gpu.size() != 2 || !absl::SimpleAtoi(gpu[0], &row.gpu.major) || !absl::SimpleAtoi(gpu[1], &row.gpu.minor) ||
      row.gpu.major < 1) {
    return wrong("a compute capability such as 9.0");
  }
  row.backward = shape[1] == "backward";
  if (!row.backward && shape[1] != "forward") return wrong("forward or backward");
  if (!ReadSize(shape[2], "D=", row.width) || !ReadSize(shape[3], "S=", row.length)) return wrong("D and S");
  row.causal = shape[4] != "all";
  if (row.causal && shape[4] != "causal" && !ReadSize(shape[4], "window=", row.window)) {
    return wrong("causal, window=W or all");
  }
  const std::vector<absl::string_view> rates = absl::StrSplit(halves[1], ' ', absl::SkipEmpty());
  if (rates.empty() || rates.size() % 2 != 0) return wrong("names of rates with a number behind each");
  for (size_t i = 0; i < rates.size(); i += 2) {
    double* const rate = rates[i] == "own"                    ? &row.own
                         : rates[i] == "cudnn"                ? &row.cudnn
                         : rates[i] == "free" && row.backward ? &row.free
                                                              : nullptr;
    if (rate == nullptr || *rate != 0) return wrong("own, cudnn or, in rows of backward, free, each once");
    if (!absl::SimpleAtod(rates[i + 1], rate) || !std::isfinite(*rate) || *rate <= 0) return wrong("positive rates");
  }
  return row;
}

absl::StatusOr<AttentionRates> AttentionRates::Parse(absl::string_view text) {
  AttentionRates rates;
  const auto add = [&](absl::string_view line) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const Row row, ParseRow(line));
    for (const Row& other : rates.rows_) {
      if (other.IsAbout(row)) return absl::InvalidArgumentError(absl::StrCat("a shape that occurs twice: ", line));
    }
    rates.rows_.push_back(row);
    return absl::OkStatus();
  };
  bool has_head = false;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::Status status;
    if (has_head) {
      status = add(line);
    } else if (line != kHead) {
      status = absl::InvalidArgumentError(absl::StrCat("wanted \"", kHead, "\", found: ", line));
    }
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    has_head = true;
  }
  if (!has_head) return absl::InvalidArgumentError(absl::StrCat("there is no line \"", kHead, "\""));
  return rates;
}

AttentionRates AttentionRates::On(const ComputeCapability& gpu) const {
  AttentionRates rates;
  for (const Row& row : rows_) {
    if (row.gpu.major == gpu.major && row.gpu.minor == gpu.minor) rates.rows_.push_back(row);
  }
  return rates;
}

bool AttentionRates::OwnIsFaster(const AttentionKey& key) const {
  const bool any_order = key.backward && !key.deterministic;
  double least = 0;  // How far the nearest row is away. 0: none was found.
  bool faster = false;
  for (const Row& row : rows_) {
    if (row.backward != key.backward || row.width != key.width || row.causal != key.causal ||
        (row.window > 0) != (key.window > 0)) {
      continue;
    }
    const double by_cudnn = any_order ? row.free : row.cudnn;
    if (row.own == 0 || by_cudnn == 0) continue;
    const double length = Times(row.length, key.length), window = Times(row.window, key.window);
    if (length > kMostTimes || window > kMostTimes || (least > 0 && length * window >= least)) continue;
    least = length * window;
    faster = any_order ? row.own >= by_cudnn : row.own > by_cudnn;
  }
  return faster;
}

}  // namespace shale::cuda

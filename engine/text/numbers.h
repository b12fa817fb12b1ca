// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns "1,234,567".
std::string WithCommas(int64_t number);
// Returns "1 rank", "2 ranks", "2,000 batches".
std::string Plural(int64_t count, absl::string_view noun);
// Returns `part` as a percentage of `whole`: "12.3 %". Returns "0 %" if either is 0.
std::string Percent(double part, double whole);
// Returns "31.2 GiB", "512 MiB", "1.5 KiB" or "17 B": at most three significant digits, in powers of 1024.
std::string FormatBytes(int64_t bytes);
// Returns "1.23 PFLOP" or "45.6 MFLOP": three significant digits, in powers of 1000.
std::string FormatFlops(double flops);
// Returns "loss 7.0596  perplexity 1,163.96" of a mean loss in nats: the perplexity is its exponential.
std::string LossText(double loss);
// Returns a duration in its two largest units: "8s", "1m 32s", "2h 05m", "3d 04h".
std::string FormatDuration(double seconds);

}  // namespace shale

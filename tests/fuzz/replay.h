// Runs fuzz targets where libFuzzer is not available: each once for every input of its corpus, and for an empty input.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale::testing {

// A target as libFuzzer calls it. Returns 0. A property that does not hold ends the process.
using FuzzFunction = int (*)(const uint8_t* data, size_t size);

// Adds a target to those that the test runs, with the inputs of tests/fuzz/corpus/NAME.txt. Call it before main.
// Returns true.
bool AddFuzzTarget(absl::string_view name, FuzzFunction run);

}  // namespace shale::testing

// Shows how text becomes tokens.
#pragma once

#include <functional>

#include "absl/strings/string_view.h"
#include "engine/tokenize/text_progress.h"

namespace shale {

// Returns what shows how text becomes tokens: a counter on a terminal, and lines, by `print`, when it is done.
TextProgress ShowText(std::function<void(absl::string_view)> print);

}  // namespace shale

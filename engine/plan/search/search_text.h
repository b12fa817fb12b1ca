// Text about a search for the fastest job, for people.
#pragma once

#include <string>

#include "engine/plan/search/search.h"

namespace shale {

// Returns the fastest way with what it changes and why, what the runner-up of each choice would take, and the ways
// that need less memory, as settings that --set takes. Ends in a newline.
std::string SearchText(const SearchResult& result);

}  // namespace shale

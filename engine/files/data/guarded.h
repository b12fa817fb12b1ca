// Guarded: calls code of the program that embeds the engine.
#pragma once

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns call(), or Unknown if it throws: "<name> threw: <reason>". Lets std::bad_alloc pass, because the caller says
// how to free memory.
template <class Call>
auto Guarded(absl::string_view name, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return absl::UnknownError(absl::StrCat(name, " threw: ", e.what()));
  } catch (...) {
    return absl::UnknownError(absl::StrCat(name, " threw something that is no std::exception"));
  }
}

}  // namespace shale

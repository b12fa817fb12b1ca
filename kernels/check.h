// SHALE_CHECK, and macros that propagate an absl::Status. A check is for programming errors only. An error that the
// outside world can cause (a missing file, no memory, a lost peer, a bad config) is an absl::Status.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale::internal {

// Collects a message. The destructor prints it to stderr and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    stream_ << file << ":" << line << ": check failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", stream_.str().c_str());
    std::abort();
  }
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace shale::internal

// Aborts with a message if `condition` is false. Example: SHALE_CHECK(offset < size) << name;
#define SHALE_CHECK(condition) \
  while (!(condition)) ::shale::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

// Returns from the calling function if `expression`, an absl::Status, is an error.
#define SHALE_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                     \
    if (absl::Status shale_status = (expression); !shale_status.ok()) return shale_status; \
  } while (false)

#define SHALE_CONCAT_INNER(a, b) a##b
#define SHALE_CONCAT(a, b) SHALE_CONCAT_INNER(a, b)

// Assigns the value of `expression`, an absl::StatusOr, to `declaration`. If the StatusOr is an error, returns the
// error from the calling function. Expands to several statements.
// Example: SHALE_ASSIGN_OR_RETURN(auto plan, PlanMemory(program));
#define SHALE_ASSIGN_OR_RETURN(declaration, expression) \
  SHALE_ASSIGN_OR_RETURN_IMPL(SHALE_CONCAT(shale_statusor_, __LINE__), declaration, expression)
#define SHALE_ASSIGN_OR_RETURN_IMPL(statusor, declaration, expression) \
  auto statusor = (expression);                                        \
  if (!statusor.ok()) return std::move(statusor).status();             \
  declaration = *std::move(statusor)

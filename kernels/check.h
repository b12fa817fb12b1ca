// Checks for our own bugs, and macros that pass a Status on. What the world can do to us is an absl::Status, never a
// check.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale::internal {

// Prints the message and aborts when it goes out of scope.
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

// SHALE_CHECK(offset < size) << name;
#define SHALE_CHECK(condition) \
  while (!(condition)) ::shale::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define SHALE_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                     \
    if (absl::Status shale_status = (expression); !shale_status.ok()) return shale_status; \
  } while (false)

#define SHALE_CONCAT_INNER(a, b) a##b
#define SHALE_CONCAT(a, b) SHALE_CONCAT_INNER(a, b)

// SHALE_ASSIGN_OR_RETURN(auto plan, PlanMemory(program));
#define SHALE_ASSIGN_OR_RETURN(declaration, expression) \
  SHALE_ASSIGN_OR_RETURN_IMPL(SHALE_CONCAT(shale_statusor_, __LINE__), declaration, expression)
#define SHALE_ASSIGN_OR_RETURN_IMPL(statusor, declaration, expression) \
  auto statusor = (expression);                                        \
  if (!statusor.ok()) return std::move(statusor).status();             \
  declaration = *std::move(statusor)

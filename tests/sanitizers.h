// Whether a test runs with a sanitizer, whose memory and time are not the engine's.
#pragma once

namespace shale {

// Returns whether the program has AddressSanitizer or ThreadSanitizer. The macros of compilers do not tell: tests are
// compiled without AddressSanitizer (tools/build_defs/sanitizers.bzl).
bool HasSanitizer();

}  // namespace shale

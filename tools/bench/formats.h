// The formats bench: what 8-bit floating-point formats would give on a GPU.
#pragma once

namespace shale {

// Runs the bench with the arguments of its command line and returns the exit code. Needs a GPU.
int BenchFormats(int argc, char** argv);

}  // namespace shale

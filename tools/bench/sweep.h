// The sweep bench: measures steps of a job in many settings in one process.
#pragma once

namespace shale {

// Runs the bench with the arguments of its command line and returns the exit code. The program links the backends
// (//engine/run/backends).
int BenchSweep(int argc, char** argv);

}  // namespace shale

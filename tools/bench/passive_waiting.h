// WaitPassively: sets how OpenMP's threads wait for each other.
#pragma once

namespace shale {

// Lets idle OpenMP threads sleep after about 0.1 ms, unless the environment already sets how they wait. Spinning longer
// gains nothing, and makes matmuls ten times slower if other threads are busy. Sleeping at once would cost 0.05 ms for
// every op of a step; threads do so only if there are more OpenMP threads than processors. OpenMP's runtime reads the
// environment before main(), so this executes the program again with OMP_WAIT_POLICY=passive and a GOMP_SPINCOUNT. Call
// it first in main().
void WaitPassively(char** argv);

}  // namespace shale

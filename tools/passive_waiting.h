// How OpenMP's threads wait for each other.
#pragma once

namespace shale {

// Has idle OpenMP threads sleep after some 0.1 ms, unless the environment already says what they should do: to spin on
// gains nothing, and beside other busy threads it makes products of matrices ten times slower; to sleep at once costs
// 0.05 ms for every op of a step. Where there are more OpenMP threads than processors they do sleep at once. OpenMP's
// runtime reads the environment before main, so this starts the program again with OMP_WAIT_POLICY=passive and a
// GOMP_SPINCOUNT. Call it first in main.
void WaitPassively(char** argv);

}  // namespace shale

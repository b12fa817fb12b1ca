// How OpenMP's threads wait for each other.
#pragma once

namespace shale {

// Has idle OpenMP threads sleep instead of spin, unless the environment already says what they should do: spinning gains
// nothing here, and beside other busy threads it makes products of matrices ten times slower. OpenMP's runtime reads the
// environment before main, so this starts the program again with OMP_WAIT_POLICY=passive. Call it first in main.
void WaitPassively(char** argv);

}  // namespace shale

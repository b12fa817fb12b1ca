// Whether kernels use the instructions of AVX512-BF16, for which Highway 1.0.3 does not ask the processor.
#pragma once

namespace shale::cpu {

// True where the processor has them, unless they were forbidden.
bool MayUseBFloat16Instructions();

// For tests of what processors without them do. Holds for the whole process. REQUIRES: no op is running.
void ForbidBFloat16Instructions(bool forbidden);

}  // namespace shale::cpu

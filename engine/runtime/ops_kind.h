// Which kernels a rank runs.
#pragma once

namespace shale {

enum class OpsKind {
  kFast,       // oneDNN and vector kernels.
  kReference,  // Plain loops with wide accumulation: the specification.
};

}  // namespace shale

// What a job runs on, as runtime of its spec says.
//
// Which kinds of device a program can use is decided where it is linked: it depends on one of the targets here, each of
// which defines CreateBackend (see BUILD). The engine takes the function and links no device of its own.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const Job&)>;

// FailedPrecondition: the program was built without such devices. Looks for none yet: a backend also plans for devices
// that are elsewhere. May set environment variables for CUDA's libraries: call it before there are threads.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job);

}  // namespace shale

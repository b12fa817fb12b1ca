#include "kernels/device/host_work.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace shale {

absl::Status RunHostWork(const std::function<absl::Status()>& work, absl::string_view stream) {
  try {
    return work();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("work on stream ", stream, " threw an exception: ", e.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat("work on stream ", stream, " threw an unknown exception"));
  }
}

}  // namespace shale

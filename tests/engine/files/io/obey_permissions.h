// Lets tests of file permissions work for the superuser too, who may otherwise read and write any file.
#pragma once

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace shale {

// While an object lives, file permissions hold for the calling thread, whoever the user is.
class ObeyPermissions {
 public:
  ObeyPermissions() {
    if (syscall(SYS_capget, &header_, before_) != 0) ADD_FAILURE() << "capget";
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    if (syscall(SYS_capset, &header_, now) != 0) ADD_FAILURE() << "capset";
  }
  ObeyPermissions(const ObeyPermissions&) = delete;
  ObeyPermissions& operator=(const ObeyPermissions&) = delete;
  ~ObeyPermissions() {
    if (syscall(SYS_capset, &header_, before_) != 0) ADD_FAILURE() << "capset";
  }

 private:
  __user_cap_header_struct header_ = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2] = {};
};

}  // namespace shale

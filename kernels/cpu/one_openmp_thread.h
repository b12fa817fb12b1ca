// OneOpenMpThread: makes oneDNN run a primitive on the calling thread alone.
#pragma once

#include <omp.h>

namespace shale::cpu {

// Makes OpenMP report one thread to oneDNN while it exists. oneDNN asks for the number of threads when it makes a
// primitive and when it runs one. The setting belongs to the calling thread; the destructor restores it for other code
// that runs there.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  ~OneOpenMpThread() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

}  // namespace shale::cpu

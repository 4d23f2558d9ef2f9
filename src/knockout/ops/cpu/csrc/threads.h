// The `Threads` template parameter of the kernels: what runs their loops.
#pragma once

#include <cstdint>

namespace knockout {

// A `Threads` type has
//   parallel_for(count, grain, work)   call work(begin, end) on parts of [0, count), each of about `grain` or more
//   count()                            the number of threads
// OneThread runs the loop in the calling thread. AllThreads, in tensors.h, uses PyTorch's threads.
struct OneThread {
  template <class Work>
  void parallel_for(int64_t count, int64_t, const Work& work) const {
    if (count > 0) work(int64_t{0}, count);
  }
  int64_t count() const { return 1; }
};

}  // namespace knockout

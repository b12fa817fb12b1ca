// The times of traced instructions, added up by what they compute, and the tables of them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "engine/program/program.h"

namespace shale {

// What a device can do at most. The roofline of an op is the least time in which it could move its bytes, or compute
// its FLOPs, whichever is longer. 0: not known.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;
};

// Returns what `instruction`, in the form in which it is issued, works on: members of a JSON object, without a name
// that depends on the buffer. A matmul has m, n and k, whether its operands are transposed, their dtype, and that of
// its result. Any other op has dtype and shape of each operand. All other instructions have none ("").
std::string ShapeJson(const Instruction& instruction);

// Used by one thread.
class OpTimes {
 public:
  // Adds one issue of `instruction`, in the form in which it was issued.
  void Add(const Instruction& instruction, const std::string& shape_json, double seconds, double bytes, double flops);

  // Returns tables for people of the means of `steps` steps, which took `seconds` in all. The first is by kind of
  // instruction, longest first, with FLOP/s, bytes/s and the share of the roofline that the kind reaches; then comes
  // `busy`, a line of the caller; the last is by shape of matmul. If the roofline has no bytes per second, they are the
  // most at which an op of this trace moved at least 64 MiB, and unknown if there is none.
  std::string Tables(int64_t steps, double seconds, const Roofline& roofline, const std::string& busy) const;

  // Returns the seconds of all instructions of a stream.
  double Seconds(StreamId stream) const;

 private:
  struct Key {
    StreamId stream;
    std::string name;
    Phase phase;
    std::string shape_json;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Sum {
    int64_t count = 0;
    double seconds = 0;
    double least_seconds = 0;  // Of one issue.
    double flops = 0;
    double bytes = 0;
    bool has_roofline = false;
    std::string matmul_row;  // For a matmul: its shape, as the table by shape shows it.
  };
  Roofline Known(Roofline roofline) const;
  std::string ByKind(int64_t steps, double seconds, const Roofline& roofline) const;
  std::string ByShape(int64_t steps, double seconds, const Roofline& roofline) const;

  std::map<Key, Sum> sums_;
};

}  // namespace shale

// Writes traces of steps: when every instruction ran, and what it moved and computed. OpTimes adds up the times of
// instructions by what they compute, for tables. See [Note: times of a step] in engine/run/runtime/executor.h.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/run/runtime/executor.h"

namespace shale {

// What a device can do at most. The roofline of an op is the least time in which it could move its bytes, or compute
// its FLOPs, whichever is longer. 0: not known.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;
  double float8_flops_per_second = 0;  // Of matmuls of fp8 matrices.
};

// Returns what `instruction`, in the form in which it is issued, works on: members of a JSON object, without a name
// that depends on the buffer. A matmul has m, n and k, whether its operands are transposed, their dtype, and that of
// its result. Any other op has dtype and shape of each operand, and whose kernels compute it if that was chosen
// (Ops::KernelsOf). All other instructions have none ("").
std::string ShapeJson(const Instruction& instruction);

// Used by one thread.
class OpTimes {
 public:
  // Adds one issue of `instruction`, in the form in which it was issued. `predicted_seconds` is what it was predicted
  // to take, 0 if nothing was.
  void Add(const Instruction& instruction, const std::string& shape_json, double seconds, double bytes, double flops,
           double predicted_seconds = 0);

  // Returns tables for people of the means of `steps` steps, which took `seconds` in all. The first is by kind of
  // instruction, longest first, with FLOP/s, bytes/s and the share of the roofline that the kind reaches; then comes
  // `busy`, a line of the caller; the last is by shape of matmul. If the roofline has no bytes per second, they are the
  // most at which an op of this trace moved at least 64 MiB, and unknown if there is none. If seconds were predicted,
  // the first table has them, too, and a line names the kind that takes most time beyond its prediction.
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
    double predicted_seconds = 0;
    double least_seconds = 0;  // Of one issue.
    double flops = 0;
    double bytes = 0;
    bool has_roofline = false;
    bool is_float8 = false;
    std::string matmul_row;  // For a matmul: its shape, as the table by shape shows it.
  };
  struct Kind : Sum {
    double roofline_seconds = 0;
  };
  using Kinds = std::vector<std::pair<std::tuple<StreamId, std::string, Phase>, Kind>>;
  Roofline Known(Roofline roofline) const;
  Kinds SumKinds(const Roofline& roofline) const;  // Longest first.
  std::string ByKind(int64_t steps, double seconds, const Roofline& roofline) const;
  std::string ByShape(int64_t steps, double seconds, const Roofline& roofline) const;

  std::map<Key, Sum> sums_;
  bool predicted_ = false;  // Seconds were predicted.
};

// Returns a digest of the program of a job with so many ranks, by which a trace says what it is a trace of. Jobs that
// differ in their ranks alone may have the same program.
std::string ProgramDigest(const StepProgram& program, int64_t ranks);

// Collects traced steps of one program. Used by one thread.
class StepTrace {
 public:
  // Sets the time that the trace counts from, in the unit of InstructionTime. Otherwise it is the first that Add takes.
  // REQUIRES: Add has not been called.
  void SetOrigin(int64_t nanoseconds) { origin_ns_ = nanoseconds; }
  // Sets how many ranks the job has, of which this process may have a few. Otherwise it is one. REQUIRES: Add has not
  // been called.
  void SetRanks(int64_t ranks) { job_ranks_ = ranks; }
  // Sets what returns the seconds that an instruction, in the form in which it is issued, is predicted to take.
  void SetPredicted(std::function<double(const Instruction&)> predicted) { predicted_ = std::move(predicted); }
  // Adds the times of `rank` in step `step`. Borrows the program during the call.
  void Add(const StepProgram& program, int64_t step, int rank, absl::Span<const InstructionTime> times);

  // Returns the trace in Chrome's format (chrome://tracing, ui.perfetto.dev): a process for each rank, a thread for
  // each stream, and an event for each instruction, with step, unit, phase, micro-batch, FLOPs, and the bytes that it
  // reads and writes, and the shapes of an op (ShapeJson). Each rank also has a counter of the arena's live bytes by
  // category. Its values are those of the plan, and it changes when an instruction of the compute stream begins. The
  // event that names a rank has the digest of the program.
  std::string ChromeJson() const;

  // Returns tables for people about rank 0 (OpTimes::Tables), with how busy each stream was. Empty without rank 0.
  std::string Table(const Roofline& roofline) const;

  bool empty() const { return ranks_.empty(); }

 private:
  // Returns whether a stream has a line in the outputs. Few programs use kHost.
  bool Shows(int stream) const { return static_cast<StreamId>(stream) != StreamId::kHost || uses_host_stream_; }

  std::string program_;  // Its digest; empty before the first Add.
  std::string events_;   // JSON objects, each followed by a comma.
  OpTimes times_;        // Of rank 0.
  double seconds_ = 0;   // Sum over the steps of rank 0, each from its first begin to its last end.
  int64_t steps_ = 0;
  int64_t origin_ns_ = -1;
  std::function<double(const Instruction&)> predicted_;
  int64_t job_ranks_ = 1;
  std::set<int> ranks_;
  bool uses_host_stream_ = false;
};

// Returns one trace with the events of several, each a ChromeJson. REQUIRES: they count from the same time.
std::string MergeChromeJson(absl::Span<const std::string> traces);

}  // namespace shale

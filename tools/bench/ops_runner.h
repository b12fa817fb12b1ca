// Times ops as the engine runs them: prepared, and launched on a stream that records the time.
//
// Rates vary because other programs may share the machine. So rounds of an op alternate with copies of memory, and the
// result is the ratio of their medians. The ratio of the best times is reported as well, for machines that are never
// quiet for long. Calls use several sets of operands in turn, which together exceed the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/bench/ops_cases.h"
#include "tools/bench/ops_machine.h"

namespace shale {

struct OpResult {
  const OpCase* test_case = nullptr;
  absl::string_view kernels;  // Ops::KernelsOf of the op.
  int64_t copies = 0;         // Number of sets of operands.
  int64_t calls = 0;
  double seconds = 0;  // Median of a call.
  double best_seconds = 0;
  // Bytes per second as a fraction of those of the copies made between the calls: medians against copies of the first
  // kind, best times against copies of the first kind, and medians against copies of the second kind.
  double of_copy = 0, best_of_copy = 0, of_second_copy = 0;
  double bytes_per_second() const { return test_case->bytes / seconds; }
  double flops_per_second() const { return test_case->flops / seconds; }
};

struct OpRunnerOptions {
  int64_t cold_bytes = 0;  // Total bytes of the sets of operands; 0: one set for all calls.
  int64_t copy_bytes = 0;  // Size of the buffer that is copied.
  double seconds = 0;      // Time to spend on each op.
};

// Measures ops and copies on one stream. Allocates all memory in Create(). Must be used by one thread.
class OpRunner {
 public:
  // Borrows `machine`, which must outlive the runner. `cases` must contain every case that will be measured.
  static absl::StatusOr<std::unique_ptr<OpRunner>> Create(OpsMachine& machine, const OpRunnerOptions& options,
                                                          const std::vector<OpCase>& cases);

  // Times the op. Copies of memory alternate with its calls, unless it is a matmul or attention. The result refers to
  // `c`.
  absl::StatusOr<OpResult> Measure(const OpCase& c);
  // Returns the median rate of copies through the full buffer, in bytes read and written per second.
  absl::StatusOr<double> MeasureCopies(int kind);
  // Repeats the matmul for `seconds`. Returns its FLOP per second in the second half of that time.
  absl::StatusOr<double> MeasureSustained(const OpCase& c, double seconds);

 private:
  OpRunner(OpsMachine& machine, const OpRunnerOptions& options) : machine_(machine), options_(options) {}

  // Returns the number of sets of operands that calls use in turn.
  int64_t Copies(const OpCase& c) const;
  int64_t OperandBytes(const OpCase& c) const { return Copies(c) * c.size_bytes(); }
  // Places the sets of operands in arena_ and fills them. Returns the op bound to each set.
  absl::StatusOr<std::vector<Op>> BindAndFill(const OpCase& c);

  absl::StatusOr<std::vector<double>> TimeCalls(const OpCase& c, const std::vector<Op>& ops, int64_t samples,
                                                int64_t together);
  absl::StatusOr<std::vector<double>> TimeCopies(int kind, int64_t size_bytes, int64_t samples, int64_t together);
  // Takes `samples` samples. Each is the mean seconds of `together` calls of `work`.
  template <class Work>
  absl::StatusOr<std::vector<double>> Time(int64_t samples, int64_t together, const Work& work);

  OpsMachine& machine_;
  const OpRunnerOptions options_;
  std::unique_ptr<Arena> arena_, copied_;
  std::unique_ptr<Arena> image_;    // One set of operands in host memory; null if the host may write arena_.
  std::unique_ptr<Stream> stream_;  // Destroyed before the memory that its work uses.
  uint64_t next_ = 0;
  int64_t next_copy_ = 0;
};

}  // namespace shale

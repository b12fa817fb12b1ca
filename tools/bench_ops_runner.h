// Times ops as the engine runs them: prepared and launched on a stream, which notes the time.
//
// A machine may be shared with others, so that rates come and go: rounds of an op alternate with copies of memory, and
// what counts is the ratio of their medians; the ratio of the best times stands beside it, for hours in which the
// machine is never quiet for long. Between two calls with the same operands as many others are used as exceed the
// caches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench_ops_cases.h"
#include "tools/bench_ops_machine.h"

namespace shale {

struct OpResult {
  const OpCase* test_case = nullptr;
  int64_t copies = 0;  // Sets of operands.
  int64_t calls = 0;
  double seconds = 0;  // Median.
  double best_seconds = 0;
  // Bytes per second, as a fraction of those of copies in between: of the first kind (and both at their best), and of
  // the second.
  double of_copy = 0, best_of_copy = 0, of_second_copy = 0;
  double bytes_per_second() const { return test_case->bytes / seconds; }
  double flops_per_second() const { return test_case->flops / seconds; }
};

struct OpRunnerOptions {
  int64_t cold_bytes = 0;  // Operands that are used in turn; 0: the same in every call.
  int64_t copy_bytes = 0;  // Of a buffer that is copied.
  double seconds = 0;      // For each op.
};

// Runs things on one stream, in the memory that it was made with. One thread.
class OpRunner {
 public:
  // Borrows `machine`. `cases` are all that will be measured.
  static absl::StatusOr<std::unique_ptr<OpRunner>> Create(OpsMachine& machine, const OpRunnerOptions& options,
                                                          const std::vector<OpCase>& cases);

  absl::StatusOr<OpResult> Measure(const OpCase& c);
  // Bytes per second, read and written, of copies through the whole buffer. Median.
  absl::StatusOr<double> MeasureCopies(int kind);
  // FLOP per second of one product, again and again for so long, in the second half of that time.
  absl::StatusOr<double> MeasureSustained(const OpCase& c, double seconds);

 private:
  OpRunner(OpsMachine& machine, const OpRunnerOptions& options) : machine_(machine), options_(options) {}

  // Sets of operands that are used in turn.
  int64_t Copies(const OpCase& c) const;
  int64_t OperandBytes(const OpCase& c) const { return Copies(c) * c.size_bytes(); }
  // Sets of operands in place, with numbers in them.
  absl::StatusOr<std::vector<Op>> BindAndFill(const OpCase& c);

  absl::StatusOr<std::vector<double>> TimeCalls(const OpCase& c, const std::vector<Op>& ops, int64_t samples,
                                                int64_t together);
  absl::StatusOr<std::vector<double>> TimeCopies(int kind, int64_t size_bytes, int64_t samples, int64_t together);
  // Seconds of one of `together` calls of `work`, so many times.
  template <class Work>
  absl::StatusOr<std::vector<double>> Time(int64_t samples, int64_t together, const Work& work);

  OpsMachine& machine_;
  const OpRunnerOptions options_;
  std::unique_ptr<Arena> arena_, copied_;
  std::unique_ptr<Arena> image_;    // One set of operands in host memory; null: the host may write arena_.
  std::unique_ptr<Stream> stream_;  // Ends before what its work uses.
  uint64_t next_ = 0;
  int64_t next_copy_ = 0;
};

}  // namespace shale

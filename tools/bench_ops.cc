// bench_ops: every op against what the machine can do: those that move memory against a copy of memory, products and
// attention against the best rate of any product.
//
// Ops are prepared and launched as the engine does, on a stream that notes the time before and after each. The machine is
// shared with others, so that rates come and go: rounds of an op alternate with copies of memory, and what counts is the
// ratio of their medians; the ratio of the best times stands beside it, for hours in which the machine is never quiet for
// long. Between two calls with the same operands as many others are used as exceed the caches.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/io/json_lines.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tools/bench_ops_cases.h"
#include "tools/bench_support.h"
#include "tools/command_line.h"
#include "tools/passive_waiting.h"

namespace shale {
namespace {

constexpr double kTarget = 0.8;
constexpr int64_t kMiB = 1 << 20;

struct Flags {
  OpSizes sizes;
  int64_t threads = ProcessorCount();
  int64_t head_width = 0;
  std::string dtype = "both";
  std::string only;
  std::string json;
  bool warm = false;
  bool list = false;
  int64_t cold_mib = 256;
  int64_t copy_mib = 256;
  double seconds = 0.3;
};

struct Result {
  const OpCase* test_case = nullptr;
  int64_t copies = 0;
  int64_t calls = 0;
  double seconds = 0;       // Median.
  double best_seconds = 0;
  // Bytes per second, as a fraction of those of copies in between: plain ones (and both at their best), and those with
  // non-temporal stores.
  double of_copy = 0, best_of_copy = 0, of_streamed = 0;
  double bytes_per_second() const { return test_case->bytes / seconds; }
  double flops_per_second() const { return test_case->flops / seconds; }
};

// Runs things on one stream, in the memory that it was made with.
class Runner {
 public:
  static absl::StatusOr<std::unique_ptr<Runner>> Create(const Flags& flags, const std::vector<OpCase>& cases) {
    std::unique_ptr<Runner> runner(new Runner(flags));
    int64_t bytes = 0;
    for (const OpCase& c : cases) bytes = std::max(bytes, runner->OperandBytes(c) + runner->ops_->ScratchBytes(c.op));
    SHALE_ASSIGN_OR_RETURN(runner->arena_, runner->device_->Allocate(bytes + 256));
    SHALE_ASSIGN_OR_RETURN(runner->copied_, runner->device_->Allocate(2 * runner->copy_bytes_ + kStaggerBytes));
    SHALE_ASSIGN_OR_RETURN(runner->stream_, runner->device_->CreateStream("bench"));
    // Pages become resident when they are first written.
    for (int64_t i = 0; i < 2; ++i) SHALE_RETURN_IF_ERROR(runner->TimeCopies(CopyKind::kPlain, kWholeCopy).status());
    return runner;
  }

  // Seconds of copies by `kind` of one slice each, from the next place of a buffer that exceeds the caches.
  static constexpr int64_t kWholeCopy = 64;  // Slices of the buffer.
  absl::StatusOr<std::vector<double>> TimeCopies(CopyKind kind, int64_t count) {
    SHALE_ASSIGN_OR_RETURN(CpuStream * stream, CpuStream::From(*stream_));
    std::vector<int64_t> times(2 * count);
    for (int64_t i = 0; i < count; ++i) {
      std::byte* from = copied_->base() + next_slice_++ % kWholeCopy * slice_bytes();
      SHALE_RETURN_IF_ERROR(stream->RecordTime(&times[2 * i]));
      SHALE_RETURN_IF_ERROR(stream->Enqueue([this, kind, from] {
        CopyMemory(kind, from + copy_bytes_ + kStaggerBytes, from, slice_bytes(), threads_);
        return absl::OkStatus();
      }));
      SHALE_RETURN_IF_ERROR(stream->RecordTime(&times[2 * i + 1]));
    }
    SHALE_RETURN_IF_ERROR(stream->Synchronize());
    return Differences(times);
  }
  // What such a copy reads and writes.
  double copied_bytes() const { return 2.0 * static_cast<double>(slice_bytes()); }

  absl::StatusOr<Result> Measure(const OpCase& c) {
    SHALE_RETURN_IF_ERROR(Validate(c.op));
    SHALE_RETURN_IF_ERROR(ops_->Prepare(c.op));
    Result result{.test_case = &c, .copies = Copies(c)};
    std::vector<Op> ops;
    for (int64_t i = 0; i < result.copies; ++i) {
      ops.push_back(c.Bind(arena_->base() + i * c.size_bytes()));
      FillOperands(c, ops.back());
    }
    // What runs first pays for threads that wake and for scratch that is new.
    SHALE_ASSIGN_OR_RETURN(const std::vector<double> first, TimeCalls(c, ops, 2));
    const double wanted = seconds_ / std::max(1e-7, first.back());
    const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(wanted), 1, 4000);
    const int64_t round = (calls + kRounds - 1) / kRounds;
    std::vector<double> seconds, plain, streamed;
    for (int i = 0; i < kRounds; ++i) {
      const bool moves = c.flops == 0;
      if (moves) {
        SHALE_RETURN_IF_ERROR(Append(TimeCopies(CopyKind::kPlain, kCopies), plain));
        SHALE_RETURN_IF_ERROR(Append(TimeCopies(CopyKind::kNonTemporal, kCopies), streamed));
      }
      SHALE_RETURN_IF_ERROR(Append(TimeCalls(c, ops, round), seconds));
    }
    result.calls = std::ssize(seconds);
    result.seconds = Median(seconds);
    result.best_seconds = Least(seconds);
    if (!plain.empty()) {
      const double share = c.bytes / copied_bytes();
      result.of_copy = share * Median(plain) / result.seconds;
      result.best_of_copy = share * Least(plain) / result.best_seconds;
      result.of_streamed = share * Median(streamed) / result.seconds;
    }
    return result;
  }

 private:
  static constexpr int kRounds = 20;
  static constexpr int64_t kCopies = 4;  // Of either kind, in a round.

  explicit Runner(const Flags& flags)
      : threads_(static_cast<int>(flags.threads)),
        cold_bytes_(flags.warm ? 0 : flags.cold_mib * kMiB),
        copy_bytes_(flags.copy_mib * kMiB),
        seconds_(flags.seconds),
        device_(CreateCpuDevice()),
        ops_(CreateCpuOps({.threads = threads_})) {}

  // Sets of operands that are used in turn.
  int64_t Copies(const OpCase& c) const {
    return std::max<int64_t>(1, (cold_bytes_ + c.size_bytes() - 1) / c.size_bytes());
  }
  int64_t OperandBytes(const OpCase& c) const { return Copies(c) * c.size_bytes(); }
  int64_t slice_bytes() const { return copy_bytes_ / kWholeCopy; }

  absl::StatusOr<std::vector<double>> TimeCalls(const OpCase& c, const std::vector<Op>& ops, int64_t count) {
    const Scratch scratch{arena_->base() + OperandBytes(c), ops_->ScratchBytes(c.op)};
    std::vector<int64_t> times(2 * count);
    for (int64_t i = 0; i < count; ++i) {
      SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[2 * i]));
      SHALE_RETURN_IF_ERROR(ops_->Launch(ops[next_++ % ops.size()], scratch, *stream_));
      SHALE_RETURN_IF_ERROR(stream_->RecordTime(&times[2 * i + 1]));
    }
    SHALE_RETURN_IF_ERROR(stream_->Synchronize());
    return Differences(times);
  }

  static std::vector<double> Differences(const std::vector<int64_t>& nanoseconds) {
    std::vector<double> seconds;
    for (size_t i = 0; i < nanoseconds.size(); i += 2) {
      seconds.push_back(1e-9 * static_cast<double>(std::max<int64_t>(1, nanoseconds[i + 1] - nanoseconds[i])));
    }
    return seconds;
  }
  static double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
  static absl::Status Append(const absl::StatusOr<std::vector<double>>& more, std::vector<double>& to) {
    if (more.ok()) to.insert(to.end(), more->begin(), more->end());
    return more.status();
  }

  const int threads_;
  const int64_t cold_bytes_, copy_bytes_;
  const double seconds_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Arena> arena_, copied_;
  std::unique_ptr<Stream> stream_;  // Ends before what its work uses.
  uint64_t next_ = 0, next_slice_ = 0;
};

// What was measured of the machine.
struct Machine {
  double copy = 0, streamed = 0;  // Bytes per second, read and written.
  double peak[2] = {};            // FLOP per second of the best product: f32, bf16.
};

double& Peak(Machine& machine, DType dtype) { return machine.peak[dtype == DType::kBFloat16 ? 1 : 0]; }

std::string Fraction(double value) { return absl::StrCat(value < kTarget ? "low " : "", Digits(value)); }

std::string Act(const OpCase& c) {
  return c.dtype == DType::kBFloat16 ? "bf16" : "f32";
}

void PrintMoving(const std::vector<Result>& results) {
  MarkdownTable table({{"op", true}, {"size", true}, {"act", true}, {"time"}, {"moved"}, {"GB/s"}, {"of copy"},
                       {"best of copy"}, {"of n.t. copy"}, {"sets"}});
  int64_t reached = 0;
  for (const Result& r : results) {
    table.Add({r.test_case->name, r.test_case->sizes, Act(*r.test_case), Time(r.seconds), Megabytes(r.test_case->bytes),
               Digits(r.bytes_per_second() * 1e-9), Fraction(r.of_copy), Digits(r.best_of_copy), Digits(r.of_streamed),
               absl::StrCat(r.copies)});
    reached += r.of_copy >= kTarget ? 1 : 0;
  }
  if (table.empty()) return;
  std::printf("\n### Memory\n\n%s\n%ld of %zu reach %.1f of a plain copy of memory.\n", table.ToString().c_str(),
              static_cast<long>(reached), results.size(), kTarget);
}

void PrintComputing(const std::vector<Result>& results, Machine& machine) {
  MarkdownTable table({{"op", true}, {"size", true}, {"act", true}, {"time"}, {"GFLOP"}, {"GFLOP/s"}, {"of peak"},
                       {"sets"}});
  for (const Result& r : results) {
    table.Add({r.test_case->name, r.test_case->sizes, Act(*r.test_case), Time(r.seconds), Digits(r.test_case->flops * 1e-9),
               Digits(r.flops_per_second() * 1e-9),
               Digits(r.flops_per_second() / Peak(machine, r.test_case->dtype)), absl::StrCat(r.copies)});
  }
  if (table.empty()) return;
  std::printf("\n### Products (M x N x K) and attention\n\nPeak: the best product here, ");
  const char* names[] = {"f32", "bf16"};
  for (int i = 0; i < 2; ++i) {
    if (machine.peak[i] > 0) std::printf("%s %s GFLOP/s; ", names[i], Digits(machine.peak[i] * 1e-9).c_str());
  }
  std::printf("attention counts the pairs that a causal mask leaves.\n\n%s", table.ToString().c_str());
}

std::string ResultJson(const Result& r, Machine& machine) {
  JsonObject object;
  object.Add("op", r.test_case->name).Add("size", r.test_case->sizes).Add("act", Act(*r.test_case));
  object.Add("seconds", r.seconds).Add("best_seconds", r.best_seconds).Add("calls", r.calls).Add("sets", r.copies);
  object.Add("bytes", r.test_case->bytes).Add("bytes_per_second", r.bytes_per_second());
  if (r.test_case->flops > 0) {
    object.Add("flops", r.test_case->flops).Add("flops_per_second", r.flops_per_second());
    object.Add("of_peak", r.flops_per_second() / Peak(machine, r.test_case->dtype));
  } else {
    object.Add("of_copy", r.of_copy).Add("best_of_copy", r.best_of_copy).Add("of_nontemporal_copy", r.of_streamed);
  }
  return object.ToString();
}

std::string Json(const Flags& flags, Machine& machine, const std::vector<std::string>& results) {
  const OpSizes& s = flags.sizes;
  std::string head = JsonObject()
                         .Add("bench", "ops").Add("date", Today()).Add("processor", ProcessorName())
                         .Add("threads", flags.threads).Add("warm", flags.warm).Add("cold_mib", flags.cold_mib)
                         .Add("tokens", s.tokens).Add("sequence", s.sequence).Add("width", s.width)
                         .Add("hidden", s.hidden).Add("vocabulary", s.vocabulary).Add("heads", s.heads)
                         .Add("kv_heads", s.kv_heads).Add("head_width", s.head_width)
                         .Add("head_tokens", s.head_tokens).Add("parameters", s.parameters)
                         .Add("copy_bytes_per_second", machine.copy)
                         .Add("nontemporal_copy_bytes_per_second", machine.streamed)
                         .Add("peak_f32", machine.peak[0]).Add("peak_bf16", machine.peak[1])
                         .ToString();
  head.pop_back();
  return absl::StrCat(head, ",\n \"results\": [\n  ", absl::StrJoin(results, ",\n  "), "\n]}");
}

absl::StatusOr<std::vector<OpCase>> ChosenCases(const Flags& flags, std::vector<OpCase>& squares) {
  std::regex only;
  try {
    only = std::regex(flags.only, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("--only=", flags.only, " is no regular expression: ", error.what()));
  }
  std::vector<OpCase> chosen;
  bool computes = false;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::string name(ToString(dtype).data(), ToString(dtype).size());
    if (flags.dtype != "both" && flags.dtype != name) continue;
    for (OpCase& c : OpCases(flags.sizes, dtype)) {
      if (!std::regex_search(absl::StrCat(c.name, " ", name), only)) continue;
      computes |= c.flops > 0;
      chosen.push_back(std::move(c));
    }
    squares.push_back(SquareProduct(flags.sizes, dtype));
  }
  if (chosen.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--only=", flags.only, " matches no op; --list shows their names"));
  }
  if (!computes) squares.clear();
  return chosen;
}

absl::Status Bench(const Flags& flags, const std::vector<OpCase>& cases, const std::vector<OpCase>& squares) {
  std::vector<OpCase> all = cases;
  all.insert(all.end(), squares.begin(), squares.end());
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Runner> runner, Runner::Create(flags, all));
  const OpSizes& s = flags.sizes;
  std::printf("## bench_ops, %s, %s, %ld thread%s\n\n", Today().c_str(), ProcessorName().c_str(),
              static_cast<long>(flags.threads), flags.threads == 1 ? "" : "s");
  std::printf("%ld tokens in sequences of %ld, width %ld, hidden %ld, vocabulary %ld, heads %ld/%ld of %ld. ",
              static_cast<long>(s.tokens), static_cast<long>(s.sequence), static_cast<long>(s.width),
              static_cast<long>(s.hidden), static_cast<long>(s.vocabulary), static_cast<long>(s.heads),
              static_cast<long>(s.kv_heads), static_cast<long>(s.head_width));
  if (flags.warm) {
    std::printf("Operands are those of the call before: warm where they fit the caches.\n\n");
  } else {
    std::printf("Operands are cold: as many sets of them as fill %ld MiB are used in turn.\n\n",
                static_cast<long>(flags.cold_mib));
  }

  Machine machine;
  SHALE_ASSIGN_OR_RETURN(const auto plain, runner->TimeCopies(CopyKind::kPlain, 3 * Runner::kWholeCopy));
  SHALE_ASSIGN_OR_RETURN(const auto streamed, runner->TimeCopies(CopyKind::kNonTemporal, 3 * Runner::kWholeCopy));
  machine.copy = runner->copied_bytes() / Median(plain);
  machine.streamed = runner->copied_bytes() / Median(streamed);
  std::printf("Copy of memory, read + write, buffers of %ld MiB with huge pages asked for: plain %s GB/s, non-temporal "
              "stores %s GB/s. An op is held against copies made in between its own calls.\n",
              static_cast<long>(flags.copy_mib), Digits(machine.copy * 1e-9).c_str(),
              Digits(machine.streamed * 1e-9).c_str());

  std::vector<Result> moving, computing;
  for (const auto* list : {&squares, &cases}) {
    for (const OpCase& c : *list) {
      SHALE_ASSIGN_OR_RETURN(const Result result, runner->Measure(c));
      (c.flops > 0 ? computing : moving).push_back(result);
      if (c.flops == 0) continue;
      double& peak = Peak(machine, c.dtype);
      peak = std::max(peak, result.flops_per_second());
    }
  }
  PrintMoving(moving);
  PrintComputing(computing, machine);
  if (flags.json.empty()) return absl::OkStatus();
  std::vector<std::string> results;
  for (const auto* list : {&moving, &computing}) {
    for (const Result& r : *list) results.push_back(ResultJson(r, machine));
  }
  return WriteJson(flags.json, Json(flags, machine, results));
}

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "bench_ops: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(Flags flags) {
  OpSizes& s = flags.sizes;
  if (flags.dtype != "both" && flags.dtype != "f32" && flags.dtype != "bf16") {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("--dtype: found \"", flags.dtype, "\"; allowed: f32, bf16, both")), kExitUsage);
  }
  if (flags.head_width == 0 && s.width % s.heads != 0) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--width=", s.width, " is not a multiple of --heads=", s.heads,
                                                        "; give --head_width")), kExitUsage);
  }
  s.head_width = flags.head_width == 0 ? s.width / s.heads : flags.head_width;
  if (const absl::Status status = CheckSizes(s); !status.ok()) return Fail(status, kExitUsage);
  std::vector<OpCase> squares;
  const absl::StatusOr<std::vector<OpCase>> cases = ChosenCases(flags, squares);
  if (!cases.ok()) return Fail(cases.status(), kExitUsage);
  if (flags.list) {
    for (const OpCase& c : *cases) std::printf("%s %s\n", c.name.c_str(), Act(c).c_str());
    if (flags.only.empty()) {
      std::printf("Not measured, a few numbers each: %s\n", absl::StrJoin(OpsWithoutCase(*cases), ", ").c_str());
    }
    return kExitOk;
  }
  const absl::Status status = Bench(flags, *cases, squares);
  return status.ok() ? kExitOk : Fail(status, kExitFailed);
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  shale::Flags flags;
  shale::OpSizes& s = flags.sizes;
  shale::CommandLine line("bench_ops",
                          "Times every op in the shapes of a job: what moves memory against a copy of memory (target: 0.8\n"
                          "of it), products and attention against the best product. Prints Markdown tables.");
  const int64_t most = int64_t{1} << 24;
  line.Integer("tokens", "Tokens of a micro-batch.", 1, most, &s.tokens);
  line.Integer("sequence", "Tokens of a sequence.", 1, most, &s.sequence);
  line.Integer("width", "Width of the model.", 1, most, &s.width);
  line.Integer("hidden", "Inner width of the feed-forward sublayer.", 1, most, &s.hidden);
  line.Integer("vocabulary", "Vocabulary.", 2, most, &s.vocabulary);
  line.Integer("heads", "Query heads.", 1, 65536, &s.heads);
  line.Integer("kv_heads", "Key and value heads.", 1, 65536, &s.kv_heads);
  line.Integer("head_width", "Width of a head; 0: width / heads.", 0, 65536, &flags.head_width);
  line.Integer("head_tokens", "Tokens of a chunk of logits.", 1, most, &s.head_tokens);
  line.Integer("parameters", "Parameters of a unit: the length of flat vectors.", 1, int64_t{1} << 32, &s.parameters);
  line.Integer("square", "Sides of the product that is measured for the peak.", 1, 65536, &s.square);
  line.Integer("threads", "Threads of the ops, as runtime.threads_per_rank.", 1, 4096, &flags.threads);
  line.Text("dtype", "TYPE", "Of activations and weights: f32, bf16, both.", &flags.dtype);
  line.Text("only", "REGEX", "Only ops whose name, as --list prints it, has a match; letter case is ignored.", &flags.only);
  line.Switch("list", "Print the names of the ops and end.", &flags.list);
  line.Switch("warm", "Use the same operands in every call.", &flags.warm);
  line.Integer("cold_mib", "MiB of operands that are used in turn.", 1, 65536, &flags.cold_mib);
  line.Integer("copy_mib", "MiB of the buffers that are copied.", 1, 65536, &flags.copy_mib);
  line.Number("seconds", "Time for each op.", 0, 3600, &flags.seconds);
  line.Text("json", "FILE", "Write everything measured there too.", &flags.json);
  line.Footer(
      "Bytes moved: every operand's once for each access (read 1, write 1, read-write 2); rows that tokens choose count as\n"
      "often as they are chosen. Times are medians. \"of copy\" compares with copies by ordinary stores, which read what\n"
      "they overwrite and do not count it, \"best of copy\" the best times of both; \"of n.t. copy\" compares with copies by\n"
      "non-temporal stores, which read nothing besides.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}

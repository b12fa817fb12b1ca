#include "tools/bench/ops.h"

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
#include "engine/files/io/json_lines.h"
#include "kernels/check.h"
#include "kernels/ops/matmul.h"
#include "tools/bench/ops_cases.h"
#include "tools/bench/ops_report.h"
#include "tools/bench/ops_runner.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct Flags {
  OpSizes sizes;
  std::string device;
  std::string tuning_table;
  bool own_attention = false;
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
  double sustained_seconds = 0;
};

// `results` and `refused` are JSON objects.
std::string Json(const Flags& flags, const std::string& machine, const OpRates& rates,
                 const std::vector<std::string>& results, const std::vector<std::string>& refused) {
  const OpSizes& s = flags.sizes;
  std::string head = JsonObject()
                         .Add("bench", "ops")
                         .Add("date", Today())
                         .Add("device", flags.device)
                         .Add("processor", machine)
                         .Add("threads", flags.threads)
                         .Add("warm", flags.warm)
                         .Add("cold_mib", flags.cold_mib)
                         .Add("tokens", s.tokens)
                         .Add("sequence", s.sequence)
                         .Add("width", s.width)
                         .Add("hidden", s.hidden)
                         .Add("vocabulary", s.vocabulary)
                         .Add("heads", s.heads)
                         .Add("kv_heads", s.kv_heads)
                         .Add("head_width", s.head_width)
                         .Add("head_tokens", s.head_tokens)
                         .Add("parameters", s.parameters)
                         .Add("copy_bytes_per_second", rates.copy[0])
                         .Add("second_copy_bytes_per_second", rates.copy[1])
                         .Add("peak_f32", rates.peak[0])
                         .Add("peak_bf16", rates.peak[1])
                         .Add("sustained_f32", rates.sustained[0])
                         .Add("sustained_bf16", rates.sustained[1])
                         .Add("target", rates.target)
                         .ToString();
  head.pop_back();
  return absl::StrCat(head, ",\n \"not_measured\": [", absl::StrJoin(refused, ",\n  "), "],\n \"results\": [\n  ",
                      absl::StrJoin(results, ",\n  "), "\n]}");
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
    squares.push_back(SquareMatMul(flags.sizes, dtype));
  }
  if (chosen.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--only=", flags.only, " matches no op; --list shows their names"));
  }
  if (!computes) squares.clear();
  return chosen;
}

void PrintHead(const Flags& flags, const std::string& machine) {
  const OpSizes& s = flags.sizes;
  std::printf("## Ops, %s, %s, %ld thread%s\n\n", Today().c_str(), machine.c_str(), static_cast<long>(flags.threads),
              flags.threads == 1 ? "" : "s");
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
}

absl::Status Bench(const Flags& flags, OpsMachine& machine, const std::vector<OpCase>& cases,
                   const std::vector<OpCase>& squares) {
  std::vector<OpCase> all = cases;
  all.insert(all.end(), squares.begin(), squares.end());
  const OpRunnerOptions options = {.cold_bytes = flags.warm ? 0 : flags.cold_mib * kMiB,
                                   .copy_bytes = flags.copy_mib * kMiB,
                                   .seconds = flags.seconds};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<OpRunner> runner, OpRunner::Create(machine, options, all));
  PrintHead(flags, machine.name());

  OpRates rates{.copies = machine.copies(), .target = machine.target()};
  for (int kind = 0; kind < 2; ++kind) {
    SHALE_ASSIGN_OR_RETURN(rates.copy[kind], runner->MeasureCopies(kind));
  }
  std::printf(
      "Copy of memory, read + write, buffers of %ld MiB: %s %s GB/s, %s %s GB/s. Each op is compared with copies "
      "made in between its own calls.\n",
      static_cast<long>(flags.copy_mib), rates.copies[0].about.c_str(), Digits(rates.copy[0] * 1e-9).c_str(),
      rates.copies[1].about.c_str(), Digits(rates.copy[1] * 1e-9).c_str());
  for (const OpCase& c : squares) {
    if (flags.sustained_seconds == 0) break;
    SHALE_ASSIGN_OR_RETURN(rates.sustained[IndexOf(c.dtype)], runner->MeasureSustained(c, flags.sustained_seconds));
  }

  std::vector<OpResult> moving, computing;
  std::vector<std::string> refused;
  for (const auto* list : {&squares, &cases}) {
    for (const OpCase& c : *list) {
      const absl::StatusOr<OpResult> result = runner->Measure(c);
      if (absl::IsUnimplemented(result.status())) {  // A library may not have this kind of matmul on this GPU.
        refused.push_back(RefusalJson(c, result.status()));
        continue;
      }
      SHALE_RETURN_IF_ERROR(result.status());
      (c.flops > 0 ? computing : moving).push_back(*result);
      const auto* matmul = c.op.As<MatMul>();
      if (c.flops == 0 || (matmul != nullptr && matmul->is_float8())) continue;
      double& peak = rates.peak[IndexOf(c.dtype)];
      peak = std::max(peak, result->flops_per_second());
    }
  }
  if (!refused.empty()) std::printf("\nNot measured:\n%s\n", absl::StrJoin(refused, "\n").c_str());
  PrintMoving(moving, rates);
  PrintComputing(computing, rates);
  if (flags.json.empty()) return absl::OkStatus();
  std::vector<std::string> results;
  for (const auto* list : {&moving, &computing}) {
    for (const OpResult& r : *list) results.push_back(ResultJson(r, rates));
  }
  return WriteJson(flags.json, Json(flags, machine.name(), rates, results, refused));
}

std::string DeviceNames(const std::vector<OpsMachineKind>& kinds) {
  return absl::StrJoin(kinds, ", ", [](std::string* out, const OpsMachineKind& kind) { out->append(kind.device); });
}

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "ops: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(Flags flags, const std::vector<OpsMachineKind>& kinds) {
  OpSizes& s = flags.sizes;
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.device == flags.device; });
  if (kind == kinds.end()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--device: found \"", flags.device,
                                                        "\"; this program was built for ", DeviceNames(kinds))),
                kExitUsage);
  }
  if (flags.dtype != "both" && flags.dtype != "f32" && flags.dtype != "bf16") {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("--dtype: found \"", flags.dtype, "\"; allowed: f32, bf16, both")),
        kExitUsage);
  }
  if (flags.head_width == 0 && s.width % s.heads != 0) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--width=", s.width, " is not a multiple of --heads=", s.heads,
                                                        "; give --head_width")),
                kExitUsage);
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
  const absl::StatusOr<std::unique_ptr<OpsMachine>> machine = kind->create({.threads = static_cast<int>(flags.threads),
                                                                            .tuning_table = flags.tuning_table,
                                                                            .own_attention = flags.own_attention});
  if (!machine.ok()) return Fail(machine.status(), kExitFailed);
  const absl::Status status = Bench(flags, **machine, *cases, squares);
  return status.ok() ? kExitOk : Fail(status, kExitFailed);
}

}  // namespace

int BenchOps(int argc, char** argv, const std::vector<OpsMachineKind>& kinds) {
  Flags flags{.device = kinds.front().device};
  OpSizes& s = flags.sizes;
  CommandLine line("ops",
                   "Times every op in the shapes of a job: what moves memory against a copy of memory, matmuls and\n"
                   "attention against the best matmul. Prints Markdown tables.");
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
  line.Integer("square", "Sides of the matmul that is measured for the peak.", 1, 65536, &s.square);
  line.Text("device", "NAME", absl::StrCat("One of: ", DeviceNames(kinds), "."), &flags.device);
  line.Text("tuning_table", "FILE", "Algorithms of matmuls on a GPU, as tools/tune wrote it.", &flags.tuning_table);
  line.Switch("own_attention", "On a GPU: attention by the engine's own kernels also where cuDNN could compute it.",
              &flags.own_attention);
  line.Integer("threads", "Threads of the ops, as runtime.threads_per_rank.", 1, 4096, &flags.threads);
  line.Text("dtype", "TYPE", "Of activations and weights: f32, bf16, both.", &flags.dtype);
  line.Text("only", "REGEX", "Only ops whose name, as --list prints it, has a match; letter case is ignored.",
            &flags.only);
  line.Switch("list", "Print the names of the ops and end.", &flags.list);
  line.Switch("warm", "Use the same operands in every call.", &flags.warm);
  line.Integer("cold_mib", "MiB of operands that are used in turn.", 1, 65536, &flags.cold_mib);
  line.Integer("copy_mib", "MiB of the buffers that are copied.", 1, 65536, &flags.copy_mib);
  line.Number("seconds", "Time for each op.", 0, 3600, &flags.seconds);
  line.Number("sustained_seconds", "Also measure the rate of one matmul that runs this long; 0: do not.", 0, 3600,
              &flags.sustained_seconds);
  line.Text("json", "FILE", "Also write all results as JSON to this file.", &flags.json);
  line.Footer(
      "Bytes moved: every operand's once for each access (read 1, write 1, read-write 2); rows that tokens choose "
      "count as\n"
      "often as they are chosen. Times are medians. On the CPU \"of copy\" compares with copies by ordinary stores, "
      "which\n"
      "read what they overwrite and do not count it, \"best of copy\" the best times of both; \"of n.t. copy\" "
      "compares with\n"
      "copies by non-temporal stores, which read nothing besides. On a GPU \"of copy\" compares with cudaMemcpyAsync "
      "that\n"
      "moves as many bytes as the op, \"of large copy\" with one of a whole buffer.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return Run(std::move(flags), kinds);
}

}  // namespace shale

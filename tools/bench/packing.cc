// The packing bench: what packing documents saves against one document per sequence (data.packing PACK and PAD).
//
// Makes a text whose lines have log-normal lengths, as those of chats and web pages have, and trains one model on it
// with PACK, PAD and CUT in turns, so that a noisy machine disturbs all of them alike. All sequences have the same
// length, so a step costs about the same with each; what differs is how many of its positions count, and what attention
// computes. Tokens per second count targets only.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string job = "tools/jobs/quickstart.textproto";
  std::vector<std::string> overrides;
  int64_t steps = 30, warm_up = 3, median = 100, documents = 20000;
  double spread = 1;
};

// One packing of the documents.
struct Row {
  std::string packing;
  std::unique_ptr<Backend> backend = nullptr;
  std::unique_ptr<Trainer> trainer = nullptr;
  int64_t positions = 0;  // Of a step.
  std::vector<double> seconds = {};
  int64_t tokens = 0;  // Targets of all measured steps.

  double Filled() const {
    return static_cast<double>(tokens) / (static_cast<double>(positions) * static_cast<double>(seconds.size()));
  }
  double TokensPerSecond() const { return Filled() * static_cast<double>(positions) / Median(seconds); }
};

// Returns lines of random letters, whose lengths have this median; two thirds lie within a factor e^spread of it.
std::string MakeText(const Flags& flags) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> length(std::log(static_cast<double>(flags.median)), flags.spread);
  std::string text;
  for (int64_t i = 0; i < flags.documents; ++i) {
    const auto letters = std::max<int64_t>(1, static_cast<int64_t>(std::llround(length(random))));
    for (int64_t j = 0; j < letters; ++j) text.push_back(static_cast<char>('a' + random() % 26));
    text.push_back('\n');
  }
  return text;
}

absl::Status Start(const Flags& flags, const std::string& text, Row& row) {
  std::vector<std::string> overrides = {
      absl::StrCat("data={path: \"", text, "\" format: TEXT packing: ", row.packing,
                   row.packing == "CUT" ? "" : " document_end_token: 10", "}"),
      "data.evaluation_fraction=", "telemetry.evaluate_every=", "lr_schedule.warmup_steps=",
      absl::StrCat("lr_schedule.steps=", flags.steps + flags.warm_up)};
  overrides.insert(overrides.end(), flags.overrides.begin(), flags.overrides.end());
  SHALE_ASSIGN_OR_RETURN(const Job job, LoadJob(flags.job, overrides));
  SHALE_ASSIGN_OR_RETURN(row.backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(row.trainer, Trainer::Create(job, {.backend = row.backend.get()}));
  row.positions = job.batch.global_batch * job.batch.sequence_length;
  return absl::OkStatus();
}

absl::Status Measure(const Flags& flags, std::vector<Row>& rows) {
  for (int64_t step = 0; step < flags.steps + flags.warm_up; ++step) {
    for (Row& row : rows) {
      SHALE_ASSIGN_OR_RETURN(const StepReport report, row.trainer->Step());
      if (step < flags.warm_up) continue;
      row.seconds.push_back(report.seconds);
      row.tokens += report.step_tokens;
    }
  }
  return absl::OkStatus();
}

void Print(const Flags& flags, const std::vector<Row>& rows) {
  std::printf(
      "# Packed documents and padded ones\n\n- date: %s\n- machine: %s, %d cores\n- job: %s, %s\n", Today().c_str(),
      ProcessorName().c_str(), ProcessorCount(), flags.job.c_str(),
      absl::StrCat(flags.documents, " documents, median length ", flags.median, ", spread ", flags.spread).c_str());
  std::printf("- the median of %s steps, in turns\n\n", absl::StrCat(flags.steps).c_str());
  MarkdownTable table({{"data.packing", true},
                       {"ms a step"},
                       {"filled, %"},
                       {"targets/s"},
                       {"against PAD"},
                       {"filled against PAD"},
                       {"peak, MB"}});
  const Row& padded = rows[1];
  for (const Row& row : rows) {
    table.Add({row.packing, absl::StrFormat("%.1f", 1e3 * Median(row.seconds)),
               absl::StrFormat("%.1f", 100 * row.Filled()), absl::StrFormat("%.0f", row.TokensPerSecond()),
               absl::StrFormat("%.2f", row.TokensPerSecond() / padded.TokensPerSecond()),
               absl::StrFormat("%.2f", row.Filled() / padded.Filled()),
               absl::StrFormat("%.2f", 1e-6 * static_cast<double>(row.trainer->plan().train.memory.peak_bytes))});
  }
  std::printf("%s", table.ToString().c_str());
}

absl::Status Run(const Flags& flags) {
  std::string folder = "/tmp/shale_packing_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError("cannot make a folder in /tmp");
  const std::string text = JoinPath(folder, "documents.txt");
  absl::Status status = WriteFileDurably(text, MakeText(flags));
  std::vector<Row> rows;
  for (const char* packing : {"PACK", "PAD", "CUT"}) {
    rows.push_back({.packing = packing});
    if (status.ok()) status = Start(flags, text, rows.back());
  }
  if (status.ok()) status = Measure(flags, rows);
  if (status.ok()) Print(flags, rows);
  unlink(text.c_str());
  rmdir(folder.c_str());
  return status;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("packing", "Compares steps on packed documents with steps on padded ones.");
  line.Text("job", "FILE", "The job; its data, length and telemetry are replaced.", &flags.job);
  line.List("set", "FIELD=VALUE", "Changes a field of the job.", &flags.overrides);
  line.Integer("steps", "Steps to measure.", 1, 1 << 20, &flags.steps);
  line.Integer("warm_up", "Steps before these.", 0, 1 << 20, &flags.warm_up);
  line.Integer("documents", "Number of documents.", 1, 1 << 30, &flags.documents);
  line.Integer("median", "Median length of a document, in tokens.", 1, 1 << 24, &flags.median);
  line.Number("spread", "Standard deviation of the logarithm of the lengths.", 0, 10, &flags.spread);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Run(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "packing: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}

// evaluate: measures a model on files: the loss of their tokens, and how many completions it gives word for word.

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/checkpoint.h"
#include "engine/files/io/file.h"
#include "engine/files/io/json_lines.h"
#include "engine/run/evaluate/evaluator.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "tools/checkpoint_flag.h"
#include "tools/command_line.h"
#include "tools/device_flag.h"
#include "tools/show_text.h"

namespace shale {
namespace {

struct Flags {
  std::string run, folder;
  std::string checkpoint = "newest";
  std::string base;
  std::vector<std::string> data;
  bool loss_only = false;
  int64_t sequences = 0, sequence_length = 0, context = 0;
  int64_t answers_at_once = 8;
  MatchOptions match;
  std::string packing, loss_on;
  std::string answers, json;
  int64_t budget_bytes = 0;
  std::string device;
};

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  absl::StatusOr<std::string> Make() {
    std::error_code error;
    std::string path = (std::filesystem::temp_directory_path(error) / "shale-evaluate-XXXXXX").string();
    if (error || mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot make a folder for tokens, ", path,
                                                 "; set TMPDIR to a folder "
                                                 "that can be written"));
    }
    return path_ = path;
  }

 private:
  std::string path_;
};

absl::Status ReadChoices(const Flags& flags, EvaluatorOptions& options) {
  const auto wrong = [](const char* flag, const std::string& found, const char* allowed) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": found \"", found, "\"; allowed: ", allowed));
  };
  if (flags.packing == "CUT") {
    options.packing = Packing::kCut;
  } else if (flags.packing == "PACK") {
    options.packing = Packing::kPack;
  } else if (flags.packing == "PAD") {
    options.packing = Packing::kPad;
  } else if (!flags.packing.empty()) {
    return wrong("--packing", flags.packing, "CUT, PACK, PAD");
  }
  if (flags.loss_on == "ALL") {
    options.loss_on = LossOn::kAll;
  } else if (flags.loss_on == "COMPLETIONS") {
    options.loss_on = LossOn::kCompletions;
  } else if (!flags.loss_on.empty()) {
    return wrong("--loss_on", flags.loss_on, "COMPLETIONS, ALL");
  }
  return absl::OkStatus();
}

// Returns which of the files have completions to match.
absl::StatusOr<std::vector<bool>> FindCompletions(const Flags& flags) {
  std::vector<bool> have;
  for (const std::string& path : flags.data) {
    const absl::StatusOr<bool> found = HasCompletions(path, /*all_rows=*/false);
    // Says before a model is loaded that a file is missing. What is no text may be token files.
    if (absl::IsNotFound(found.status())) return found.status();
    have.push_back(!flags.loss_only && found.value_or(false));
  }
  return have;
}

void PrintLoss(const std::string& path, const DataEvaluation& loss) {
  std::string line =
      loss.tokens == 0 ? absl::StrCat(path, "  no token counts") : absl::StrCat(path, "  ", LossText(loss.loss()));
  if (loss.bytes > 0) absl::StrAppendFormat(&line, "  %.4f bits/byte", loss.bits_per_byte());
  std::printf("%s  %s tokens\n", line.c_str(), WithCommas(loss.tokens).c_str());
  std::fflush(stdout);
}

void PrintMatches(const std::string& path, const MatchReport& report, int64_t positions) {
  std::string line = absl::StrCat(path, "  exact match ",
                                  Percent(static_cast<double>(report.matches), static_cast<double>(report.completions)),
                                  "  ", report.matches, " of ", Plural(report.completions, "completion"));
  if (report.unanswered > 0) {
    absl::StrAppend(&line, "; ", Plural(report.unanswered, "prompt"),
                    " not answered: no token, or no room for an answer in ", positions, " (--context)");
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

JsonObject RowOf(const std::string& path, int64_t step, const DataEvaluation& loss,
                 const std::optional<MatchReport>& matches) {
  JsonObject row;
  row.Add("data", path);
  if (step >= 0) row.Add("step", step);
  row.Add("tokens", loss.tokens);
  if (loss.tokens > 0) row.Add("loss", loss.loss()).Add("perplexity", loss.perplexity());
  if (loss.bytes > 0) row.Add("bits_per_byte", loss.bits_per_byte());
  if (!matches) return row;
  row.Add("completions", matches->completions).Add("exact_matches", matches->matches);
  return row.Add("unanswered", matches->unanswered);
}

absl::StatusOr<std::unique_ptr<Evaluator>> Load(const Flags& flags, const EvaluatorOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const BackendFactory backends, BackendsOn(flags.device));
  if (!flags.folder.empty() && !flags.base.empty()) {
    return absl::InvalidArgumentError("--base belongs to --run; leave it out with --folder");
  }
  if (!flags.folder.empty()) return Evaluator::FromFolder(flags.folder, backends, options);
  SHALE_ASSIGN_OR_RETURN(const WhichCheckpoint which, WhichCheckpointOf(flags.checkpoint));
  return Evaluator::FromRun(flags.run, which, backends, options);
}

absl::StatusOr<std::unique_ptr<JsonLinesWriter>> OpenFile(const std::string& path) {
  if (path.empty()) return nullptr;
  return JsonLinesWriter::Open(path, JsonLinesWriter::Mode::kReplace);
}

absl::Status Evaluate(const Flags& flags) {
  if (flags.run.empty() == flags.folder.empty()) {
    return absl::InvalidArgumentError(
        "give either --run=FOLDER, the folder of a run, or --folder=FOLDER, a Hugging Face folder");
  }
  if (!flags.folder.empty() && flags.checkpoint != "newest") {
    return absl::InvalidArgumentError("--checkpoint is for --run; a Hugging Face folder has no checkpoints");
  }
  EvaluatorOptions options{.sequences = flags.sequences,
                           .sequence_length = flags.sequence_length,
                           .context = flags.context,
                           .budget_bytes = flags.budget_bytes};
  SHALE_RETURN_IF_ERROR(ReadChoices(flags, options));
  SHALE_ASSIGN_OR_RETURN(const std::vector<bool> have, FindCompletions(flags));
  const bool any = std::find(have.begin(), have.end(), true) != have.end();
  if (!any && !flags.answers.empty()) {
    return absl::InvalidArgumentError(
        "--answers: no file of --data has rows with a prompt and a completion, or with messages of the assistant");
  }
  if (any) options.answers = flags.answers_at_once;
  options.base_folder = flags.base;
  TemporaryFolder folder;
  if (!flags.folder.empty()) {
    SHALE_ASSIGN_OR_RETURN(options.cache, folder.Make());
  }
  options.progress =
      ShowText([](absl::string_view line) { std::fprintf(stderr, "evaluate: %s\n", std::string(line).c_str()); });
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Evaluator> evaluator, Load(flags, options));
  for (const std::string& reason : evaluator->passed_over()) {
    std::fprintf(stderr, "evaluate: skipped: %s\n", reason.c_str());
  }
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JsonLinesWriter> answers, OpenFile(flags.answers));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JsonLinesWriter> json, OpenFile(flags.json));
  const Job& job = evaluator->job();
  std::printf(
      "%s, sequences of %ld tokens, %s planned\n",
      evaluator->step() < 0 ? flags.folder.c_str() : absl::StrCat(flags.run, " after step ", evaluator->step()).c_str(),
      static_cast<long>(job.batch.sequence_length), FormatBytes(evaluator->planned_peak_bytes()).c_str());
  for (size_t i = 0; i < flags.data.size(); ++i) {
    const std::string& path = flags.data[i];
    SHALE_ASSIGN_OR_RETURN(const DataEvaluation loss, evaluator->Evaluate(path));
    PrintLoss(path, loss);
    std::optional<MatchReport> matches;
    if (have[i]) {
      const auto keep = [&](const Answer& answer) -> absl::Status {
        if (answers == nullptr) return absl::OkStatus();
        JsonObject row;
        row.Add("prompt", answer.prompt).Add("completion", answer.completion).Add("answer", answer.answer);
        return answers->Append(row.Add("match", answer.matches));
      };
      MatchOptions match = flags.match;
      match.whole_answers = answers != nullptr;
      SHALE_ASSIGN_OR_RETURN(matches, evaluator->Match(path, match, keep));
      PrintMatches(path, *matches, flags.context > 0 ? flags.context : job.batch.sequence_length);
    }
    if (json != nullptr) SHALE_RETURN_IF_ERROR(json->Append(RowOf(path, evaluator->step(), loss, matches)));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  shale::CommandLine line("evaluate",
                          "Measures a model on files: loss and perplexity, and exact matches of completions.");
  line.Text("run", "FOLDER", "The run folder of the model.", &flags.run);
  line.Text("checkpoint", "newest|best", shale::kCheckpointHelp, &flags.checkpoint);
  line.Text("base", "FOLDER", shale::kBaseHelp, &flags.base);
  line.Text("folder", "FOLDER", "Instead of --run: a Hugging Face folder with the model.", &flags.folder);
  line.List("data", "PATH", "A file or folder to measure on, like data.path of a job.", &flags.data).Required();
  line.Switch("loss_only", "Measures only the loss, and generates no completions.", &flags.loss_only);
  line.Switch("last_turns", "Generates only the last answer of the assistant in each conversation.",
              &flags.match.last_turns);
  line.Text("loss_on", "COMPLETIONS|ALL", "Which tokens count in the loss; by default as in the run.", &flags.loss_on);
  line.Text("packing", "CUT|PACK|PAD",
            "How documents fill sequences (data.packing); by default as in the run, or PACK with --folder.",
            &flags.packing);
  line.Integer("sequence_length", "Tokens in a sequence; 0: as in the run, or at most 1,024 with --folder.", 0, kMost,
               &flags.sequence_length);
  line.Integer("sequences", "Sequences whose loss is computed at once; 0: batch.micro_batch of the run.", 0, 1 << 20,
               &flags.sequences);
  line.Integer("context", "Tokens that a prompt and its answer may have; 0: sequence_length.", 0, kMost,
               &flags.context);
  line.Integer("answers_at_once", "Completions that are generated at once.", 1, 4096, &flags.answers_at_once);
  line.Integer("tokens", "The most tokens of an answer.", 1, kMost, &flags.match.tokens);
  line.Text("answers", "FILE", "Writes the answers to this file, as JSON Lines.", &flags.answers);
  line.Text("json", "FILE", "Writes the results to this file, a line of JSON for each --data.", &flags.json);
  line.Integer("budget_bytes", "The most bytes that evaluate may plan to use; 0: the default of the machine.", 0,
               std::numeric_limits<int64_t>::max(), &flags.budget_bytes);
  line.Text("device", "CPU|CUDA", shale::kDeviceHelp, &flags.device);
  line.Footer(
      "A row of JSON Lines with a prompt and a completion matches if the most likely tokens after the prompt, up to a\n"
      "token that ends a text, are the completion, without white space at both ends. In a row with messages, every\n"
      "answer of the assistant is such a completion. Its prompt is what the chat template writes of the messages "
      "before\n"
      "it, as they stand in the file: what the model answered to earlier ones is not in it. What the template writes\n"
      "behind an answer ends the tokens too.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line, data, or no such run.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Evaluate(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "evaluate: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)
             ? shale::kExitUsage
             : shale::kExitFailed;
}

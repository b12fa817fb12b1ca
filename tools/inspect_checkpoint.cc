// inspect_checkpoint: shows what is in a checkpoint, verifies it, and compares it with another.

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/checkpoint.h"
#include "engine/api/data_source.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/checkpoint/compare.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string checkpoint;
  std::string compare;
  double tolerance = 0;
  bool verify = false;
  bool parameters = false;
};

// Replaces control characters, so that text from a file is safe to print in a terminal.
std::string Printable(absl::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return out;
}

void Show(const std::string& text) { std::fputs(text.c_str(), stdout); }

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// Returns the checkpoint that `path` names: `path` itself, or the newest complete checkpoint if it is a run folder.
absl::StatusOr<std::string> CheckpointAt(const std::string& path) {
  const std::string of_run = RunCheckpointsPath(path);
  if (Exists(JoinPath(path, kManifestName)) || !Exists(of_run)) {
    if (!Exists(path)) return absl::NotFoundError(absl::StrCat("there is no ", path));
    return path;
  }
  // Opening a checkpoint does not read what its shards hold, so that damage shows only when every byte is verified.
  SHALE_ASSIGN_OR_RETURN(const StagingBuffer staging, StagingBuffer::Create(kReadStagingBytes));
  const auto intact = [&](const CheckpointReader& checkpoint) -> absl::Status {
    std::string first;
    SHALE_ASSIGN_OR_RETURN(const Verified verified,
                           VerifyCheckpoint(checkpoint.folder(), staging.span(), [&](const std::string& damage) {
                             if (first.empty()) first = damage;
                           }));
    return verified.damages == 0 ? absl::OkStatus() : absl::DataLossError(first);
  };
  SHALE_ASSIGN_OR_RETURN(const NewestCheckpoint newest, UseNewestCheckpoint(of_run, intact));
  for (const std::string& reason : newest.passed_over) Show(absl::StrCat("skipped: ", Printable(reason), "\n"));
  if (newest.path.empty()) return NoCheckpointIn(of_run);
  return newest.path;
}

// Returns the lines of the block "model { ... }" of a job.
std::string ModelText(absl::string_view job) {
  std::string text;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(job, '\n')) {
    inside = inside || line == "model {";
    if (inside) absl::StrAppend(&text, "  ", Printable(line), "\n");
    if (line == "}") inside = false;
  }
  return text.empty() ? "  its job names no model\n" : text;
}

// Returns what the last evaluation of a run found, and which one was best.
std::string EvaluationsText(const SavedEvaluations& saved) {
  const std::string last =
      saved.last_loss ? absl::StrFormat("loss %.4f", *saved.last_loss) : "a loss that is not finite";
  const std::string best = saved.best_loss ? absl::StrFormat("%.4f after step %d", *saved.best_loss, saved.best_step)
                                           : "none, because no loss was finite";
  return absl::StrCat("after step ", saved.last_step, ": ", last, "; the lowest: ", best);
}

void Describe(const CheckpointReader& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  const SavedData& data = m.data;
  int64_t elements = 0;
  for (const SavedParameter& parameter : m.parameters) elements += parameter.elements();
  const auto row = [](absl::string_view name, const std::string& text) {
    Show(absl::StrFormat("  %-11s %s\n", name, text));
  };
  Show(absl::StrCat(checkpoint.folder(), "\n"));
  row("step", absl::StrCat(WithCommas(m.step), ", ", Plural(m.update_count, "update"), " applied"));
  if (const SavedLossScale& scale = m.loss_scale; scale.factor > 0) {
    row("loss scale",
        absl::StrCat(absl::StrFormat("%g", scale.factor), ", unchanged for ", Plural(scale.good_steps, "update"),
                     scale.skips > 0 ? absl::StrCat(", after ", Plural(scale.skips, "skipped step")) : ""));
  }
  row("tokens", WithCommas(m.tokens));
  const bool endless = data.samples_per_epoch == kEndlessSamples;
  const int64_t samples = m.samples - data.begin;  // Of this data.
  row("samples",
      absl::StrCat(WithCommas(samples),
                   endless ? " of data without an end"
                           : absl::StrCat(": epoch ", samples / data.samples_per_epoch, ", place ",
                                          WithCommas(samples % data.samples_per_epoch), " of ",
                                          WithCommas(data.samples_per_epoch)),
                   data.begin > 0 ? absl::StrCat(", after ", WithCommas(data.begin), " of other data") : ""));
  row("data", absl::StrCat("samples of ", Plural(data.sequence_length, "token"),
                           data.shuffled ? absl::StrCat(", shuffled with seed ", data.seed) : ", in their order"));
  row("tokenizer", Printable(data.tokenizer));
  for (const SavedSource& source : data.sources) {
    row("tokens of", absl::StrCat(Printable(source.path), ": ", WithCommas(source.tokens), ", digest ",
                                  absl::Hex(source.digest, absl::kZeroPad16)));
  }
  if (!data.source_state.empty())
    row("source", absl::StrCat("a state of ", Plural(std::ssize(data.source_state), "byte")));
  row("seed", absl::StrCat(m.seed));
  row("written by", absl::StrCat(Plural(m.ranks, "rank"), ", strategy ", Printable(m.strategy), ", accumulation ",
                                 Printable(m.accumulation), ", values in ", ToString(m.values)));
  row("parameters", absl::StrCat(WithCommas(std::ssize(m.parameters)), " of ", Plural(elements, "element")));
  if (m.evaluations.last_step >= 0) row("evaluated", EvaluationsText(m.evaluations));
  if (m.base) {
    row("base", absl::StrCat(Printable(m.base->folder), ", digest ", DigestText(m.base->digest),
                             "; the checkpoint holds only what trains"));
  }
  row("bytes", absl::StrCat(WithCommas(checkpoint.size_bytes()), " (", FormatBytes(checkpoint.size_bytes()), ") in ",
                            Plural(m.ranks, "file")));
  Show(absl::StrCat(ModelText(m.job), "files\n"));
  std::vector<std::vector<std::string>> files;
  for (const SavedFile& file : m.files) {
    files.push_back({file.name, WithCommas(file.size_bytes),
                     absl::StrCat("bytes, ", Plural(std::ssize(file.chunk_crcs), "checksum"))});
  }
  Show(Table(files));
}

std::string NameAndShape(const SavedParameter& parameter) {
  return absl::StrCat(parameter.name, " [", absl::StrJoin(parameter.shape, ", "), "]",
                      parameter.in_base  ? ", in the base"
                      : parameter.frozen ? ", frozen"
                                         : "");
}

int NameColumns(const std::vector<SavedParameter>& parameters) {
  size_t columns = 10;
  for (const SavedParameter& parameter : parameters) columns = std::max(columns, NameAndShape(parameter).size());
  return static_cast<int>(std::min<size_t>(columns, 80));
}

// Prints each row as soon as it is computed, because the checkpoint may be large.
absl::Status ShowParameters(const CheckpointReader& checkpoint) {
  const std::vector<SavedParameter>& parameters = checkpoint.manifest().parameters;
  const int columns = NameColumns(parameters);
  Show(absl::StrFormat("%-*s %12s %12s %12s %12s %12s\n", columns + 2, "parameters", "minimum", "maximum", "mean",
                       "rms", "not finite"));
  CheckpointValues values(checkpoint);
  for (const SavedParameter& parameter : parameters) {
    if (parameter.in_base) {
      Show(absl::StrCat("  ", NameAndShape(parameter), "\n"));
      continue;
    }
    SHALE_ASSIGN_OR_RETURN(const PartStatistics s, StatisticsOf(values, SavedPart::kValue, parameter));
    Show(absl::StrFormat("  %-*s %12.4g %12.4g %12.4g %12.4g %12s\n", columns, NameAndShape(parameter), s.minimum,
                         s.maximum, s.mean, s.rms, WithCommas(s.non_finite)));
  }
  return absl::OkStatus();
}

// Verifies every byte and prints each damage. Returns whether there is none.
absl::StatusOr<bool> Verify(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const StagingBuffer staging, StagingBuffer::Create(kReadStagingBytes));
  const auto start = std::chrono::steady_clock::now();
  SHALE_ASSIGN_OR_RETURN(const Verified verified,
                         VerifyCheckpoint(folder, staging.span(), [](const std::string& damage) {
                           Show(absl::StrCat("damaged: ", Printable(damage), "\n"));
                         }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Show(absl::StrFormat("verified %s bytes in %.2f s, %.2f GB/s: %s\n", WithCommas(verified.bytes), seconds,
                       static_cast<double>(verified.bytes) / 1e9 / seconds,
                       verified.damages == 0 ? "every checksum is right"
                                             : absl::StrCat("DAMAGED in ", Plural(verified.damages, "place"))));
  return verified.damages == 0;
}

std::string Cell(const PartDifference& part) {
  if (part.elements == 0) return "-";
  if (part.different == 0) return "equal bits";
  return absl::StrFormat("%.3g (%.2g)", part.largest, part.relative());
}

void ShowFields(absl::string_view title, const std::vector<FieldDifference>& fields) {
  if (fields.empty()) return;
  Show(absl::StrCat(title, "\n"));
  for (const FieldDifference& field : fields) {
    const auto side = [](const std::string& text) { return text.empty() ? "none" : Printable(text); };
    Show(absl::StrCat("  ", Printable(field.field), ": ", side(field.a), " | ", side(field.b), "\n"));
  }
}

// Prints the differences. Returns whether there are none beyond `tolerance`.
absl::StatusOr<bool> Compare(const CheckpointReader& a, const CheckpointReader& b, double tolerance) {
  SHALE_ASSIGN_OR_RETURN(const CheckpointDifference difference, CompareCheckpoints(a, b));
  Show(absl::StrCat("compared with ", b.folder(), "\n"));
  ShowFields("another state", difference.state);
  ShowFields("written differently, which does not affect the state", difference.writing);
  const int columns = NameColumns(a.manifest().parameters);
  std::string head = absl::StrFormat("%-*s", columns + 2, "largest difference (relative)");
  for (const std::string& part : difference.parts) absl::StrAppendFormat(&head, " %20s", part);
  Show(absl::StrCat(head, "\n"));
  int64_t elements = 0, different = 0;
  double relative = 0;
  for (const ParameterDifference& p : difference.parameters) {
    std::string row = absl::StrFormat("  %-*s", columns, NameAndShape(p.parameter));
    for (const PartDifference& part : p.parts) absl::StrAppendFormat(&row, " %20s", Cell(part));
    Show(absl::StrCat(row, "\n"));
    for (const PartDifference& part : p.parts) {
      elements += part.elements;
      different += part.different;
      relative = std::max(relative, part.relative());
    }
  }
  const bool equal = difference.Equal(tolerance);
  std::string verdict = equal ? "equal" : "DIFFERENT";
  if (different == 0) {
    absl::StrAppend(&verdict, ": all ", WithCommas(elements), " values and states have the same bits");
  } else {
    absl::StrAppend(&verdict, ": ", WithCommas(different), " of ", WithCommas(elements),
                    " values and states differ, relative difference at most ", absl::StrFormat("%.3g", relative));
  }
  if (!difference.state.empty()) absl::StrAppend(&verdict, "; other fields of the state differ");
  Show(verdict + "\n");
  return equal;
}

int Fail(const absl::Status& status, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "inspect_checkpoint: %s\n", Printable(status.message()).c_str());
  return exit_code;
}

absl::StatusOr<bool> Inspect(const std::string& folder, const std::string& other, const Flags& flags) {
  const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(folder);
  if (checkpoint.ok()) Describe(*checkpoint);
  bool good = true;
  if (flags.verify) {
    // Open stops at the first damage. Verify finds all of them, unless the manifest is damaged.
    SHALE_ASSIGN_OR_RETURN(good, Verify(folder));
  }
  if (!checkpoint.ok()) return checkpoint.status();
  if (flags.parameters) SHALE_RETURN_IF_ERROR(ShowParameters(*checkpoint));
  if (other.empty()) return good;
  SHALE_ASSIGN_OR_RETURN(const CheckpointReader second, CheckpointReader::Open(other));
  SHALE_ASSIGN_OR_RETURN(const bool equal, Compare(*checkpoint, second, flags.tolerance));
  return good && equal;
}

int Run(const Flags& flags) {
  if (flags.tolerance > 0 && flags.compare.empty()) {
    return Fail(
        absl::InvalidArgumentError("--tolerance belongs to --compare; give --compare=FOLDER, or leave --tolerance out"),
        kExitUsage);
  }
  std::vector<std::string> folders;
  for (const std::string& path : {flags.checkpoint, flags.compare}) {
    const absl::StatusOr<std::string> folder = path.empty() ? "" : CheckpointAt(path);
    if (!folder.ok()) return Fail(folder.status(), absl::IsNotFound(folder.status()) ? kExitUsage : kExitFailed);
    folders.push_back(*folder);
  }
  const absl::StatusOr<bool> good = Inspect(folders[0], folders[1], flags);
  if (!good.ok()) return Fail(good.status(), kExitFailed);
  return *good ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("inspect_checkpoint",
                          "Shows what is in a checkpoint; verifies every byte of it, compares it with another.");
  line.Text("checkpoint", "FOLDER",
            "A checkpoint, or a run folder: then its newest checkpoint of which every byte is intact.",
            &flags.checkpoint)
      .Required();
  line.Switch("verify", "Reads every byte and names every chunk whose checksum is wrong.", &flags.verify);
  line.Switch("parameters", "Also shows each parameter, with its shape and statistics of its values.",
              &flags.parameters);
  line.Text("compare", "FOLDER",
            "Another checkpoint, or a run folder, with which to compare: shows which fields, values and states differ, "
            "and by how much. Number of ranks, strategy and form of the state may differ.",
            &flags.compare);
  line.Number(
      "tolerance",
      "Differences up to this much of the largest magnitude in the parameter's part count as equal; 0: bits must "
      "be equal.",
      0, 1e30, &flags.tolerance);
  line.Footer(
      "It keeps a few chunks of 4 MiB in memory, however large the checkpoints are.\n"
      "\n"
      "Exit codes: 0 intact, or equal; 1 damaged, or different; 2 wrong command line, or no such checkpoint.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}

// export: writes the model of a run as a Hugging Face folder, or as one plain safetensors file.

#include "engine/api/export.h"

#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/hugging_face/staged_folder.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"
#include "tools/checkpoint_flag.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string run;
  std::string checkpoint;
  std::string base;
  std::string out;
  std::string dtype = "F32";
  bool plain = false;
  bool merge = false;
  bool adapter = false;
  int64_t max_file_bytes = HfExportOptions().max_file_bytes;
};

absl::StatusOr<DType> ParseDType(const std::string& name) {
  if (name == "F32") return DType::kFloat32;
  if (name == "BF16") return DType::kBFloat16;
  if (name == "F16") return DType::kFloat16;
  return absl::InvalidArgumentError(absl::StrCat("--dtype: found \"", name, "\"; allowed: F32, BF16, F16"));
}

absl::StatusOr<Job> JobOf(const CheckpointReader& checkpoint) {
  return ParseRecordedJob(checkpoint.manifest().job, absl::StrCat("the job in ", checkpoint.folder()));
}

absl::Status ExportPlain(const CheckpointReader& checkpoint, const Flags& flags, DType dtype) {
  OpenedBase base;
  // Only a checkpoint with a base needs its job to be read.
  if (checkpoint.manifest().base || !flags.base.empty()) {
    SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
    SHALE_ASSIGN_OR_RETURN(base, OpenVerifiedBase(checkpoint, job.model, flags.base));
  }
  SHALE_ASSIGN_OR_RETURN(StagedFolder folder, StagedFolder::Create(flags.out));
  SHALE_RETURN_IF_ERROR(
      ExportParameters(checkpoint, dtype, JoinPath(folder.path(), "model.safetensors"), std::move(base.read)));
  return folder.Commit();
}

// Sets what ends a document and a generated text, as `generate` knows it.
absl::Status ReadEnds(const std::string& folder, HfExportOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(folder));
  SHALE_ASSIGN_OR_RETURN(options.eos_token, DocumentEnd(tokenizer, folder));
  SHALE_ASSIGN_OR_RETURN(options.end_tokens, EndTokens(folder, tokenizer));
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(folder);
  if (absl::IsNotFound(chat.status())) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(chat.status());
  SHALE_ASSIGN_OR_RETURN(const ChatTurn turn, FindTurn(*chat, tokenizer));
  if (turn.end_token >= 0) {
    options.end_tokens.push_back(turn.end_token);
  } else if (!turn.end.empty()) {
    std::fprintf(stderr,
                 "export: the chat template ends an answer with %s, which is no token: give it to generate() of "
                 "transformers as stop_strings\n",
                 Quoted(turn.end).c_str());
  }
  return absl::OkStatus();
}

// Says so if transformers reads the tokenizer of the exported folder in another way than the run did, which had no
// config.json: that names a kind of model, and some kinds have a class of tokenizers of their own.
void SayIfReadOtherwise(const std::string& run_folder, const std::string& exported) {
  if (access(JoinPath(run_folder, "tokenizer.json").c_str(), F_OK) != 0) return;
  if (access(JoinPath(run_folder, "config.json").c_str(), F_OK) == 0) return;
  const absl::StatusOr<FolderTokenizer> here = ReadFolderTokenizer(run_folder);
  const absl::StatusOr<FolderTokenizer> there = ReadFolderTokenizer(exported);
  if (!here.ok() || (there.ok() && here->tokenizer == there->tokenizer)) return;
  std::fprintf(stderr, "export: transformers makes other tokens with this folder than the run did: %s\n",
               there.ok() ? "its config.json makes it take another class of tokenizers"
                          : std::string(there.status().message()).c_str());
}

absl::Status ExportToHf(const CheckpointReader& checkpoint, const Flags& flags, HfExportOptions options) {
  SHALE_ASSIGN_OR_RETURN(const Job job, JobOf(checkpoint));
  const auto* config = std::get_if<DecoderConfig>(&job.model);
  if (config == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the model is of kind ", KindName(job.model),
                                                      ", which no Hugging Face family matches; give --plain for a "
                                                      "safetensors file with the engine's names"));
  }
  if (!config->adapter && (flags.merge || flags.adapter)) {
    return absl::FailedPreconditionError("the model has no adapters (model.adapter); leave --merge and --adapter out");
  }
  SHALE_RETURN_IF_ERROR(CheckLayers(*config, std::ssize(checkpoint.manifest().parameters)));
  OpenedBase base;
  if (!flags.adapter) {
    SHALE_ASSIGN_OR_RETURN(base, OpenVerifiedBase(checkpoint, job.model, flags.base));
  } else if (!flags.base.empty()) {
    return absl::InvalidArgumentError("--adapter writes adapters alone; leave --base out");
  }
  CheckpointValues values(checkpoint, std::move(base.read));
  const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return values.Read(parameter, begin, out);
  };
  if (flags.adapter) return ExportHfAdapter(*config, options.dtype, job.hf_folder, read, flags.out);
  const std::string copies = RunHfPath(flags.run);
  if (!flags.run.empty() && access(copies.c_str(), F_OK) == 0) {
    options.base_folder = copies;
    if (access(JoinPath(copies, "tokenizer.json").c_str(), F_OK) == 0) {
      const absl::Status ends = ReadEnds(copies, options);
      // A model is not held back for the sake of its tokenizer.
      if (!ends.ok()) {
        std::fprintf(stderr,
                     "export: generation_config.json is as it was, and may lack the tokens that end an answer: %s\n",
                     std::string(ends.message()).c_str());
      }
    }
  }
  SHALE_RETURN_IF_ERROR(ExportHf(*config, options, WithAdaptersMerged(*config, read), flags.out));
  if (!options.base_folder.empty()) SayIfReadOtherwise(options.base_folder, flags.out);
  return absl::OkStatus();
}

absl::Status ExportCheckpoint(const CheckpointReader& checkpoint, const Flags& flags, const HfExportOptions& options) {
  SHALE_RETURN_IF_ERROR(flags.plain ? ExportPlain(checkpoint, flags, options.dtype)
                                    : ExportToHf(checkpoint, flags, options));
  std::printf("exported %s (step %ld) to %s as %s\n", checkpoint.folder().c_str(),
              static_cast<long>(checkpoint.manifest().step), flags.out.c_str(), flags.dtype.c_str());
  return absl::OkStatus();
}

absl::StatusOr<NewestCheckpoint> ExportFirst(WhichCheckpoint which, const std::string& folder, const Flags& flags,
                                             const HfExportOptions& options, absl::Status& exported) {
  // Falls back to another checkpoint only if this one turns out to be damaged.
  return UseCheckpoint(which, folder, [&](const CheckpointReader& checkpoint) {
    exported = ExportCheckpoint(checkpoint, flags, options);
    return absl::IsDataLoss(exported) ? exported : absl::OkStatus();
  });
}

absl::Status Export(const Flags& flags) {
  if (flags.run.empty() && flags.checkpoint.empty()) {
    return absl::InvalidArgumentError("give --run=FOLDER, the folder of a run, or --checkpoint=FOLDER, a checkpoint");
  }
  if (flags.plain + flags.merge + flags.adapter > 1) {
    return absl::InvalidArgumentError("give at most one of --plain, --merge and --adapter");
  }
  HfExportOptions options{.max_file_bytes = flags.max_file_bytes};
  SHALE_ASSIGN_OR_RETURN(options.dtype, ParseDType(flags.dtype));
  if (flags.run.empty()) {
    SHALE_ASSIGN_OR_RETURN(const CheckpointReader checkpoint, CheckpointReader::Open(flags.checkpoint));
    return ExportCheckpoint(checkpoint, flags, options);
  }
  SHALE_ASSIGN_OR_RETURN(const WhichCheckpoint which,
                         WhichCheckpointOf(flags.checkpoint.empty() ? "newest" : flags.checkpoint));
  const std::string folder = RunCheckpointsPath(flags.run);
  while (true) {
    absl::Status exported;
    SHALE_ASSIGN_OR_RETURN(const NewestCheckpoint newest, ExportFirst(which, folder, flags, options, exported));
    if (newest.path.empty()) return NoCheckpointIn(folder);
    // The run still writes checkpoints, and removed this one after a newer one. Tries again with the newer one.
    if (!exported.ok() && access(newest.path.c_str(), F_OK) != 0) continue;
    for (const std::string& reason : newest.passed_over) std::fprintf(stderr, "skipped: %s\n", reason.c_str());
    return exported;
  }
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line(
      "export", "Writes the model of a run as a Hugging Face folder, which transformers loads, or as one plain file.");
  line.Text("run", "FOLDER", "The run folder; its newest intact checkpoint is exported.", &flags.run);
  line.Text("checkpoint", "best|FOLDER",
            "With --run, best: the checkpoint with the best evaluation. Instead of --run, FOLDER: this checkpoint.",
            &flags.checkpoint);
  line.Text("base", "FOLDER", shale::kBaseHelp, &flags.base);
  line.Text("out", "FOLDER", "The folder to write; it must not exist, or be empty.", &flags.out).Required();
  line.Text("dtype", "F32|BF16|F16", "The format to which the weights are rounded.", &flags.dtype);
  line.Switch("plain",
              "Writes only model.safetensors, with the engine's names of the parameters. Works for every model.",
              &flags.plain);
  line.Switch(
      "merge",
      "Of a run with adapters: writes the model with the adapters merged into its weights. This is the default.",
      &flags.merge);
  line.Switch("adapter", "Of a run with adapters: writes the adapters alone, as a folder that PEFT loads.",
              &flags.adapter);
  line.Integer("max_file_bytes", "The weights are split into files of at most this many bytes.", 1,
               std::numeric_limits<int64_t>::max(), &flags.max_file_bytes);
  line.Footer(
      "A run that began with a Hugging Face folder (model.hf_folder) passes its config.json and tokenizer files on.\n"
      "Its generation_config.json gets the tokens that end an answer, so that transformers ends where generate does.\n"
      "\n"
      "Exit codes: 0 exported; 1 failed; 2 wrong command line, or no such run. Nothing is left in the folder then.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Export(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "export: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)
             ? shale::kExitUsage
             : shale::kExitFailed;
}

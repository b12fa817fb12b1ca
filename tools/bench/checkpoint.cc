// Measures how fast checkpoints are written and read, compared with plain files of the same size on the same disk, and
// how much an asynchronous save slows training down.

#include "engine/api/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/state/local_state.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

// The default job: 34.1 M parameters on two ranks, 409 MB of state.
constexpr char kJob[] = R"(
name: "checkpoint_bench"
model { decoder { family: LLAMA vocabulary: 8192 width: 512 layers: 8 heads: 8 hidden: 1408 } }
batch { global_batch: 8 micro_batch: 4 sequence_length: 256 }
sharding { ranks: 2 }
lr_schedule { steps: 1000000 }
)";

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  std::string folder = "checkpoint_bench.tmp";
  int64_t repeats = 5;
  int64_t steps = 12;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string Path(const Flags& flags, absl::string_view name) { return JoinPath(flags.folder, name); }

absl::StatusOr<Job> MakeJob(const Flags& flags, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = flags.overrides;
  overrides.insert(overrides.end(), more.begin(), more.end());
  if (!flags.job.empty()) return LoadJob(flags.job, overrides);
  std::string text;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&text, i * 7919 % 10007, i % 9 == 8 ? "\n" : " ");
  SHALE_RETURN_IF_ERROR(WriteFileDurably(Path(flags, "text"), text));
  overrides.insert(overrides.begin(), absl::StrCat("data.path=", Path(flags, "text")));
  return ParseJobText(kJob, "", overrides);
}

// Evicts a file from the page cache, so that it is read from the disk.
absl::Status Evict(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "open", path);
  const int error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  return error != 0 ? FileError(error, "evict", path) : absl::OkStatus();
}

// Writes files of these sizes as `dd bs=4M conv=fsync` does: writes one buffer again and again, then flushes. `direct`
// adds oflag=direct. Returns the seconds that it took.
absl::StatusOr<double> WritePlain(const Flags& flags, const std::vector<int64_t>& sizes, bool direct,
                                  absl::Span<const char> buffer) {
  const std::string folder = Path(flags, "plain");
  SHALE_RETURN_IF_ERROR(MakeFolders(folder));
  const double start = Now();
  for (size_t i = 0; i < sizes.size(); ++i) {
    SHALE_ASSIGN_OR_RETURN(const auto file, PosixFileSystem().Create(JoinPath(folder, absl::StrCat(i))));
    if (direct) file->BypassCache();
    for (int64_t at = 0; at < sizes[i]; at += std::ssize(buffer)) {
      const int64_t count = std::min<int64_t>(sizes[i] - at, std::ssize(buffer));
      SHALE_RETURN_IF_ERROR(file->WriteAt(at, absl::string_view(buffer.data(), count)));
    }
    SHALE_RETURN_IF_ERROR(file->Sync());
    SHALE_RETURN_IF_ERROR(file->Close());
  }
  SHALE_RETURN_IF_ERROR(PosixFileSystem().SyncFolder(folder));
  return Now() - start;
}

absl::StatusOr<double> ReadPlain(const Flags& flags, const std::vector<int64_t>& sizes, absl::Span<char> buffer) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    SHALE_RETURN_IF_ERROR(Evict(JoinPath(Path(flags, "plain"), absl::StrCat(i))));
  }
  const double start = Now();
  for (size_t i = 0; i < sizes.size(); ++i) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(JoinPath(Path(flags, "plain"), absl::StrCat(i))));
    for (int64_t at = 0; at < sizes[i]; at += std::ssize(buffer)) {
      SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), std::min<int64_t>(sizes[i] - at, std::ssize(buffer))));
    }
  }
  return Now() - start;
}

// Restores the full checkpoint into all ranks, after evicting its files from the page cache. Returns the seconds that
// the restore took.
absl::StatusOr<double> Restore(const std::string& path, LocalState& state) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) SHALE_RETURN_IF_ERROR(Evict(JoinPath(path, name)));
  const double start = Now();
  SHALE_ASSIGN_OR_RETURN(const CheckpointReader checkpoint, CheckpointReader::Open(path));
  SHALE_RETURN_IF_ERROR(state.Restore(checkpoint, /*values_only=*/false));
  return Now() - start;
}

void PrintRow(const char* what, const char* how, const std::vector<double>& ours, const std::vector<double>& plain,
              double bytes) {
  std::printf("%-5s checkpoint %.2f GB/s   plain files %-22s %.2f GB/s   ratio of medians %.2f\n", what,
              bytes / Median(ours) / 1e9, how, bytes / Median(plain) / 1e9, Median(plain) / Median(ours));
}

// The seconds of one round.
struct FileSeconds {
  double save = 0, load = 0, write = 0, write_past_cache = 0, read = 0;
};

// Saves, restores, writes and reads the same number of bytes, in files of the same sizes.
class FileBench {
 public:
  FileBench(const Flags& flags, Trainer& trainer, LocalState& state)
      : flags_(flags), trainer_(trainer), state_(state), buffer_(kCheckpointChunkBytes) {
    std::fill(buffer_.span().begin(), buffer_.span().end(), 'x');
  }

  // Runs a round. A disk may be slower right after a burst of writes, so the caller alternates `plain_first`. REQUIRES:
  // the first round does not begin with plain files, because their sizes are those of the checkpoint.
  absl::StatusOr<FileSeconds> Round(bool plain_first) {
    FileSeconds took;
    if (plain_first) SHALE_RETURN_IF_ERROR(Write(took));
    const double start = Now();
    SHALE_ASSIGN_OR_RETURN(const std::string path, trainer_.SaveCheckpoint());
    took.save = Now() - start;
    if (sizes_.empty()) {
      SHALE_ASSIGN_OR_RETURN(const CheckpointReader checkpoint, CheckpointReader::Open(path));
      for (const SavedFile& file : checkpoint.manifest().files) sizes_.push_back(file.size_bytes);
    }
    if (!plain_first) {
      SHALE_RETURN_IF_ERROR(Write(took));
      SHALE_ASSIGN_OR_RETURN(took.load, Restore(path, state_));
    }
    SHALE_ASSIGN_OR_RETURN(took.read, ReadPlain(flags_, sizes_, buffer_.span()));
    if (plain_first) {
      SHALE_ASSIGN_OR_RETURN(took.load, Restore(path, state_));
    }
    SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(Path(flags_, "plain")));
    SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(path));
    return took;
  }

  const std::vector<int64_t>& sizes() const { return sizes_; }  // Of the files. Known after the first round.

 private:
  // Writes past the cache first, so that the files that are read later are those of the cached write.
  absl::Status Write(FileSeconds& took) {
    SHALE_ASSIGN_OR_RETURN(took.write_past_cache, WritePlain(flags_, sizes_, /*direct=*/true, buffer_.span()));
    SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(Path(flags_, "plain")));
    SHALE_ASSIGN_OR_RETURN(took.write, WritePlain(flags_, sizes_, /*direct=*/false, buffer_.span()));
    return absl::OkStatus();
  }

  const Flags& flags_;
  Trainer& trainer_;
  LocalState& state_;
  const StagingBuffer buffer_;
  std::vector<int64_t> sizes_;
};

absl::Status BenchFiles(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const Job job, MakeJob(flags, {"checkpoint.every_steps=0", "checkpoint.keep_last=1000000"}));
  const std::string folder = Path(flags, "checkpoints");
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                         Trainer::Create(job, {.backend = backend.get(), .checkpoint_folder = folder}));
  SHALE_RETURN_IF_ERROR(trainer->Step().status());
  // Creates separate ranks to restore into.
  const JobPlan& plan = trainer->plan();
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalRanks> ranks,
      LocalRanks::Create(*backend, {.mesh = plan.options.mesh, .host_memory = plan.host_memory}, plan.arena_bytes));
  LocalState state(plan.train.graph, plan.train.step.state, plan.train.memory, *ranks);

  FileBench bench(flags, *trainer, state);
  SHALE_RETURN_IF_ERROR(bench.Round(/*plain_first=*/false).status());  // Warms up.
  const int64_t bytes = std::accumulate(bench.sizes().begin(), bench.sizes().end(), int64_t{0});
  std::printf("%.0f MB in %zu files, %ld rounds\n", static_cast<double>(bytes) / 1e6, bench.sizes().size(),
              static_cast<long>(flags.repeats));
  std::vector<double> save, load, write, write_past_cache, read;
  for (int64_t i = 1; i <= flags.repeats; ++i) {
    SHALE_ASSIGN_OR_RETURN(const FileSeconds took, bench.Round(/*plain_first=*/i % 2 == 1));
    save.push_back(took.save);
    load.push_back(took.load);
    write.push_back(took.write);
    write_past_cache.push_back(took.write_past_cache);
    read.push_back(took.read);
  }
  PrintRow("save", "written", save, write, static_cast<double>(bytes));
  PrintRow("save", "written past the cache", save, write_past_cache, static_cast<double>(bytes));
  PrintRow("load", "written", load, write, static_cast<double>(bytes));
  PrintRow("load", "written past the cache", load, write_past_cache, static_cast<double>(bytes));
  PrintRow("load", "read, cold cache", load, read, static_cast<double>(bytes));
  return absl::OkStatus();
}

// Measures the seconds from the end of one step to the end of the next, with and without a save in progress.
absl::Status BenchSteps(const Flags& flags) {
  const int64_t every = 4;
  SHALE_ASSIGN_OR_RETURN(const Job job,
                         MakeJob(flags, {absl::StrCat("checkpoint.every_steps=", every), "checkpoint.keep_last=1"}));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                         Trainer::Create(job, {.backend = backend.get(), .checkpoint_folder = Path(flags, "steps")}));
  std::vector<double> quiet, saving, saves, stops;
  double last = 0;
  const int64_t warm_up = every + 2;  // The first save is slower: it touches its memory for the first time.
  bool save_reported = true;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    const double now = Now();
    if (report.step > warm_up) {
      // A save begins after every `every` steps. It has ended when its report arrives.
      (save_reported ? quiet : saving).push_back(now - last);
    }
    last = now;
    if (report.step % every == 0) save_reported = false;
    if (report.step >= warm_up + flags.steps * every) trainer->RequestStop();
    return absl::OkStatus();
  };
  callbacks.on_checkpoint = [&](const CheckpointReport& report) {
    save_reported = true;
    if (report.step > warm_up) {
      saves.push_back(report.seconds);
      stops.push_back(report.stop_seconds);
    }
    return report.status;
  };
  SHALE_RETURN_IF_ERROR(trainer->Run(callbacks));
  std::printf(
      "steps  %.3f s without a save (%zu), %.3f s with one under way (%zu): %.1f %% slower by the medians; a save "
      "takes %.3f s, of which the copy %.3f s\n",
      Median(quiet), quiet.size(), Median(saving), saving.size(), 100 * (Median(saving) / Median(quiet) - 1),
      Median(saves), Median(stops));
  return absl::OkStatus();
}

absl::Status RemoveFolders(const Flags& flags) {
  for (const char* name : {"checkpoints", "steps"}) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<CheckpointPath> checkpoints, ListCheckpoints(Path(flags, name)));
    for (const CheckpointPath& checkpoint : checkpoints) SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(checkpoint.path));
    rmdir(Path(flags, name).c_str());
  }
  unlink(Path(flags, "text").c_str());
  rmdir(flags.folder.c_str());
  return absl::OkStatus();
}

absl::Status Bench(const Flags& flags) {
  SHALE_RETURN_IF_ERROR(MakeFolders(flags.folder));
  SHALE_RETURN_IF_ERROR(BenchFiles(flags));
  SHALE_RETURN_IF_ERROR(BenchSteps(flags));
  return RemoveFolders(flags);
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line(
      "checkpoint", "Measures saving and loading against plain files, and what an asynchronous save costs a step.");
  line.Text("job", "FILE", "The job whose state is saved; default: a Llama of 34.1 M parameters on two ranks.",
            &flags.job);
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Text("folder", "FOLDER", "Where to write: on the disk that is to be measured. Removed at the end.",
            &flags.folder);
  line.Integer("repeats", "Rounds of saving, writing, loading and reading.", 1, 1000, &flags.repeats);
  line.Integer("steps", "Saves during which steps are timed.", 1, 1000, &flags.steps);
  line.Footer(
      "Plain files are written as `dd bs=4M conv=fsync` does, and with oflag=direct besides. Reads come from the "
      "disk:\n"
      "the page cache is told to forget the files. Each round does all four, so that a noisy machine is noisy to all, "
      "and\n"
      "who goes first alternates.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Bench(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "checkpoint: %s\n", message.c_str());
  return shale::kExitFailed;
}

// Options of a trainer besides its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/data_source.h"
#include "engine/api/events.h"
#include "engine/api/model.h"
#include "engine/api/plan.h"
#include "engine/api/text_progress.h"

namespace shale {

namespace proto {
class MachineProfile;  // proto/machine.proto
}
class ControlPlane;  // sharding/comm/control_plane.h
ControlPlane& OneProcess();
class FileSystem;  // engine/files/io/file.h
FileSystem& PosixFileSystem();

// What to do with checkpoints that are already in the folder.
enum class ResumeFrom {
  kNothing,        // Start from scratch. Refused if the folder holds an intact checkpoint.
  kReplace,        // Start from scratch. The caller must remove the folder's checkpoints before the first step.
  kLatest,         // Resume from the newest checkpoint that is not damaged. There must be one.
  kLatestOrStart,  // Like kLatest, but start from scratch if the folder holds no checkpoint at all.
  kPath,           // Resume from the checkpoint at ResumeOptions::path.
};

struct ResumeOptions {
  ResumeFrom from = ResumeFrom::kNothing;
  std::string path;  // The folder of a checkpoint. Only kPath reads it.
};

// What a run resumed from.
struct Resumed {
  std::string path;             // The checkpoint's folder. Empty: the run starts from scratch.
  bool from_elsewhere = false;  // The checkpoint does not lie in the run's own folder.
  Manifest manifest;
  std::vector<std::string> passed_over;  // Newer checkpoints that are damaged, each with the reason. Process 0 only.
};

// Says which steps are traced, and where the trace is written (StepTrace::ChromeJson; its tables to PATH.txt). With
// several processes, either all or none have a trace, of the same steps. Each writes that of its ranks, and all count
// from the same time (MergeChromeJson).
struct TraceOptions {
  std::string path;        // Empty: no trace is written.
  int64_t first_step = 3;  // This trainer's first step is 1. The first two are slow: page faults and cold caches.
  int64_t steps = 2;       // Number of steps traced.
  // Rate of the device's memory, for rooflines (Roofline); 0: the best that the trace shows.
  double bytes_per_second = 0;
};

struct TrainerOptions {
  // The backend of the job. Required. Borrowed; only Create uses it.
  const Backend* backend = nullptr;
  // The model, if the program brings it. The job must then describe none (ModelFrom::kProgram in
  // engine/api/job.h). Empty: the model of the job.
  std::optional<CustomModel> model;
  // The data of a job without data.path, and, if there is any, its evaluation data, which must be readable at any
  // position. Null: the data are the files of data.path. Borrowed; must live until the trainer is destroyed, or until
  // Trainer::SetData gives other data.
  DataSource* data = nullptr;
  DataSource* evaluation_data = nullptr;
  // The ranks of the job that this process holds, ascending; empty: all of them. With several processes, each creates a
  // trainer of the same job, and all call Create, Run, Step, Evaluate, Logits, Generate, SetData and SaveCheckpoint in
  // the same order, and all must be able to reach `checkpoint_folder`. An error that only one of them has ends the run
  // there; Trainer::Abort then ends it in the others.
  std::vector<int> ranks;
  // The most ranks that one host runs. The memory of a host is divided by it. 0: all ranks of the job.
  int64_t ranks_on_host = 0;
  // Creates the groups that have ranks of several processes. Empty: the backend does (Backend::CreateGroup). Only
  // Create calls it.
  GroupFactory create_spanning_group;
  // The control plane, through which the processes of the job decide together. Borrowed; must outlive the trainer.
  ControlPlane* control = &OneProcess();
  // Peak FLOP/s of one rank, for MFU; 0: MFU is not reported.
  double peak_flops = 0;
  // Peak FLOP/s of one rank in matmuls of fp8 matrices, for jobs with precision.matmuls FP8; 0: peak_flops.
  double peak_flops_fp8 = 0;
  // The profile of this machine, from which the seconds of a step are predicted, so that the run says when it is slower
  // (StepReport::predicted_seconds), and from which fields are decided that the job leaves to a search
  // (runtime.search). Of several processes, that of process 0 decides. Only Create uses it. Null: nothing is predicted.
  const proto::MachineProfile* machine = nullptr;
  // Loads the job with other settings. The error of a job that does not fit proposes only settings with which this
  // succeeds (ResolveJob). Only Create calls it, and not for a job that leaves fields to a search, because its jobs
  // lack what was decided. Empty: sets the fields of the job.
  JobWith job_with;
  // Folder for checkpoints; empty: nothing is saved. The trainer locks it until it is destroyed. `resume` says how to
  // treat checkpoints that are already there.
  std::string checkpoint_folder;
  ResumeOptions resume;
  // Folder that gets a report of what the ranks of this process did last if a run fails, one file for each process of
  // the job (tools/inspect_run reads them). The folder is made when a run fails. Empty: nothing is reported.
  std::string failure_folder;
  // Folder with the tokenizer that made the tokens. Checkpoints record a digest of its files, with the encoding of the
  // data, to recognize the tokenizer. Empty: there is no such folder.
  std::string tokenizer_folder;
  // What is shown while text becomes tokens (data.tokenizer).
  TextProgress text_progress;
  TraceOptions trace;
  // Takes the events of this process (engine/api/events.h), from Create on. May be null. Borrowed; must outlive
  // the trainer.
  EventSink* events = nullptr;
  FileSystem* files = &PosixFileSystem();  // Checkpoints are written through it. Borrowed.
};

}  // namespace shale

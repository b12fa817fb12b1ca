// What the creator of a trainer decides besides the job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/io/file_system.h"
#include "engine/runtime/backend.h"
#include "engine/train/resume.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Which steps are traced, and where the trace is written (StepTrace::ChromeJson).
struct TraceOptions {
  std::string path;        // Empty: nothing is traced.
  int64_t first_step = 3;  // Counted from this trainer's first step, 1. Earlier steps pay for page faults and caches.
  int64_t steps = 2;       // Number of steps traced.
};

struct TrainerOptions {
  // The backend of the job. Required. Borrowed, and used by Create only.
  const Backend* backend = nullptr;
  // The ranks of the job that this process holds, ascending; empty: all of them. With several processes, each creates a
  // trainer of the same job, and all call Create, Run, Step, Evaluate and SaveCheckpoint in the same order. `backend`
  // must then be able to join ranks of several processes (Backend::CreateGroup), and all must reach
  // `checkpoint_folder`.
  std::vector<int> ranks;
  // The way by which the processes of the job decide together. Borrowed; must outlive the trainer.
  ControlPlane* control = &OneProcess();
  // Peak FLOP/s of one rank, for MFU; 0: MFU is not reported.
  double peak_flops = 0;
  // Folder for checkpoints; empty: nothing is saved. The trainer locks it for its lifetime. `resume` says what happens
  // to checkpoints that are already there.
  std::string checkpoint_folder;
  ResumeOptions resume;
  // A folder whose tokenizer files identify the tokenizer that made the tokens, besides their encoding; empty: none.
  std::string tokenizer_folder;
  TraceOptions trace;
  FileSystem* files = &PosixFileSystem();  // Checkpoints are written through it. Borrowed.
};

}  // namespace shale

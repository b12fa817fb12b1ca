// What process 0 decides for a run before it is planned: what it takes from a former run in the run folder, or from the
// one whose checkpoint it resumes from, and the peak FLOP/s that MFU compares with.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/api/job_processes.h"
#include "engine/api/trainer_options.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"
#include "engine/train/resume.h"
#include "engine/train/run_folder.h"

namespace shale {

// Returns what to do with a run folder that is not empty.
RunFolder::Existing ExistingFor(ResumeFrom from);

// Returns the folder with config.json and the tokenizer's files: the job's Hugging Face folder if it exists, and
// otherwise HfFolderOfRun.
std::string HfFolder(const Job& job, const RunFolder& folder, const ResumeOptions& resume);

// Returns the copy that a resumed run has of these files, or that of the run whose checkpoint is named. Returns an
// empty string if there is none, and if nothing is resumed.
std::string HfFolderOfRun(const RunFolder& folder, const ResumeOptions& resume);

// Takes what computed the matmuls of the run that is resumed, if there is one and the job leaves it open, so that a
// resumed run computes the same bits. Another precision changes the bits anyway, and another choice may be faster then.
void KeepCpuProducts(const RunFolder& folder, const ResumeOptions& resume, Job& job);

// Decides what MFU compares with, and sets it in `options`. If it has to be measured, does so in process 0, which
// reports it, and sets `measured` to the time there. A peak that a former run measured counts as none.
absl::Status DecidePeakFlops(JobProcesses& processes, const Backend& backend, const Job& job, TrainerOptions& options,
                             std::string& measured);

// Returns the text of the resolved job as a run folder records it: with the peak, if that was measured, and the time.
std::string RecordedJob(Job job, double peak_flops, const std::string& measured);

}  // namespace shale

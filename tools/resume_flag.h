// What `train` takes from a former run: --resume and --overwrite.
#pragma once

#include <string>

#include "engine/config/job.h"
#include "engine/train/resume.h"
#include "engine/train/run_folder.h"

namespace shale {

// Returns what the flags ask for.
ResumeOptions ParseResume(const std::string& resume, bool overwrite);
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

}  // namespace shale

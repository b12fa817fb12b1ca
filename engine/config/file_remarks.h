// What the files of a job ask for and training leaves out.
#pragma once

#include <string>
#include <vector>

#include "engine/config/job.h"

namespace shale {

// Returns a sentence for each file whose training in transformers or PEFT differs from that of the engine, for people
// to know before a run begins: the dropout of model.hf_folder and of model.adapter.folder. Says nothing about files
// that cannot be read; what reads their weights reports them.
std::vector<std::string> FileRemarks(const Job& job);

}  // namespace shale

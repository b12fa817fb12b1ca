// The public face of Shale, for programs that embed it. They depend on //engine:shale, include this header, and use
// what the headers below declare, in namespace shale. engine/public_api.txt lists it. What these headers include in
// turn is not public: its names may change, and its targets are not visible from other repositories. So Job, JobPlan
// and ModelGraph may be passed on, but their members may change. The fields of a job are those of proto/job.proto:
// overrides set them, and ResolvedJobText prints them.
//
// Errors are absl::Status values that say what was wanted, what was found and what to do. No function throws, and none
// ends the process, unless a program breaks a REQUIRES. tools/manual/embed_cpp.md shows how to begin.
#pragma once

// A job: the settings of a run, read from a file or from text, and checked.
#include "engine/api/job.h"

// A plan: every default decided, and the memory of one rank to the byte, before anything is allocated.
#include "engine/api/plan.h"
#include "engine/api/plan_text.h"

// Devices.
#include "engine/api/backend.h"

// A model of your own: the builder of graphs, and its layers.
#include "engine/api/graph_builder.h"
#include "engine/api/layers.h"
#include "engine/api/model.h"

// Data of your own.
#include "engine/api/data_source.h"

// Training.
#include "engine/api/text_progress.h"
#include "engine/api/trainer.h"
#include "engine/api/trainer_options.h"
#include "engine/api/trainer_parts.h"

// Checks of a job before a long run.
#include "engine/api/verify.h"

// What a run tells those who watch it.
#include "engine/api/events.h"

// Trained weights: checkpoints, exports, generation. ExportHf leaves adapters out. To merge them into the weights, give
// it the reader of WithAdaptersMerged; to write them alone, call ExportHfAdapter.
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/generator.h"
#include "engine/api/sampler.h"

// SHALE_RETURN_IF_ERROR and SHALE_ASSIGN_OR_RETURN.
#include "kernels/check.h"

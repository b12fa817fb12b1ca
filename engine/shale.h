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
#include "engine/config/data_facts.h"
#include "engine/config/job_error.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "engine/config/set_model.h"

// A plan: every default decided, and the memory of one rank to the byte, before anything is allocated.
#include "engine/planner/admission.h"
#include "engine/planner/resolve_job.h"
#include "engine/report/plan_message.h"
#include "engine/report/plan_text.h"

// Devices.
#include "engine/backends/job_backend.h"

// A model of your own: the builder of graphs, and its layers.
#include "engine/graph/builder.h"
#include "engine/graph/layers.h"
#include "engine/graph/parameter.h"
#include "engine/model/custom_model.h"

// Data of your own.
#include "engine/data/data_source.h"
#include "engine/data/pull_source.h"

// Training.
#include "engine/train/trainer.h"
#include "engine/train/trainer_options.h"
#include "engine/train/trainer_parts.h"

// Checks of a job before a long run.
#include "engine/verify/report.h"
#include "engine/verify/verify.h"

// What a run tells those who watch it.
#include "engine/events/event.h"
#include "engine/events/event_queue.h"
#include "engine/events/event_writer.h"

// Trained weights: checkpoints, exports, generation. ExportHf leaves adapters out. To merge them into the weights, give
// it a reader that calls MergedWeights::Read; to write them alone, call ExportHfAdapter.
#include "engine/checkpoint/export_parameters.h"
#include "engine/checkpoint/newest.h"
#include "engine/checkpoint/reader.h"
#include "engine/generate/generator.h"
#include "engine/generate/sampler.h"
#include "engine/hugging_face/adapter_folder.h"
#include "engine/hugging_face/base.h"
#include "engine/hugging_face/export.h"
#include "engine/hugging_face/merged_weights.h"
#include "engine/planner/generation_size.h"

// SHALE_RETURN_IF_ERROR and SHALE_ASSIGN_OR_RETURN.
#include "kernels/check.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/job.h"
#include "engine/run/calibrate/calibrate.h"
#include "engine/run/verify/small_job.h"
#include "kernels/check.h"

namespace shale {
namespace {

// A decoder of CalibrationJobs, in the words of a job.
struct Shape {
  const char* decoder;
  int64_t micro_batch, sequence_length;
};

// The last blocks and heads of a large model differ from those of a small one in their sizes alone.
constexpr Shape kShapes[] = {
    {"family: LLAMA vocabulary: 8192 width: 512 layers: 2 heads: 8 hidden: 1408", 4, 256},
    {"family: LLAMA vocabulary: 512 width: 128 layers: 2 heads: 4", 4, 64},
    {"family: GPT2 vocabulary: 16384 width: 768 layers: 1 heads: 12 max_positions: 512", 1, 512},
    {"family: QWEN2 vocabulary: 32768 width: 896 layers: 1 heads: 14 kv_heads: 2 hidden: 4864 tied_head: true", 1, 256},
};
constexpr int64_t kMicroBatches = 2;  // The fewest in which both forms of an accumulating op occur.

Job JobOf(const Shape& shape, ComputePrecision precision, int64_t ranks, DeviceType device) {
  const std::string text = absl::StrFormat(
      R"(model { decoder { %s } } data { path: "none" }
         batch { global_batch: %d micro_batch: %d sequence_length: %d } sharding { ranks: %d }
         precision { compute: %s } activation_checkpointing { preset: BLOCK } optimizer { } lr_schedule { steps: 1 }
         runtime { device: %s })",
      shape.decoder, kMicroBatches * shape.micro_batch * ranks, shape.micro_batch, shape.sequence_length, ranks,
      precision == ComputePrecision::kFloat32 ? "FP32" : "BF16", device == DeviceType::kCpu ? "CPU" : "CUDA");
  const absl::StatusOr<Job> job = ParseJobText(text, "calibration");
  SHALE_CHECK(job.ok()) << job.status();
  return *job;
}

// Leaves as many layers as have all kinds of blocks, and checkpoints what they have.
void TakeLayersAway(Job& job) {
  constexpr int64_t kLayers = 2;
  if (auto* decoder = std::get_if<DecoderConfig>(&job.model)) {
    decoder->layers = std::min(decoder->layers, std::max<int64_t>(kLayers, std::ssize(decoder->layer_pattern)));
  } else if (auto* mlp = std::get_if<MlpConfig>(&job.model)) {
    mlp->layers = std::min(mlp->layers, kLayers);
  }
  ActivationCheckpointingConfig& checkpointing = job.activation_checkpointing;
  const int64_t layers = Layers(job.model);
  if (checkpointing.first_layers + checkpointing.last_layers > layers) {
    checkpointing.first_layers = checkpointing.last_layers = 0;
  }
  checkpointing.segment_blocks = std::min(checkpointing.segment_blocks, layers);
}

// Returns a job of the same shapes for a few steps on data of the program.
Job Measured(const Job& job) {
  const int64_t micro_batches = std::min(kMicroBatches, AccumulationSteps(job.batch, job.sharding.ranks));
  Job measured = SmallJob(job, {.ranks = job.sharding.ranks,
                                .micro_batch = job.batch.micro_batch,
                                .sequence_length = job.batch.sequence_length});
  measured.name = "calibrate";
  measured.batch.global_batch = micro_batches * job.batch.micro_batch * job.sharding.ranks;
  measured.hf_folder.clear();
  measured.adapter_folder.clear();
  measured.runtime.generate = false;
  TakeLayersAway(measured);
  return measured;
}

}  // namespace

std::vector<Job> CalibrationJobs(DeviceType device) {
  std::vector<Job> jobs;
  for (const Shape& shape : kShapes) {
    for (const ComputePrecision precision : {ComputePrecision::kFloat32, ComputePrecision::kBFloat16}) {
      for (const int64_t ranks : {1, 2}) {
        // Two ranks on one GPU would measure what no job does.
        if (device == DeviceType::kCuda && ranks > 1) continue;
        jobs.push_back(Measured(JobOf(shape, precision, ranks, device)));
      }
    }
  }
  return jobs;
}

std::vector<Job> JobsLike(const Job& job) {
  const bool open =
      job.sharding.accumulation == Accumulation::kAuto && AccumulationSteps(job.batch, job.sharding.ranks) > 1;
  std::vector<Job> jobs = {Measured(job)};
  if (!open) return jobs;
  jobs.clear();
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    jobs.push_back(Measured(job));
    jobs.back().sharding.accumulation = accumulation;
  }
  return jobs;
}

}  // namespace shale

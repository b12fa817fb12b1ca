// Models: their parameters, the weights of their targets, and a model that a program brings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/dtype.h"

namespace shale {

// The parameters of a model, as its graph has them.
using ParameterId = int;
using GroupId = int;

// How weights are stored between their uses. The table in engine/compile/graph/storage.h has a row for each form. The
// order is that of FrozenWeightsSpec.Storage in proto/job/optimizer.proto.
enum class Storage : uint8_t {
  kAsUsed,    // In the dtype in which ops use them.
  kBFloat16,  // In bf16, also if ops use them in f32.
  kNf4,       // Matrices of linear layers in blocks in 4 bits (kernels/nf4.h), the others as used.
};

// Returns the name of the form in job files.
absl::string_view ToString(Storage storage);

// Whether targets have weights, and what the weighted loss is divided by.
//
// The loss of a step is a sum over the targets of its global batch, divided by a number that all ranks share. The order
// is that of DataSpec.TargetWeights in proto/job/data.proto.
enum class TargetWeights {
  kNone,         // Every target counts once: sum of losses / number of targets.
  kOverTokens,   // Sum of weight x loss / number of targets. Targets of weight 0 count in that number.
  kOverWeights,  // Sum of weight x loss / sum of |weight|.
};

// How a parameter is initialized.
struct Initializer {
  enum class Kind { kNormal, kOnes, kZeros, kUniform };
  Kind kind = Kind::kNormal;
  double standard_deviation = 0;  // Of kNormal and kUniform, whose mean is 0.
  bool operator==(const Initializer&) const = default;
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Initializer initializer;
  GroupId group = -1;
  DType dtype = DType::kFloat32;       // In which ops use it.
  bool frozen = false;                 // Not trained: keeps its first value and has no gradient.
  Storage storage = Storage::kAsUsed;  // Only a frozen parameter may have another one.
  int optimizer_group = -1;  // Index into GraphOptions::optimizer_groups. -1: none of them; also if it is frozen.
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

struct GraphOptions;  // engine/api/graph_builder.h
struct ModelGraph;    // engine/compile/graph/graph.h

// Builds the graph of a model, with a GraphBuilder of these options (engine/api/graph_builder.h).
using ModelFunction = std::function<absl::StatusOr<ModelGraph>(const GraphOptions&)>;

// A model that the program brings itself. TrainerOptions::model (engine/api/trainer_options.h) and SetModel
// (engine/api/job.h) give it to a job whose file has no `model`.
struct CustomModel {
  // Names the model in plans, messages and checkpoints: letters, digits, '.', '_' and '-', up to 128 of them.
  std::string name;
  // Identifies the configuration of the model: one line of text, up to 256 bytes, that differs if the function builds
  // another graph. The settings themselves will do, such as "width=64 blocks=3", or a hash of them. Checkpoints record
  // name and digest, and a run resumes only from a checkpoint with the same two.
  std::string digest;
  // Builds the graph. Called several times, with other options each time, on the threads that plan the job. For equal
  // options it must return equal graphs, and for all modes the same parameters.
  ModelFunction build;
  int64_t layers = 0;             // Number of blocks: the units that BeginUnit gives an index.
  bool last_target_only = false;  // Only the last position of a sequence has a target.
  // Tokens in the vocabulary. 0: as many as the data needs, which the function finds in GraphOptions::vocabulary. That
  // is 0 too if the data has no vocabulary, as for a model that reads features and predicts values.
  int64_t vocabulary = 0;

  // What DecoderConfig declares, too (engine/compile/model/config.h). Only the function knows the parameters, so the
  // numbers are 0.
  static constexpr absl::string_view kName = "custom";
  bool LastTargetOnly() const { return last_target_only; }
  unsigned __int128 ParameterCount(int64_t) const { return 0; }
  double WidestRow() const { return 0; }
  double AttentionFlopsPerToken(int64_t) const { return 0; }
  std::string Description() const;

  // Compares everything but the function.
  bool operator==(const CustomModel& other) const;
};

struct DecoderConfig;  // engine/compile/model/config.h, as is MlpConfig.
struct MlpConfig;

// A model of any kind: one that a job describes, or one of the program.
using ModelConfig = std::variant<DecoderConfig, MlpConfig, CustomModel>;

}  // namespace shale

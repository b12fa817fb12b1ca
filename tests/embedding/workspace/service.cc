// Trains a model of its own with Shale. Prints the loss of every step, saves a checkpoint at the end, and exports it.
//
//   service JOB FOLDER    writes FOLDER/checkpoints and FOLDER/model.safetensors
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace {

using shale::GraphBuilder;
using shale::GraphOptions;
using shale::Initializer;
using shale::ParameterId;
using shale::Tensor;

struct ModelSettings {
  int64_t embedding = 8, hidden = 32, layers = 2;
};

// Concatenates the embeddings of a sequence and classifies the token that follows it.
absl::StatusOr<shale::ModelGraph> Build(const ModelSettings& settings, const GraphOptions& options) {
  const Initializer normal = {Initializer::Kind::kNormal, 0.02}, zeros = {Initializer::Kind::kZeros};
  GraphBuilder b(options);
  const auto table =
      b.AddParameter(b.AddGroup("embedding"), "embedding.weight", {options.vocabulary, settings.embedding}, normal);
  b.BeginUnit("embedding");
  b.EndUnit(Embedding(b, table, std::nullopt));

  int64_t width = options.sequence_length * settings.embedding;
  for (int i = 0; i < settings.layers; ++i) {
    const std::string name = absl::StrCat("hidden.", i);
    const auto group = b.AddGroup(name);
    const ParameterId weight = b.AddParameter(group, name + ".weight", {settings.hidden, width}, normal);
    const ParameterId bias = b.AddParameter(group, name + ".bias", {settings.hidden}, zeros);
    b.BeginUnit(name, i);
    const Tensor x = Reshape(b, b.UnitInput(), {options.micro_batch, width});
    b.EndUnit(GeluTanh(b, Linear(b, x, weight, bias, "up")));
    width = settings.hidden;
  }

  const auto head = b.AddGroup("head");
  const ParameterId weight = b.AddParameter(head, "head.weight", {options.vocabulary, width}, normal);
  const ParameterId bias = b.AddParameter(head, "head.bias", {options.vocabulary}, zeros);
  b.BeginUnit("head");
  LinearCrossEntropy(b, b.UnitInput(), weight, bias);
  b.EndLastUnit();
  return b.Finish();
}

absl::Status Train(const std::string& job_file, const std::string& folder) {
  const ModelSettings settings;
  const shale::CustomModel model = {
      .name = "classifier",
      .digest = absl::StrCat("embedding=", settings.embedding, " hidden=", settings.hidden),
      .build = [settings](const GraphOptions& options) { return Build(settings, options); },
      .layers = settings.layers,
      .last_target_only = true};
  SHALE_ASSIGN_OR_RETURN(const shale::Job job, shale::LoadJob(job_file, {}, shale::ModelFrom::kProgram));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<shale::Backend> backend, shale::CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<shale::Trainer> trainer,
      shale::Trainer::Create(job,
                             {.backend = backend.get(), .model = model, .checkpoint_folder = folder + "/checkpoints"}));
  while (!trainer->done()) {
    SHALE_ASSIGN_OR_RETURN(const shale::StepReport report, trainer->Step());
    std::printf("step %d: loss %.6f\n", static_cast<int>(report.step), report.loss);
  }
  SHALE_ASSIGN_OR_RETURN(const std::string path, trainer->SaveCheckpoint());
  SHALE_ASSIGN_OR_RETURN(const shale::CheckpointReader checkpoint, shale::CheckpointReader::Open(path));
  return shale::ExportParameters(checkpoint, shale::DType::kFloat32, folder + "/model.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "service JOB FOLDER\n"), 2;
  const absl::Status status = Train(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "service: %s\n", status.ToString().c_str());
  return 1;
}

// The MANIFEST file: a message (proto/checkpoint.proto) in a frame.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "proto/checkpoint.pb.h"

namespace shale {
namespace {

constexpr char kManifestMagic[] = "SHALEMAN";
constexpr uint32_t kManifestVersion = 1;
constexpr int kMaxDimensions = 64;

// However little a parameter or file takes in the MANIFEST, once parsed it takes up to about 250 bytes besides its
// name, and a dimension takes 16. These limits keep that below 0.7 GB. Checksums and texts take a few times their size
// in the file. A job has at most 2^20 ranks. For comparison, a model of 405B weights on 16,384 ranks has 1,137
// parameters, 16,384 files, and 405e9 x 12 bytes in 1.2 million chunks: a manifest of 6 MB.
constexpr WireLimit kManifestLimits[] = {{"parameters", kMaxSavedParameters, "parameters"},
                                         {"shape", kMaxDimensions, "dimensions in one parameter"},
                                         {"files", kMaxSavedFiles, "files"},
                                         {"sources", kMaxSavedSources, "sources of data"},
                                         {"state", kMaxSavedStates, "states of an optimizer"},
                                         {"index", kMaxSavedStates, "states of a parameter"}};

template <class... Args>
absl::Status RefuseMessage(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

absl::StatusOr<SavedState> ParseState(const proto::StateRecord& record) {
  if (record.extent() < 0 || record.extent() > static_cast<int>(SavedExtent::kColumns)) {
    return RefuseMessage("it has a state named ", Quoted(record.name()), " of extent ", record.extent());
  }
  SavedState state{.name = record.name(), .block = record.block(), .extent = static_cast<SavedExtent>(record.extent())};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    state.dtype = dtype;
    if (record.dtype() == ToString(dtype)) return state;
  }
  return RefuseMessage("state ", Quoted(record.name()), " is of type ", Quoted(record.dtype()),
                       "; known are f32, bf16 and u8");
}

absl::StatusOr<SavedValues> ParseValues(absl::string_view name) {
  for (SavedValues values : {SavedValues::kFloat32, SavedValues::kSplit, SavedValues::kBFloat16}) {
    if (name == ToString(values)) return values;
  }
  return RefuseMessage("its values are saved as ", Quoted(name), "; known are FP32, SPLIT and BF16");
}

void AddFiles(const std::vector<SavedFile>& files, proto::CheckpointManifest& m) {
  for (const SavedFile& file : files) {
    proto::FileRecord& record = *m.add_files();
    record.set_name(file.name);
    record.set_size(file.size_bytes);
    record.mutable_chunk_crc32c()->Assign(file.chunk_crcs.begin(), file.chunk_crcs.end());
  }
}

std::vector<SavedFile> FilesOf(const proto::CheckpointManifest& m) {
  std::vector<SavedFile> files;
  for (const proto::FileRecord& record : m.files()) {
    files.push_back({record.name(), record.size(), {record.chunk_crc32c().begin(), record.chunk_crc32c().end()}});
  }
  return files;
}

void AddData(const SavedData& from, proto::DataRecord& data) {
  data.set_samples_per_epoch(from.samples_per_epoch);
  data.set_sequence_length(from.sequence_length);
  data.set_shuffled(from.shuffled);
  data.set_seed(from.seed);
  data.set_tokenizer(from.tokenizer);
  // Readers from before there was such a state refuse this field.
  if (!from.source_state.empty()) data.set_source_state(from.source_state);
  if (from.begin != 0) data.set_begin(from.begin);  // The same holds here.
  for (const SavedSource& source : from.sources) {
    proto::SourceRecord& record = *data.add_sources();
    record.set_path(source.path);
    record.set_tokens(source.tokens);
    record.set_digest(source.digest);
    record.set_documents(source.documents);
  }
}

SavedData DataOf(const proto::DataRecord& record) {
  SavedData data = {.samples_per_epoch = record.samples_per_epoch(),
                    .sequence_length = record.sequence_length(),
                    .shuffled = record.shuffled(),
                    .seed = record.seed(),
                    .tokenizer = record.tokenizer(),
                    .source_state = record.source_state(),
                    .begin = record.begin()};
  for (const proto::SourceRecord& source : record.sources()) {
    data.sources.push_back({source.path(), source.tokens(), source.digest(), source.documents()});
  }
  return data;
}

void AddEvaluations(const SavedEvaluations& from, proto::EvaluationsRecord& record) {
  record.set_data(from.data);
  record.set_last_step(from.last_step);
  if (from.last_loss) record.set_last_loss(*from.last_loss);
  record.set_best_step(from.best_step);
  if (from.best_loss) record.set_best_loss(*from.best_loss);
  record.set_since_best(from.since_best);
}

SavedEvaluations EvaluationsOf(const proto::EvaluationsRecord& record) {
  SavedEvaluations evaluations = {.data = record.data(),
                                  .last_step = record.last_step(),
                                  .best_step = record.best_step(),
                                  .since_best = record.since_best()};
  if (record.has_last_loss()) evaluations.last_loss = record.last_loss();
  if (record.has_best_loss()) evaluations.best_loss = record.best_loss();
  return evaluations;
}

void AddLayout(const Manifest& manifest, proto::LayoutRecord& layout) {
  layout.set_ranks(manifest.ranks);
  layout.set_strategy(manifest.strategy);
  layout.set_accumulation(manifest.accumulation);
  layout.set_values(std::string(ToString(manifest.values)));
  // Only with frozen parameters, which earlier readers refuse.
  if (manifest.frozen_values != SavedValues::kFloat32) {
    layout.set_frozen_values(std::string(ToString(manifest.frozen_values)));
  }
}

void AddStates(const std::vector<SavedState>& from, proto::StatesRecord& states) {
  for (const SavedState& state : from) {
    proto::StateRecord& record = *states.add_state();
    record.set_name(state.name);
    record.set_dtype(std::string(ToString(state.dtype)));
    record.set_block(state.block);
    if (state.extent != SavedExtent::kElements) record.set_extent(static_cast<int>(state.extent));
  }
}

void AddParameter(const SavedParameter& parameter, proto::ParameterRecord& record) {
  record.set_name(parameter.name);
  record.mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
  if (parameter.frozen) record.set_frozen(true);
  if (parameter.nf4) record.set_nf4(true);
  if (parameter.in_base) record.set_in_base(true);
  if (!parameter.states) return;  // Readers from before there were groups of an optimizer refuse this field.
  record.mutable_states()->mutable_index()->Assign(parameter.states->begin(), parameter.states->end());
}

SavedParameter ParameterOf(const proto::ParameterRecord& record) {
  SavedParameter parameter = {
      record.name(), {record.shape().begin(), record.shape().end()}, record.frozen(), record.nf4(), record.in_base()};
  if (record.has_states()) parameter.states.emplace(record.states().index().begin(), record.states().index().end());
  return parameter;
}

}  // namespace

std::string SerializeFiles(const std::vector<SavedFile>& files) {
  proto::CheckpointManifest m;
  AddFiles(files, m);
  return m.SerializeAsString();
}

absl::StatusOr<std::vector<SavedFile>> ParseFiles(absl::string_view bytes) {
  proto::CheckpointManifest m;
  if (!m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("records of saved files are malformed");
  }
  return FilesOf(m);
}

std::string SerializeManifest(const Manifest& manifest) {
  proto::CheckpointManifest m;
  m.set_step(manifest.step);
  m.set_tokens(manifest.tokens);
  m.set_samples(manifest.samples);
  m.set_update_count(manifest.update_count);
  m.set_previous_norm(manifest.previous_norm);
  if (manifest.loss_scale != SavedLossScale()) {
    proto::LossScaleRecord& scale = *m.mutable_loss_scale();
    scale.set_factor(manifest.loss_scale.factor);
    scale.set_good_steps(manifest.loss_scale.good_steps);
    scale.set_skips(manifest.loss_scale.skips);
  }
  m.set_seed(manifest.seed);
  m.set_job(manifest.job);
  m.set_job_crc32c(manifest.job_crc());
  AddData(manifest.data, *m.mutable_data());
  AddLayout(manifest, *m.mutable_layout());
  // Name the states only if they are not AdamW's: readers from before there were other optimizers expect AdamW's, and
  // refuse this field.
  if (manifest.states != AdamWStates()) AddStates(manifest.states, *m.mutable_states());
  for (const SavedParameter& parameter : manifest.parameters) AddParameter(parameter, *m.add_parameters());
  if (manifest.base) {
    m.mutable_base()->set_folder(manifest.base->folder);
    m.mutable_base()->set_digest(manifest.base->digest);
  }
  AddFiles(manifest.files, m);
  // Only of runs that follow their evaluations: readers from before there were any refuse this field.
  if (manifest.evaluations.last_step >= 0) AddEvaluations(manifest.evaluations, *m.mutable_evaluations());
  return Frame(kManifestMagic, kManifestVersion, m.SerializeAsString());
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes) {
  SHALE_ASSIGN_OR_RETURN(const absl::string_view message,
                         Unframe(kManifestMagic, kManifestVersion, bytes, kMaxManifestBytes));
  if (message.size() + kFrameHeadBytes != bytes.size()) {
    return RefuseMessage(bytes.size() - message.size() - kFrameHeadBytes, " bytes follow its end");
  }
  proto::CheckpointManifest m;
  if (const absl::Status status = CheckWire(*m.descriptor(), message, kManifestLimits); !status.ok()) {
    return RefuseMessage("its message ", status.message());
  }
  if (!m.ParseFromArray(message.data(), static_cast<int>(message.size())))
    return RefuseMessage("its message is malformed");
  Manifest manifest;
  manifest.step = m.step();
  manifest.tokens = m.tokens();
  manifest.samples = m.samples();
  manifest.update_count = m.update_count();
  manifest.previous_norm = m.previous_norm();
  manifest.loss_scale = {m.loss_scale().factor(), m.loss_scale().good_steps(), m.loss_scale().skips()};
  manifest.seed = m.seed();
  manifest.job = m.job();
  if (manifest.job_crc() != m.job_crc32c()) return RefuseMessage("its job and the job's digest do not match");
  manifest.data = DataOf(m.data());
  manifest.ranks = m.layout().ranks();
  manifest.strategy = m.layout().strategy();
  manifest.accumulation = m.layout().accumulation();
  SHALE_ASSIGN_OR_RETURN(manifest.values, ParseValues(m.layout().values()));
  if (!m.layout().frozen_values().empty()) {
    SHALE_ASSIGN_OR_RETURN(manifest.frozen_values, ParseValues(m.layout().frozen_values()));
  }
  if (m.has_states()) {
    manifest.states.clear();
    for (const proto::StateRecord& record : m.states().state()) {
      SHALE_ASSIGN_OR_RETURN(SavedState state, ParseState(record));
      manifest.states.push_back(std::move(state));
    }
  }
  for (const proto::ParameterRecord& record : m.parameters()) manifest.parameters.push_back(ParameterOf(record));
  if (m.has_base()) manifest.base = {.folder = m.base().folder(), .digest = m.base().digest()};
  manifest.files = FilesOf(m);
  if (m.has_evaluations()) manifest.evaluations = EvaluationsOf(m.evaluations());
  SHALE_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace shale

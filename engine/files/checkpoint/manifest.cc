#include "engine/files/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/io/checksums.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "kernels/nf4.h"
#include "proto/checkpoint.pb.h"

namespace shale {
namespace {

constexpr char kManifestMagic[] = "SHALEMAN";
constexpr uint32_t kManifestVersion = 1;
constexpr int kMaxDimensions = 64;
// The largest accepted count of steps, tokens or samples. No run reaches it, and a run that resumes from it can add to
// it without overflow.
constexpr int64_t kMaxCount = int64_t{1} << 60;

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
absl::Status RefuseManifest(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

// Returns whether a name is fit for messages, tables and other formats.
bool IsName(absl::string_view name) {
  constexpr size_t kMaxBytes = 1000;
  return !name.empty() && name.size() <= kMaxBytes && IsUtf8(name) &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

absl::Status CheckParameter(const SavedParameter& parameter) {
  if (!IsName(parameter.name)) {
    return RefuseManifest("a parameter is named ", Quoted(parameter.name),
                          "; a name has 1 to 1,000 printable bytes of UTF-8");
  }
  // The size in bytes of the widest part must fit int64_t too.
  int64_t room = std::numeric_limits<int64_t>::max() / 8;
  for (int64_t dimension : parameter.shape) {
    if (dimension < 1 || dimension > room) {
      return RefuseManifest("parameter ", parameter.name, " has a dimension of ", dimension, ", or too many elements");
    }
    room /= dimension;
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedState> ParseState(const proto::StateRecord& record) {
  constexpr int64_t kMaxBlock = int64_t{1} << 30;
  if (!IsName(record.name()) || record.block() < 1 || record.block() > kMaxBlock) {
    return RefuseManifest("it has a state named ", Quoted(record.name()), " with blocks of ", record.block(),
                          " elements");
  }
  if (record.extent() < 0 || record.extent() > static_cast<int>(SavedExtent::kColumns) ||
      (record.extent() != 0 && record.block() != 1)) {
    return RefuseManifest("it has a state named ", Quoted(record.name()), " of extent ", record.extent());
  }
  SavedState state{.name = record.name(), .block = record.block(), .extent = static_cast<SavedExtent>(record.extent())};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    state.dtype = dtype;
    if (record.dtype() == ToString(dtype)) return state;
  }
  return RefuseManifest("state ", Quoted(record.name()), " is of type ", Quoted(record.dtype()),
                        "; known are f32, bf16 and u8");
}

absl::StatusOr<SavedValues> ParseValues(absl::string_view name) {
  for (SavedValues values : {SavedValues::kFloat32, SavedValues::kSplit, SavedValues::kBFloat16}) {
    if (name == ToString(values)) return values;
  }
  return RefuseManifest("its values are saved as ", Quoted(name), "; known are FP32, SPLIT and BF16");
}

absl::Status CheckFile(const SavedFile& file, int64_t rank, int64_t ranks) {
  if (const std::string expected = ShardFileName(rank, ranks); file.name != expected) {
    return RefuseManifest("file ", rank, " is named ", Quoted(file.name), "; expected ", expected);
  }
  if (file.size_bytes < 1) return RefuseManifest(file.name, " has a size of ", file.size_bytes);
  const int64_t chunks = (file.size_bytes - 1) / kCheckpointChunkBytes + 1;
  if (static_cast<int64_t>(file.chunk_crcs.size()) != chunks) {
    return RefuseManifest(file.name, " has ", file.chunk_crcs.size(), " checksums; its ", file.size_bytes,
                          " bytes have ", chunks, " chunks");
  }
  return absl::OkStatus();
}

absl::Status CheckEvaluations(const SavedEvaluations& e, int64_t step) {
  if (e.last_step < -1 || e.last_step > step || e.best_step < 0 || e.best_step > std::max<int64_t>(e.last_step, 0) ||
      e.since_best < 0 || e.since_best > kMaxCount) {
    return RefuseManifest("its last evaluation was after step ", e.last_step, ", the best after step ", e.best_step,
                          ", with ", e.since_best, " evaluations since then, which contradicts its step ", step);
  }
  for (const std::optional<double>& loss : {e.last_loss, e.best_loss}) {
    if (loss && !std::isfinite(*loss)) return RefuseManifest("its loss of an evaluation is ", *loss);
  }
  return absl::OkStatus();
}

absl::Status CheckBase(const Manifest& m) {
  constexpr size_t kMaxPathBytes = 4096;
  const std::string& folder = m.base->folder;
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); };
  if (folder.empty() || folder.size() > kMaxPathBytes || std::any_of(folder.begin(), folder.end(), is_control)) {
    return RefuseManifest("its base is in the folder ", Quoted(folder), "; a path has 1 to 4,096 printable bytes");
  }
  if (std::none_of(m.parameters.begin(), m.parameters.end(), [](const SavedParameter& p) { return p.in_base; })) {
    return RefuseManifest("it has a base, and no parameter is left to it");
  }
  return absl::OkStatus();
}

// Checks that the states of a parameter, which are those in `states` with these numbers, have different names.
absl::Status CheckStates(const std::string& parameter, absl::Span<const int64_t> numbers,
                         absl::Span<const SavedState> states) {
  absl::flat_hash_set<absl::string_view> names;
  int64_t last = -1;
  for (const int64_t state : numbers) {
    if (state <= last || state >= std::ssize(states)) {
      return RefuseManifest(parameter, " has state ", state, " after state ", last, " of ", states.size());
    }
    if (!names.insert(states[state].name).second) {
      return RefuseManifest("state ", Quoted(states[state].name), " of ", parameter, " is in it twice");
    }
    last = state;
  }
  return absl::OkStatus();
}

absl::Status CheckStates(const Manifest& m) {
  std::vector<int64_t> all(m.states.size());
  std::iota(all.begin(), all.end(), 0);
  bool checks_all = true;  // Most parameters of a run have all states, which are checked once.
  for (const SavedParameter& parameter : m.parameters) {
    if (!parameter.states && (parameter.frozen || !std::exchange(checks_all, false))) continue;
    SHALE_RETURN_IF_ERROR(CheckStates(absl::StrCat("parameter ", parameter.name),
                                      parameter.states ? absl::MakeConstSpan(*parameter.states) : all, m.states));
  }
  return absl::OkStatus();
}

absl::Status Check(const Manifest& m) {
  if (m.step < 0 || m.tokens < 0 || m.samples < 0 || m.update_count < 0 || m.update_count > m.step) {
    return RefuseManifest("step ", m.step, ", tokens ", m.tokens, ", samples ", m.samples, " and updates ",
                          m.update_count, " contradict each other or are negative");
  }
  for (const auto& [what, count] : {std::pair<const char*, int64_t>{"step", m.step},
                                    {"number of tokens", m.tokens},
                                    {"number of samples", m.samples},
                                    {"samples per epoch", m.data.samples_per_epoch},
                                    {"sequence length", m.data.sequence_length}}) {
    if (count > kMaxCount) return RefuseManifest("its ", what, ", ", count, ", is above 2^60, which no run reaches");
  }
  if (!std::isfinite(m.previous_norm) || m.previous_norm < 0) {
    return RefuseManifest("its norm of a gradient is ", m.previous_norm);
  }
  const SavedLossScale& scale = m.loss_scale;
  if (!std::isfinite(scale.factor) || scale.factor < 0 || scale.good_steps < 0 || scale.good_steps > kMaxCount ||
      scale.skips < 0 || scale.skips > kMaxCount) {
    return RefuseManifest("its loss scale is ", scale.factor, " after ", scale.good_steps, " updates and ", scale.skips,
                          " skipped steps");
  }
  SHALE_RETURN_IF_ERROR(CheckEvaluations(m.evaluations, m.step));
  if (m.data.samples_per_epoch < 1 || m.data.sequence_length < 1) {
    return RefuseManifest("its data has ", m.data.samples_per_epoch, " samples of ", m.data.sequence_length, " tokens");
  }
  for (const SavedSource& source : m.data.sources) {
    if (source.tokens < 0 || source.tokens > kMaxCount) {
      return RefuseManifest("a source of its data has ", source.tokens, " tokens");
    }
  }
  if (m.data.begin < 0 || m.data.begin > m.samples) {
    return RefuseManifest("its data begins after ", m.data.begin, " of ", m.samples, " samples");
  }
  if (m.ranks < 1 || m.ranks != static_cast<int64_t>(m.files.size())) {
    return RefuseManifest("it has ", m.files.size(), " files for ", m.ranks, " ranks");
  }
  if (m.parameters.empty()) return RefuseManifest("it has no parameters");
  if (m.frozen_values == SavedValues::kSplit)
    return RefuseManifest("its frozen values are saved as SPLIT, which is for masters");
  absl::flat_hash_set<absl::string_view> names;
  for (const SavedParameter& parameter : m.parameters) {
    SHALE_RETURN_IF_ERROR(CheckParameter(parameter));
    if (parameter.nf4 && !parameter.frozen) {
      return RefuseManifest("parameter ", parameter.name, " trains, and its values are saved in 4 bits");
    }
    if (parameter.in_base && (!parameter.frozen || !m.base)) {
      return RefuseManifest("parameter ", parameter.name, " is left to the base, ",
                            m.base ? "and trains" : "and there is none");
    }
    if (!names.insert(parameter.name).second) return RefuseManifest("parameter ", parameter.name, " is in it twice");
  }
  if (m.base) SHALE_RETURN_IF_ERROR(CheckBase(m));
  if (std::ssize(m.states) > kMaxSavedStates)
    return RefuseManifest("it has ", m.states.size(), " states of an optimizer");
  SHALE_RETURN_IF_ERROR(CheckStates(m));
  for (int64_t rank = 0; rank < m.ranks; ++rank) SHALE_RETURN_IF_ERROR(CheckFile(m.files[rank], rank, m.ranks));
  return absl::OkStatus();
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

bool Convertible(const SavedState& a, const SavedState& b) {
  const auto is_float = [](DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; };
  return a.name == b.name && a.block == b.block && a.extent == b.extent &&
         (a.dtype == b.dtype || (is_float(a.dtype) && is_float(b.dtype)));
}

int64_t BytesPerElement(SavedPart part, absl::Span<const SavedState> states) {
  switch (part) {
    case SavedPart::kValue: return 4;
    case SavedPart::kHigh:
    case SavedPart::kLow: return 2;
    case SavedPart::kNf4Codes:
    case SavedPart::kNf4Absmax: return 1;
    case SavedPart::kNf4Scales:
    case SavedPart::kNf4Means: return 4;
    default: break;
  }
  const int64_t state = StateOf(part);
  return state >= 0 && state < std::ssize(states) ? SizeOf(states[state].dtype) : 0;
}

std::string NameOf(SavedPart part, absl::Span<const SavedState> states) {
  switch (part) {
    case SavedPart::kValue: return "value";
    case SavedPart::kHigh: return "high bits";
    case SavedPart::kLow: return "low bits";
    case SavedPart::kNf4Codes: return "NF4 codes";
    case SavedPart::kNf4Absmax: return "NF4 absmax";
    case SavedPart::kNf4Scales: return "NF4 scales";
    case SavedPart::kNf4Means: return "NF4 means";
    default: return states[StateOf(part)].name;
  }
}

std::vector<SavedState> AdamWStates() { return {{.name = "m"}, {.name = "v"}}; }

absl::string_view ToString(SavedValues values) {
  switch (values) {
    case SavedValues::kFloat32: return "FP32";
    case SavedValues::kSplit: return "SPLIT";
    case SavedValues::kBFloat16: return "BF16";
    case SavedValues::kNf4: return "NF4";
  }
  return "?";
}

int64_t BlockOf(SavedPart part, absl::Span<const SavedState> states) {
  switch (part) {
    case SavedPart::kNf4Codes: return 2;
    case SavedPart::kNf4Absmax: return kNf4BlockWeights;
    case SavedPart::kNf4Scales:
    case SavedPart::kNf4Means: return kNf4GroupWeights;
    default: return StateOf(part) < 0 ? 1 : states[StateOf(part)].block;
  }
}

std::vector<PartSpec> PartsOf(SavedValues values, SavedValues frozen_values, absl::Span<const SavedState> states,
                              bool nf4) {
  std::vector<PartSpec> parts;
  for (size_t i = 0; i < states.size(); ++i) {
    parts.push_back({StatePart(static_cast<int64_t>(i)), states[i].name, states[i].dtype, states[i].block});
  }
  const bool whole = values == SavedValues::kFloat32, frozen_whole = frozen_values == SavedValues::kFloat32;
  if (whole || frozen_whole) parts.push_back({SavedPart::kValue, NameOf(SavedPart::kValue, states), DType::kFloat32});
  if (!whole || !frozen_whole) parts.push_back({SavedPart::kHigh, NameOf(SavedPart::kHigh, states), DType::kBFloat16});
  if (values == SavedValues::kSplit) {
    parts.push_back({SavedPart::kLow, NameOf(SavedPart::kLow, states), DType::kInt16});
  }
  const auto add = [&](SavedPart part, DType dtype) {
    if (nf4) parts.push_back({part, NameOf(part, states), dtype, BlockOf(part, states)});
  };
  add(SavedPart::kNf4Scales, DType::kFloat32);
  add(SavedPart::kNf4Means, DType::kFloat32);
  add(SavedPart::kNf4Codes, DType::kUInt8);
  add(SavedPart::kNf4Absmax, DType::kUInt8);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PartSpec& a, const PartSpec& b) { return a.element_bytes() > b.element_bytes(); });
  return parts;
}

int64_t SavedParameter::elements() const {
  int64_t elements = 1;
  for (int64_t dimension : shape) elements *= dimension;
  return elements;
}

std::vector<PartSpec> Manifest::parts() const {
  const auto any = [&](auto has) { return std::any_of(parameters.begin(), parameters.end(), has); };
  return PartsOf(values, any([](auto& p) { return p.frozen && !p.nf4 && !p.in_base; }) ? frozen_values : values, states,
                 any([](auto& p) { return p.nf4 && !p.in_base; }));
}

int64_t Manifest::ElementsOf(SavedPart part, const SavedParameter& parameter) const {
  const int64_t elements = parameter.elements(), columns = parameter.shape.empty() ? 1 : parameter.shape.back();
  const int64_t state = StateOf(part);
  switch (state < 0 ? SavedExtent::kElements : states[state].extent) {
    case SavedExtent::kRows: return elements / columns;
    case SavedExtent::kColumns: return columns;
    case SavedExtent::kElements: break;
  }
  return CeilDivide(elements, BlockOf(part, states));
}

bool Manifest::Has(SavedPart part, const SavedParameter& parameter) const {
  if (parameter.in_base) return false;
  const SavedValues form = ValuesOf(parameter);
  if (IsNf4(part)) return form == SavedValues::kNf4;
  switch (part) {
    case SavedPart::kValue: return form == SavedValues::kFloat32;
    case SavedPart::kHigh: return form == SavedValues::kSplit || form == SavedValues::kBFloat16;
    case SavedPart::kLow: return form == SavedValues::kSplit;
    default: break;
  }
  const int64_t state = StateOf(part);
  if (parameter.frozen || state < 0 || state >= std::ssize(states)) return false;
  return !parameter.states || std::binary_search(parameter.states->begin(), parameter.states->end(), state);
}

std::vector<SavedState> Manifest::StatesOf(const SavedParameter& parameter) const {
  std::vector<SavedState> of_parameter;
  for (int64_t state = 0; state < std::ssize(states); ++state) {
    if (Has(StatePart(state), parameter)) of_parameter.push_back(states[state]);
  }
  return of_parameter;
}

uint32_t Manifest::job_crc() const { return Crc32c(job); }

std::string ShardFileName(int64_t rank, int64_t ranks) {
  return absl::StrFormat("rank-%05d-of-%05d.shard", rank, ranks);
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
  proto::LayoutRecord& layout = *m.mutable_layout();
  layout.set_ranks(manifest.ranks);
  layout.set_strategy(manifest.strategy);
  layout.set_accumulation(manifest.accumulation);
  layout.set_values(std::string(ToString(manifest.values)));
  // Only with frozen parameters, which earlier readers refuse.
  if (manifest.frozen_values != SavedValues::kFloat32) {
    layout.set_frozen_values(std::string(ToString(manifest.frozen_values)));
  }
  // Name the states only if they are not AdamW's: readers from before there were other optimizers expect AdamW's, and
  // refuse this field.
  if (manifest.states != AdamWStates()) {
    proto::StatesRecord& states = *m.mutable_states();
    for (const SavedState& state : manifest.states) {
      proto::StateRecord& record = *states.add_state();
      record.set_name(state.name);
      record.set_dtype(std::string(ToString(state.dtype)));
      record.set_block(state.block);
      if (state.extent != SavedExtent::kElements) record.set_extent(static_cast<int>(state.extent));
    }
  }
  for (const SavedParameter& parameter : manifest.parameters) {
    proto::ParameterRecord& record = *m.add_parameters();
    record.set_name(parameter.name);
    record.mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
    if (parameter.frozen) record.set_frozen(true);
    if (parameter.nf4) record.set_nf4(true);
    if (parameter.in_base) record.set_in_base(true);
    if (!parameter.states) continue;  // Readers from before there were groups of an optimizer refuse this field.
    record.mutable_states()->mutable_index()->Assign(parameter.states->begin(), parameter.states->end());
  }
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
    return RefuseManifest(bytes.size() - message.size() - kFrameHeadBytes, " bytes follow its end");
  }
  proto::CheckpointManifest m;
  if (const absl::Status status = CheckWire(*m.descriptor(), message, kManifestLimits); !status.ok()) {
    return RefuseManifest("its message ", status.message());
  }
  if (!m.ParseFromArray(message.data(), static_cast<int>(message.size())))
    return RefuseManifest("its message is malformed");
  Manifest manifest;
  manifest.step = m.step();
  manifest.tokens = m.tokens();
  manifest.samples = m.samples();
  manifest.update_count = m.update_count();
  manifest.previous_norm = m.previous_norm();
  manifest.loss_scale = {m.loss_scale().factor(), m.loss_scale().good_steps(), m.loss_scale().skips()};
  manifest.seed = m.seed();
  manifest.job = m.job();
  if (manifest.job_crc() != m.job_crc32c()) return RefuseManifest("its job and the job's digest do not match");
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
  for (const proto::ParameterRecord& record : m.parameters()) {
    manifest.parameters.push_back({record.name(),
                                   {record.shape().begin(), record.shape().end()},
                                   record.frozen(),
                                   record.nf4(),
                                   record.in_base()});
    if (!record.has_states()) continue;
    manifest.parameters.back().states.emplace(record.states().index().begin(), record.states().index().end());
  }
  if (m.has_base()) manifest.base = {.folder = m.base().folder(), .digest = m.base().digest()};
  manifest.files = FilesOf(m);
  if (m.has_evaluations()) manifest.evaluations = EvaluationsOf(m.evaluations());
  SHALE_RETURN_IF_ERROR(Check(manifest));
  return manifest;
}

}  // namespace shale

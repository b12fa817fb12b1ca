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
#include "engine/files/io/checksums.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

// The largest accepted count of steps, tokens or samples. No run reaches it, and a run that resumes from it can add to
// it without overflow.
constexpr int64_t kMaxCount = int64_t{1} << 60;

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

absl::Status CheckState(const SavedState& state) {
  constexpr int64_t kMaxBlock = int64_t{1} << 30;
  if (!IsName(state.name) || state.block < 1 || state.block > kMaxBlock) {
    return RefuseManifest("it has a state named ", Quoted(state.name), " with blocks of ", state.block, " elements");
  }
  if (state.extent != SavedExtent::kElements && state.block != 1) {
    return RefuseManifest("it has a state named ", Quoted(state.name), " of extent ", static_cast<int>(state.extent));
  }
  return absl::OkStatus();
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
  for (const SavedState& state : m.states) SHALE_RETURN_IF_ERROR(CheckState(state));
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

// Checks how far the run is, and what goes on from there.
absl::Status CheckProgress(const Manifest& m) {
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
  return absl::OkStatus();
}

absl::Status CheckData(const SavedData& data, int64_t samples) {
  if (data.samples_per_epoch < 1 || data.sequence_length < 1) {
    return RefuseManifest("its data has ", data.samples_per_epoch, " samples of ", data.sequence_length, " tokens");
  }
  for (const SavedSource& source : data.sources) {
    if (source.tokens < 0 || source.tokens > kMaxCount) {
      return RefuseManifest("a source of its data has ", source.tokens, " tokens");
    }
  }
  if (data.begin < 0 || data.begin > samples) {
    return RefuseManifest("its data begins after ", data.begin, " of ", samples, " samples");
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(const Manifest& m) {
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
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckManifest(const Manifest& m) {
  SHALE_RETURN_IF_ERROR(CheckProgress(m));
  SHALE_RETURN_IF_ERROR(CheckEvaluations(m.evaluations, m.step));
  SHALE_RETURN_IF_ERROR(CheckData(m.data, m.samples));
  if (m.ranks < 1 || m.ranks != static_cast<int64_t>(m.files.size())) {
    return RefuseManifest("it has ", m.files.size(), " files for ", m.ranks, " ranks");
  }
  if (m.parameters.empty()) return RefuseManifest("it has no parameters");
  if (m.frozen_values == SavedValues::kSplit)
    return RefuseManifest("its frozen values are saved as SPLIT, which is for masters");
  SHALE_RETURN_IF_ERROR(CheckParameters(m));
  if (m.base) SHALE_RETURN_IF_ERROR(CheckBase(m));
  if (std::ssize(m.states) > kMaxSavedStates)
    return RefuseManifest("it has ", m.states.size(), " states of an optimizer");
  SHALE_RETURN_IF_ERROR(CheckStates(m));
  for (int64_t rank = 0; rank < m.ranks; ++rank) SHALE_RETURN_IF_ERROR(CheckFile(m.files[rank], rank, m.ranks));
  return absl::OkStatus();
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

}  // namespace shale

#include "engine/files/checkpoint/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/base_values.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kBatchElements = 1 << 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The longest real path of a field has fewer than 60 bytes.
constexpr size_t kMaxPathBytes = 256;

// Parses a textproto job into values by field path: "sharding.ranks" -> "2". Values of a repeated field are joined by
// ", ". A damaged or hostile manifest may hold any text. Returns InvalidArgument for a job that exceeds a limit, so
// that time and memory stay proportional to its size.
absl::StatusOr<std::map<std::string, std::string>> JobFields(absl::string_view text) {
  if (text.size() > kMaxComparedJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", text.size(), " bytes; at most ", kMaxComparedJobBytes, " are compared"));
  }
  std::map<std::string, std::string> fields;
  std::string path;                // The path of the message that is open, with a dot at its end.
  std::vector<size_t> path_sizes;  // The sizes of the paths of the messages around it.
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (absl::ConsumeSuffix(&line, "{")) {
      path_sizes.push_back(path.size());
      absl::StrAppend(&path, absl::StripAsciiWhitespace(line), ".");
      if (path_sizes.size() > kMaxComparedJobDepth) {
        return absl::InvalidArgumentError(
            absl::StrCat("a job with messages nested deeper than ", kMaxComparedJobDepth));
      }
    } else if (line == "}") {
      if (path_sizes.empty()) continue;
      path.resize(path_sizes.back());
      path_sizes.pop_back();
    } else if (!line.empty()) {
      const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(": ", 1));
      std::string& value = fields[absl::StrCat(path, field.first)];
      absl::StrAppend(&value, value.empty() ? "" : ", ", field.second);
    }
    if (path.size() > kMaxPathBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a job with messages whose names have ", path.size(),
                                                     " bytes; at most ", kMaxPathBytes, " are compared"));
    }
  }
  return fields;
}

void CompareJobs(const Manifest& a, const Manifest& b, std::vector<FieldDifference>& differences) {
  if (a.job == b.job) return;
  absl::StatusOr<std::map<std::string, std::string>> first = JobFields(a.job);
  absl::StatusOr<std::map<std::string, std::string>> second = JobFields(b.job);
  if (!first.ok() || !second.ok()) {
    const auto side = [](const absl::Status& status, const std::string& job) {
      return status.ok() ? absl::StrCat("a job of ", job.size(), " bytes") : std::string(status.message());
    };
    differences.push_back({"job: not compared", side(first.status(), a.job), side(second.status(), b.job)});
    return;
  }
  for (const auto& [field, value] : *first) second->try_emplace(field);
  for (const auto& [field, value] : *second) {
    const auto other = first->find(field);
    const std::string before = other == first->end() ? "" : other->second;
    if (before != value) differences.push_back({absl::StrCat("job: ", field), before, value});
  }
}

template <class T>
std::string Text(const T& value) {
  return absl::StrCat(value);
}
std::string Text(bool value) { return value ? "yes" : "no"; }
std::string Text(SavedValues value) { return std::string(ToString(value)); }

void CompareManifests(const Manifest& a, const Manifest& b, CheckpointDifference& difference) {
  const auto compare = [](std::vector<FieldDifference>& to, const char* field, const auto& x, const auto& y) {
    if (x != y) to.push_back({field, Text(x), Text(y)});
  };
  std::vector<FieldDifference>& state = difference.state;
  compare(state, "step", a.step, b.step);
  compare(state, "updates", a.update_count, b.update_count);
  compare(state, "previous norm", a.previous_norm, b.previous_norm);
  compare(state, "loss scale", a.loss_scale.factor, b.loss_scale.factor);
  compare(state, "updates with this loss scale", a.loss_scale.good_steps, b.loss_scale.good_steps);
  compare(state, "skipped steps in a row", a.loss_scale.skips, b.loss_scale.skips);
  compare(state, "tokens", a.tokens, b.tokens);
  compare(state, "samples", a.samples, b.samples);
  compare(state, "seed", a.seed, b.seed);
  compare(state, "samples of other data", a.data.begin, b.data.begin);
  compare(state, "samples per epoch", a.data.samples_per_epoch, b.data.samples_per_epoch);
  compare(state, "tokens per sample", a.data.sequence_length, b.data.sequence_length);
  compare(state, "shuffled", a.data.shuffled, b.data.shuffled);
  // Without shuffling the seed has no effect.
  if (a.data.shuffled || b.data.shuffled) compare(state, "data seed", a.data.seed, b.data.seed);
  compare(state, "tokenizer", a.data.tokenizer, b.data.tokenizer);
  // The state itself may be any bytes, so it is not shown.
  if (a.data.source_state != b.data.source_state) state.push_back({"state of the data", "some bytes", "others"});
  const auto digest = [](const Manifest& m) { return m.base ? DigestText(m.base->digest) : std::string(); };
  compare(state, "digest of the base", digest(a), digest(b));
  std::vector<FieldDifference>& writing = difference.writing;
  compare(writing, "ranks", a.ranks, b.ranks);
  compare(writing, "strategy", a.strategy, b.strategy);
  compare(writing, "accumulation", a.accumulation, b.accumulation);
  compare(writing, "values", a.values, b.values);
  compare(writing, "frozen values", a.frozen_values, b.frozen_values);
  const auto folder = [](const Manifest& m) { return m.base ? m.base->folder : std::string(); };
  compare(writing, "folder of the base", folder(a), folder(b));
  CompareJobs(a, b, writing);
}

std::string ShapeOf(const SavedParameter& parameter) {
  return absl::StrCat("[", absl::StrJoin(parameter.shape, ", "), "]");
}

std::string NamesOf(const std::vector<SavedState>& states) {
  return absl::StrJoin(states, ", ", [](std::string* out, const SavedState& state) {
    absl::StrAppend(out, state.name, " (", ToString(state.dtype), ")");
  });
}

// Returns whether the same states are there. Their order is that of the job's groups and says nothing about the state.
bool SameStates(const std::vector<SavedState>& a, const std::vector<SavedState>& b) {
  return a.size() == b.size() && std::is_permutation(a.begin(), a.end(), b.begin());
}

// Adds the parameters that both have with the same shape to `difference.parameters`, and the others to
// `difference.state`.
void MatchParameters(const CheckpointReader& a, const CheckpointReader& b, CheckpointDifference& difference) {
  for (const SavedParameter& parameter : a.manifest().parameters) {
    const int other = b.FindParameter(parameter.name);
    if (other < 0) {
      difference.state.push_back({absl::StrCat("parameter ", parameter.name), ShapeOf(parameter), ""});
    } else if (const SavedParameter& theirs = b.manifest().parameters[other]; theirs.shape != parameter.shape) {
      difference.state.push_back({absl::StrCat("parameter ", parameter.name), ShapeOf(parameter), ShapeOf(theirs)});
    } else {
      if (theirs.frozen != parameter.frozen) {
        difference.state.push_back({absl::StrCat("parameter ", parameter.name), parameter.frozen ? "frozen" : "trains",
                                    theirs.frozen ? "frozen" : "trains"});
      } else if (const std::vector<SavedState> x = a.manifest().StatesOf(parameter), y = b.manifest().StatesOf(theirs);
                 (parameter.states || theirs.states) && !SameStates(x, y)) {
        difference.state.push_back({absl::StrCat("states of parameter ", parameter.name), NamesOf(x), NamesOf(y)});
      }
      difference.parameters.push_back({parameter, std::vector<PartDifference>(difference.parts.size())});
    }
  }
  for (const SavedParameter& parameter : b.manifest().parameters) {
    if (a.FindParameter(parameter.name) < 0) {
      difference.state.push_back({absl::StrCat("parameter ", parameter.name), "", ShapeOf(parameter)});
    }
  }
}

// A part that both checkpoints have. Its number may differ between them.
struct CommonPart {
  SavedPart in_a = SavedPart::kValue;
  SavedPart in_b = SavedPart::kValue;
};

// Returns the parts that both have, and sets `difference.parts` to their names. If the optimizers' states differ, adds
// this to `difference.state`.
std::vector<CommonPart> MatchParts(const Manifest& a, const Manifest& b, CheckpointDifference& difference) {
  std::vector<CommonPart> parts = {{}};
  difference.parts = {"value"};
  for (int64_t i = 0; i < std::ssize(a.states); ++i) {
    const auto other = std::find_if(b.states.begin(), b.states.end(),
                                    [&](const SavedState& state) { return Convertible(state, a.states[i]); });
    if (other == b.states.end()) continue;
    parts.push_back({StatePart(i), StatePart(other - b.states.begin())});
    const SavedState& state = a.states[i];
    const bool is_shared = std::count_if(a.states.begin(), a.states.end(),
                                         [&](const SavedState& other) { return other.name == state.name; }) > 1;
    difference.parts.push_back(is_shared ? absl::StrCat(state.name, " (", ToString(state.dtype), ")") : state.name);
  }
  if (!SameStates(a.states, b.states)) {
    difference.state.push_back({"states of the optimizer", NamesOf(a.states), NamesOf(b.states)});
  }
  return parts;
}

double Distance(float a, float b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinity;
  return std::abs(static_cast<double>(a) - static_cast<double>(b));
}

void Compare(absl::Span<const float> a, absl::Span<const float> b, PartDifference& difference) {
  for (absl::Span<const float> values : {a, b}) {
    for (float value : values) {
      if (std::isfinite(value)) difference.magnitude = std::max<double>(difference.magnitude, std::abs(value));
    }
  }
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++difference.different;
    difference.largest = std::max(difference.largest, Distance(a[i], b[i]));
  }
}

}  // namespace

double PartDifference::relative() const {
  if (largest == 0) return 0;
  return magnitude > 0 ? largest / magnitude : kInfinity;
}

bool CheckpointDifference::Equal(double tolerance) const {
  return state.empty() && std::all_of(parameters.begin(), parameters.end(), [&](const ParameterDifference& parameter) {
           return std::all_of(parameter.parts.begin(), parameter.parts.end(), [&](const PartDifference& part) {
             return tolerance > 0 ? part.relative() <= tolerance : part.different == 0;
           });
         });
}

absl::StatusOr<CheckpointDifference> CompareCheckpoints(const CheckpointReader& a, const CheckpointReader& b) {
  CheckpointDifference difference;
  CompareManifests(a.manifest(), b.manifest(), difference);
  const std::vector<CommonPart> parts = MatchParts(a.manifest(), b.manifest(), difference);
  MatchParameters(a, b, difference);
  CheckpointValues first(a), second(b);
  std::vector<float> batch(2 * kBatchElements);
  // Go part by part, because the files are laid out this way, so that each chunk is read about once.
  for (size_t part = 0; part < parts.size(); ++part) {
    for (ParameterDifference& parameter : difference.parameters) {
      const SavedParameter& theirs = b.manifest().parameters[b.FindParameter(parameter.parameter.name)];
      // Only one of the two may have states of a parameter that is frozen in the other. Of bases, digests are compared.
      const bool in_base = parameter.parameter.in_base || theirs.in_base;
      const int64_t elements = in_base ? 0
                                       : std::min(a.ElementsOf(parts[part].in_a, parameter.parameter),
                                                  b.ElementsOf(parts[part].in_b, theirs));
      parameter.parts[part].elements = elements;
      for (int64_t begin = 0; begin < elements; begin += kBatchElements) {
        const int64_t count = std::min(kBatchElements, elements - begin);
        const auto x = absl::MakeSpan(batch.data(), count), y = absl::MakeSpan(batch.data() + count, count);
        SHALE_RETURN_IF_ERROR(first.Read(parts[part].in_a, parameter.parameter.name, begin, x));
        SHALE_RETURN_IF_ERROR(second.Read(parts[part].in_b, parameter.parameter.name, begin, y));
        Compare(x, y, parameter.parts[part]);
      }
    }
  }
  return difference;
}

absl::StatusOr<PartStatistics> StatisticsOf(CheckpointValues& values, SavedPart part, const SavedParameter& parameter) {
  PartStatistics statistics;
  double minimum = kInfinity, maximum = -kInfinity, sum = 0, squares = 0;
  const int64_t elements = values.reader().ElementsOf(part, parameter);
  std::vector<float> batch(std::min(kBatchElements, elements));
  for (int64_t begin = 0; begin < elements; begin += kBatchElements) {
    const auto read = absl::MakeSpan(batch).subspan(0, std::min(kBatchElements, elements - begin));
    SHALE_RETURN_IF_ERROR(values.Read(part, parameter.name, begin, read));
    for (const double value : read) {
      if (!std::isfinite(value)) {
        ++statistics.non_finite;
        continue;
      }
      minimum = std::min(minimum, value);
      maximum = std::max(maximum, value);
      sum += value;
      squares += value * value;
    }
  }
  if (const auto finite = static_cast<double>(elements - statistics.non_finite); finite > 0) {
    statistics.minimum = minimum;
    statistics.maximum = maximum;
    statistics.mean = sum / finite;
    statistics.rms = std::sqrt(squares / finite);
  }
  return statistics;
}

}  // namespace shale

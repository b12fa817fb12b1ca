// The rules of where samples come from, and of how they fill sequences.
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/strings/messages.h"

namespace shale {
namespace {

// Checks the settings of data that the program gives. Whether it gives any is known when the job runs.
void CheckOwnData(const DataConfig& data, SpecErrors& errors) {
  if (data.packing == Packing::kPad) {
    errors.AddRule({"data.packing", "data.path"},
                   "only files of data.path are padded here; a program pads its own data by targets that do not count "
                   "(kMaskedTarget), with packing CUT");
  }
}

void CheckPacking(const Job& job, SpecErrors& errors) {
  const DataConfig& data = job.data;
  const std::pair<const char*, int64_t> tokens[] = {{"data.document_end_token", data.document_end_token},
                                                    {"data.document_begin_token", data.document_begin_token}};
  for (const auto& [path, token] : tokens) {
    const int64_t vocabulary = Vocabulary(job.model);
    if (vocabulary > 0 && token >= vocabulary && data.packing != Packing::kCut) {
      errors.AddRule({path, absl::StrCat("model.", KindName(job.model), ".vocabulary")},
                     absl::StrCat("token ", token, " does not fit a vocabulary of ", vocabulary,
                                  "; give a smaller token, or a larger vocabulary"));
    }
  }
  if (data.document_end_token >= 0 && data.document_begin_token >= 0) {
    errors.AddRule({"data.document_begin_token", "data.document_end_token"},
                   "documents are told apart by one token, which ends or begins them; keep one");
  }
  if (data.packing != Packing::kCut && LastTargetOnly(job.model)) {
    errors.AddRule({"data.packing"},
                   "only the last position of a sequence has a target in this model, so documents within a sequence "
                   "mean nothing to it; use packing CUT");
  }
}

void CheckMix(const Job& job, SpecErrors& errors) {
  int64_t sum = 0;
  for (size_t i = 0; i < job.data.mix.size(); ++i) {
    const MixedData& mixed = job.data.mix[i];
    sum += mixed.share;
    if (mixed.share > 0 && mixed.share < kMixWindow && !mixed.path.empty()) continue;
    errors.Add(
        absl::StrCat("data.mix[", i, "]"),
        absl::StrCat("found ", Quoted(mixed.path), "; expected a number of 1,000 samples, 1 to 999, a space and ",
                     "the path that they are of, as in \"250 code.jsonl\""));
  }
  if (sum >= kMixWindow) {
    errors.AddRule({"data.mix[0]"}, absl::StrCat("the numbers of all sources sum to ", sum,
                                                 " of 1,000 samples; leave at least 1 to data.path"));
  }
  if (!job.data.mix.empty() && job.lr_schedule.epochs > 0) {
    errors.AddRule({"lr_schedule.epochs", "data.mix[0]"},
                   "each source of a mixture has epochs of its own, so a run has none; give lr_schedule.steps");
  }
}

void CheckEvaluationSources(const DataConfig& data, SpecErrors& errors) {
  std::set<std::string> names;
  if (data.evaluation_fraction > 0) names.insert(kHeldOutSource);
  for (size_t i = 0; i < data.evaluation_sources.size(); ++i) {
    const EvaluationSource& source = data.evaluation_sources[i];
    const std::string field = absl::StrCat("data.evaluation_sources[", i, "]");
    if (source.name.empty()) {
      errors.Add(field, absl::StrCat("found ", Quoted(source.path),
                                     "; expected a name of up to 64 letters, digits, '.', '_' and '-', a space and "
                                     "the path that it names, as in \"code code_test.jsonl\""));
    } else if (!names.insert(source.name).second) {
      errors.Add(field, absl::StrCat("the name ", Quoted(source.name), " is taken",
                                     source.name == kHeldOutSource ? " (by what evaluation_fraction holds out)" : "",
                                     "; give each source a name of its own"));
    }
  }
  if (!data.evaluation_sources.empty() && !data.evaluation_path.empty()) {
    errors.AddRule({"data.evaluation_sources[0]", "data.evaluation_path"},
                   "evaluation_sources and evaluation_path are both given; name the data of evaluation_path too, as "
                   "one of evaluation_sources");
  }
}

void CheckDate(const DataConfig& data, SpecErrors& errors) {
  absl::CivilDay day;
  if (data.date.empty() || (absl::ParseCivilTime(data.date, &day) && absl::FormatCivilTime(day) == data.date)) return;
  errors.AddRule({"data.date"}, absl::StrCat("found ", Quoted(data.date), "; expected a day, as in \"2026-11-28\""));
}

}  // namespace

void CheckDataRules(const Job& job, SpecErrors* all_errors) {
  SpecErrors& errors = *all_errors;
  const DataConfig& data = job.data;
  CheckDate(data, errors);
  if (!data.path.empty() && data.target_weights != TargetWeights::kNone) {
    errors.AddRule({"data.target_weights", "data.path"},
                   "the files of path have no weights; leave target_weights out, or leave path out and let the program "
                   "give the data to the trainer");
  }
  CheckPacking(job, errors);
  if (data.path.empty()) return CheckOwnData(data, errors);
  CheckMix(job, errors);
  if (data.format == DataFormat::kJsonLines && !data.has_tokenizer()) {
    errors.AddRule({"data.format", "data.tokenizer"},
                   "JSONL needs a tokenizer; give the folder of a tokenizer.json (tokenize --train makes one)");
  }
  if (data.bad_bytes == BadBytes::kReplace && !data.has_tokenizer()) {
    errors.AddRule({"data.bad_bytes", "data.tokenizer"},
                   "without a tokenizer the tokens are the bytes of the files, in which nothing is replaced; give the "
                   "folder of a tokenizer.json, or convert the files");
  }
  if (!data.evaluation_path.empty() && data.evaluation_fraction > 0) {
    errors.AddRule({"data.evaluation_fraction", "data.evaluation_path"},
                   "evaluation_path and evaluation_fraction are both given; keep one");
  }
  CheckEvaluationSources(data, errors);
  if (job.telemetry.evaluate_every > 0 && !data.has_evaluation()) {
    errors.AddRule({"telemetry.evaluate_every", "data.evaluation_fraction", "data.evaluation_path"},
                   "there is no evaluation data; give data.evaluation_path, data.evaluation_fraction or "
                   "data.evaluation_sources");
  }
}

}  // namespace shale

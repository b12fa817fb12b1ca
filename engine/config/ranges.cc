#include "engine/config/ranges.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/config/model_spec.h"
#include "engine/config/names.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "google/protobuf/unknown_field_set.h"
#include "kernels/check.h"

namespace shale {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int64_t kMaxSequences = int64_t{1} << 40;
constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr int64_t kMaxToken = std::numeric_limits<int32_t>::max();

// The ranges of all integer fields except those of models, which RangesOf (engine/config/model_spec.h) returns.
constexpr IntRange kJobIntRanges[] = {
    {"batch.global_batch", 1, kMaxSequences, kRequired},
    {"batch.micro_batch", 1, 1 << 20},
    {"batch.sequence_length", 1, kMaxTokens, kRequired},
    {"data.document_end_token", 0, kMaxToken},
    {"data.document_begin_token", 0, kMaxToken},
    {"sharding.ranks", 1, 1 << 20},
    {"sharding.shard_ranks", 1, 1 << 20},
    {"sharding.prefetch", 0, kMaxLayers},
    {"activation_checkpointing.every_nth", 1, kMaxLayers},
    {"activation_checkpointing.first_layers", 0, kMaxLayers},
    {"activation_checkpointing.last_layers", 0, kMaxLayers},
    {"activation_checkpointing.segment_blocks", 1, kMaxLayers},
    {"memory.budget_bytes", 0, int64_t{1} << 60},
    {"memory.host_budget_bytes", 0, int64_t{1} << 60},
    {"memory.loss_chunk_tokens", 0, kMaxTokens},
    {"optimizer.base_batch", 1, kMaxSequences},
    {"lr_schedule.steps", 1, kMaxSteps},
    {"lr_schedule.warmup_steps", 0, kMaxSteps},
    {"lr_schedule.warmup_samples", 0, int64_t{1} << 60},
    {"lr_schedule.warmup_tokens", 0, int64_t{1} << 60},
    {"checkpoint.every_steps", 0, kMaxSteps},
    {"checkpoint.keep_last", 1, kMaxSteps},
    {"checkpoint.keep_every", 0, kMaxSteps},
    {"checkpoint.patience", 0, kMaxSteps},
    {"telemetry.print_every", 1, kMaxSteps},
    {"telemetry.evaluate_every", 0, kMaxSteps},
    {"telemetry.evaluation_sequences", 1, int64_t{1} << 40},
    {"runtime.threads_per_rank", 1, 4096},
    {"runtime.check_every_steps", 0, kMaxSteps},
    {"runtime.ranks_per_device", 1, 1024},
    {"runtime.attention_workspace_bytes", 0, int64_t{4} << 30},
};

// Steps compute with this value in fp32, where it is still below 1.
constexpr double kBelowOne = 0.999999;

// The same for floating-point fields.
constexpr RealRange kJobRealRanges[] = {
    {"data.evaluation_fraction", 0, 0.5},    {"optimizer.learning_rate", kTiny, 1000},
    {"optimizer.beta1", 0, kBelowOne},       {"optimizer.beta2", 0, kBelowOne},
    {"optimizer.epsilon", kTiny, 1},         {"optimizer.momentum", 0, kBelowOne},
    {"optimizer.weight_decay", 0, 1000},     {"optimizer.max_gradient_norm", 0, 1e30},
    {"lr_schedule.epochs", 1e-9, 1e9},       {"lr_schedule.final_fraction", 0, 1},
    {"lr_schedule.decay_fraction", 1e-6, 1}, {"telemetry.peak_flops", 1, 1e21},
};

// Returns the range of the field at `path`, or null if there is none. `numbers` chooses the integers or the reals of
// FieldRanges.
template <typename Range>
const Range* Find(absl::Span<const Range> FieldRanges::*numbers, absl::string_view path) {
  std::vector<FieldRanges> all = {FieldRanges{kJobIntRanges, kJobRealRanges}};
  ForEachModelKind([&](const auto& kind) { all.push_back(RangesOf(kind)); });
  for (const FieldRanges& ranges : all) {
    for (const Range& range : ranges.*numbers) {
      if (range.path == path) return &range;
    }
  }
  return nullptr;
}

class FieldChecker {
 public:
  explicit FieldChecker(SpecErrors* errors) : errors_(*errors) {}

  void Check(Message* message, const std::string& path) {
    const Descriptor& type = *message->GetDescriptor();
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.GetUnknownFields(*message).empty()) {
      const int number = reflection.GetUnknownFields(*message).field(0).number();
      errors_.Add(path, absl::StrCat("holds field number ", number, ", which ", type.name(),
                                     " does not have; was it written by another version?"));
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const std::string field_path = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE: CheckMessage(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_INT64: CheckInt(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_DOUBLE: CheckReal(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_ENUM: CheckEnum(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_STRING: CheckStrings(message, field, field_path); break;
        case FieldDescriptor::CPPTYPE_BOOL: break;
        case FieldDescriptor::CPPTYPE_UINT64: break;  // A seed may have every value.
        default: SHALE_CHECK(false) << field_path << " has a type that no check covers";
      }
    }
  }

 private:
  // Checks a section (a message at the top level of Job) even if it is left out, because it may have required fields.
  // Checks a deeper message, which is a kind of model or a feature, only if it is given.
  void CheckMessage(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    const bool is_section = path.find('.') == std::string::npos;
    if (is_section || reflection.HasField(*message, &field)) Check(reflection.MutableMessage(message, &field), path);
  }

  void CheckInt(Message* message, const FieldDescriptor& field, const std::string& path) {
    const IntRange* range = FindIntRange(path);
    SHALE_CHECK(range != nullptr) << path << " has no range";
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.HasField(*message, &field)) {
      if (!range->required) return;
      errors_.Add(path, absl::StrCat("missing, and there is no default; allowed: ", RangeText(path)));
      return reflection.SetInt64(message, &field, range->min);
    }
    const int64_t value = reflection.GetInt64(*message, &field);
    if (range->min <= value && value <= range->max) return;
    errors_.Add(path, absl::StrCat("found ", value, "; allowed: ", RangeText(path)));
    reflection.SetInt64(message, &field, std::clamp(value, range->min, range->max));
  }

  void CheckReal(Message* message, const FieldDescriptor& field, const std::string& path) {
    const RealRange* range = FindRealRange(path);
    SHALE_CHECK(range != nullptr) << path << " has no range";
    const Reflection& reflection = *message->GetReflection();
    if (!reflection.HasField(*message, &field)) return;
    const double value = reflection.GetDouble(*message, &field);
    if (range->min <= value && value <= range->max) return;  // The condition is false for NaN.
    errors_.Add(path, absl::StrCat("found ", NumberText(value), "; allowed: ", RangeText(path)));
    reflection.SetDouble(message, &field, range->max);
  }

  void CheckEnum(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    if (field.is_repeated()) {
      // Value 0 stands for a field that is left out. An element of a list cannot be left out, so 0 is refused.
      for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
        const int number = reflection.GetRepeatedEnumValue(*message, &field, i);
        if (number != 0 && field.enum_type()->FindValueByNumber(number) != nullptr) continue;
        errors_.Add(absl::StrCat(path, "[", i, "]"), EnumMessage(*field.enum_type(), absl::StrCat(number)));
      }
      return;
    }
    const int number = reflection.GetEnumValue(*message, &field);
    if (field.enum_type()->FindValueByNumber(number) != nullptr) return;
    errors_.Add(path, EnumMessage(*field.enum_type(), absl::StrCat(number)));
    reflection.ClearField(message, &field);
  }

  void CheckStrings(Message* message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& reflection = *message->GetReflection();
    if (!field.is_repeated()) return CheckString(reflection.GetString(*message, &field), path);
    for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
      CheckString(reflection.GetRepeatedString(*message, &field, i), absl::StrCat(path, "[", i, "]"));
    }
  }

  void CheckString(const std::string& value, const std::string& path) {
    if (IsLineOfPath(value)) return;
    errors_.Add(path, absl::StrCat("found ", Quoted(value), "; allowed: one line of UTF-8 text"));
  }

  SpecErrors& errors_;
};

}  // namespace

const IntRange* FindIntRange(absl::string_view path) { return Find(&FieldRanges::integers, path); }

const RealRange* FindRealRange(absl::string_view path) { return Find(&FieldRanges::reals, path); }

std::string NumberText(double value) {
  for (int digits = 1; digits < 17; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string RangeText(absl::string_view path) {
  if (const IntRange* range = FindIntRange(path)) return absl::StrCat(range->min, " to ", range->max);
  if (const RealRange* range = FindRealRange(path)) {
    return absl::StrCat(NumberText(range->min), " to ", NumberText(range->max));
  }
  return absl::StrCat("0 to ", std::numeric_limits<uint64_t>::max());
}

void CheckFields(proto::Job* job, SpecErrors* errors) { FieldChecker(errors).Check(job, ""); }

}  // namespace shale

#include "engine/run/events/event_json.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/events.h"
#include "engine/files/io/file.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kernels/check.h"

namespace shale {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void Fill(const PlanReady& from, proto::Event& event) {
  proto::PlanReady& to = *event.mutable_plan_ready();
  to.set_name(from.name);
  to.set_parameters(from.parameters);
  to.set_ranks(from.ranks);
  to.set_accumulation_steps(from.accumulation_steps);
  to.set_total_steps(from.total_steps);
  to.set_arena_bytes(from.arena_bytes);
  to.set_host_arena_bytes(from.host_arena_bytes);
}

void Fill(const Progress& from, proto::Event& event) {
  // The message's value 0 means that there is none.
  event.mutable_progress()->set_stage(static_cast<proto::Progress::Stage>(static_cast<int>(from.stage) + 1));
}
static_assert(static_cast<int>(StartStage::kFirstStep) + 1 == proto::Progress::FIRST_STEP);

void Fill(const StepReport& from, proto::Event& event) {
  proto::Step& to = *event.mutable_step();
  to.set_step(from.step);
  to.set_tokens(from.tokens);
  to.set_loss(from.loss);
  to.set_grad_norm(from.gradient_norm);
  to.set_learning_rate(from.learning_rate);
  to.set_updated(from.updated);
  to.set_seconds(from.seconds);
  to.set_tokens_per_second(from.tokens_per_second);
  to.set_mfu(from.mfu);
  to.set_peak_bytes_planned(from.peak_bytes_planned);
  to.set_peak_bytes_measured(from.peak_bytes_measured);
  to.set_processed_tokens(from.processed_tokens);
  if (from.step_weight > 0) to.set_weight(from.step_weight);
  if (from.loss_scale > 0) to.set_loss_scale(from.loss_scale);
  if (from.predicted_seconds > 0) to.set_predicted_seconds(from.predicted_seconds);
  for (const UserMetric& metric : from.metrics) {
    proto::Metric& added = *to.add_metrics();
    added.set_name(metric.name);
    added.set_value(metric.value);
  }
}

void Fill(const EvaluationReport& from, proto::Event& event) {
  proto::Evaluation& to = *event.mutable_evaluation();
  to.set_step(from.step);
  to.set_evaluation_loss(from.loss);
  to.set_evaluation_tokens(from.tokens);
  for (const SourceLoss& source : from.sources) {
    proto::SourceLoss& added = *to.add_evaluation_sources();
    added.set_name(source.name);
    added.set_loss(source.loss);
    added.set_tokens(source.tokens);
  }
}

void Fill(const Warning& from, proto::Event& event) { event.mutable_warning()->set_text(from.text); }

void Fill(const CheckpointReport& from, proto::Event& event) {
  if (!from.status.ok()) {
    return Fill(Warning{absl::StrCat("the state after step ", from.step, " was not saved: ", from.status.message())},
                event);
  }
  proto::Checkpoint& to = *event.mutable_checkpoint();
  to.set_step(from.step);
  to.set_path(from.path);
  to.set_bytes(from.bytes);
  to.set_seconds(from.seconds);
}

void Fill(const Failure& from, proto::Event& event) {
  proto::Failure& to = *event.mutable_failure();
  to.set_code(absl::StatusCodeToString(from.status.code()));
  to.set_culprit(from.culprit);
  to.set_text(std::string(from.status.message()));
  to.set_step(from.step);
}

void Fill(const Finished& from, proto::Event& event) {
  proto::Finished& to = *event.mutable_finished();
  to.set_step(from.step);
  to.set_total_steps(from.total_steps);
  if (!from.ended_early.empty()) to.set_ended_early(from.ended_early);
}

// Returns the descriptor of the field that says what happened.
const FieldDescriptor& KindOf(const proto::Event& event) {
  return *event.GetDescriptor()->FindFieldByNumber(event.kind_case());
}

// Adds the metrics of a step, or the losses of the sources of an evaluation, if there are any, as one object:
// {"reward": 0.5, ...}.
void AddNumbers(const proto::Event& event, const FieldDescriptor& field, JsonObject& object) {
  JsonObject numbers;
  for (const proto::Metric& metric : event.step().metrics()) numbers.Add(metric.name(), metric.value());
  for (const proto::SourceLoss& source : event.evaluation().evaluation_sources()) {
    numbers.Add(source.name(), source.loss());
  }
  const bool any = !event.step().metrics().empty() || !event.evaluation().evaluation_sources().empty();
  if (any) object.Add(field.name(), numbers);
}

void AddField(const Message& message, const FieldDescriptor& field, JsonObject& object) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  const std::string& name = field.name();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: object.Add(name, int64_t{values.GetInt64(message, &field)}); return;
    case FieldDescriptor::CPPTYPE_DOUBLE: object.Add(name, values.GetDouble(message, &field)); return;
    case FieldDescriptor::CPPTYPE_BOOL: object.Add(name, values.GetBool(message, &field)); return;
    case FieldDescriptor::CPPTYPE_ENUM: object.Add(name, values.GetEnum(message, &field)->name()); return;
    default: object.Add(name, values.GetString(message, &field)); return;
  }
}

void AddFields(const proto::Event& event, JsonObject& object) {
  const Message& what = event.GetReflection()->GetMessage(event, &KindOf(event));
  for (int i = 0; i < what.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *what.GetDescriptor()->field(i);
    if (field.is_repeated()) {  // Only Step.metrics and Evaluation.evaluation_sources are.
      AddNumbers(event, field, object);
      continue;
    }
    const bool absent = field.has_presence() && !what.GetReflection()->HasField(what, &field);
    if (!absent) AddField(what, field, object);
  }
}

class DescriptorWriter : public EventWriter {
 public:
  explicit DescriptorWriter(int fd) : fd_(fd) {}

  absl::Status Write(const RunEvent& event) override {
    const std::string line = absl::StrCat(EventLine(event).ToString(), "\n");
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = TEMP_FAILURE_RETRY(write(fd_, line.data() + done, line.size() - done));
      if (written < 0) return FileError(errno, "write", absl::StrCat("an event to file descriptor ", fd_));
      done += static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
};

class FileWriter : public EventWriter {
 public:
  explicit FileWriter(std::unique_ptr<JsonLinesWriter> lines) : lines_(std::move(lines)) {}

  absl::Status Write(const RunEvent& event) override { return lines_->Append(EventLine(event)); }

 private:
  const std::unique_ptr<JsonLinesWriter> lines_;
};

}  // namespace

proto::Event EventMessage(const RunEvent& event) {
  proto::Event message;
  message.set_time(event.unix_seconds);
  std::visit([&](const auto& what) { Fill(what, message); }, event.what);
  return message;
}

JsonObject EventFields(const RunEvent& event) {
  JsonObject object;
  AddFields(EventMessage(event), object);
  return object;
}

JsonObject EventLine(const RunEvent& event) {
  const proto::Event message = EventMessage(event);
  JsonObject object;
  object.Add("event", KindOf(message).name()).Add("time", message.time());
  AddFields(message, object);
  return object;
}

std::unique_ptr<EventWriter> WriteJsonTo(int fd) { return std::make_unique<DescriptorWriter>(fd); }

absl::StatusOr<std::unique_ptr<EventWriter>> WriteJsonFile(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  SHALE_RETURN_IF_ERROR(MakeFoldersOf(path));
  // A copy of a run folder that was made with hard links keeps its events.
  if (!IsLink(path)) SHALE_RETURN_IF_ERROR(MakeOwnFile(path, kMostBytes));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<JsonLinesWriter> lines,
                         JsonLinesWriter::Open(path, JsonLinesWriter::Mode::kContinue));
  return std::make_unique<FileWriter>(std::move(lines));
}

}  // namespace shale

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/files/hugging_face/config.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/plan/config/model_spec.h"
#include "engine/plan/config/spec_text.h"
#include "engine/plan/config/spec_values.h"
#include "engine/strings/utf8.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "kernels/check.h"
#include "proto/job.pb.h"

namespace shale {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
// Limits the recursion of both protobuf parsers, which a hostile spec could make overflow the stack.
constexpr int kMaxDepth = 64;

enum class Form { kText, kBinary };

// Who wrote a job: the user of this program, somebody else, whose paths are not opened, or a run, which recorded it.
// Only a record may name a custom model.
enum class Origin { kWritten, kForeign, kRecorded };

// Keeps the first error of the protobuf parser, which would otherwise write it to its own log.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (message_.empty()) message_ = absl::StrCat("line ", line + 1, ": ", message);
  }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

absl::Status CheckSize(absl::string_view bytes, absl::string_view filename) {
  if (bytes.size() <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(filename, ": more than 1 MiB; a job spec is a few hundred bytes, is this the right file?"));
}

absl::Status CheckText(absl::string_view text, absl::string_view filename) {
  const size_t at = FindNonText(text);
  if (at == absl::string_view::npos) return absl::OkStatus();
  const absl::string_view before = text.substr(0, at);
  const size_t line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = at - (before.rfind('\n') + 1) + 1;  // On the first line rfind returns npos, and npos + 1 is 0.
  return absl::InvalidArgumentError(absl::StrCat(filename, ":", line, ":", column, ": found byte 0x",
                                                 absl::Hex(static_cast<uint8_t>(text[at]), absl::kZeroPad2),
                                                 "; wanted UTF-8 text without control characters"));
}

// Reads `text` into `message`, which lies at path `prefix` of the job. Returns all syntax errors and bad names as one
// error.
absl::Status ReadText(absl::string_view text, const std::string& prefix, google::protobuf::Message* message,
                      SpecErrors* errors, absl::string_view filename) {
  SHALE_RETURN_IF_ERROR(CheckSize(text, filename));
  SHALE_RETURN_IF_ERROR(CheckText(text, filename));
  const TextSource source = {std::string(filename), /*has_lines=*/true, prefix};
  CheckSpecText(text, *proto::Job::descriptor(), *message->GetDescriptor(), source, errors);
  SHALE_RETURN_IF_ERROR(errors->ToStatus());
  google::protobuf::TextFormat::Parser parser;
  FirstError first_error;
  parser.RecordErrorsTo(&first_error);
  parser.SetRecursionLimit(kMaxDepth);
  if (parser.ParseFromString(std::string(text), message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(filename, ": ", first_error.message()));
}

absl::Status ReadBinary(absl::string_view bytes, proto::Job* job, absl::string_view filename) {
  SHALE_RETURN_IF_ERROR(CheckSize(bytes, filename));
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  stream.SetRecursionLimit(kMaxDepth);
  if (job->ParseFromCodedStream(&stream) && stream.ConsumedEntireMessage()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(filename, ": neither textproto nor a binary job; text must be UTF-8 without control characters"));
}

void MakeAbsolute(const std::filesystem::path& folder, std::string* path) {
  if (!path->empty() && path->front() != '/') *path = (folder / *path).lexically_normal().string();
}

// Makes the paths absolute that `message`, and the messages inside of it, give.
void MakeFieldsAbsolute(const std::filesystem::path& folder, google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->message_type() != nullptr && !field->is_repeated()) {
      MakeFieldsAbsolute(folder, reflection.MutableMessage(message, field));
    }
    if (!FactsOf(*field).is_path()) continue;
    std::string path = reflection.GetString(*message, field);
    if (field->name() == "tokenizer" && path == kBytesTokenizer) continue;
    MakeAbsolute(folder, &path);
    reflection.SetString(message, field, path);
  }
}

void MakePathsAbsolute(const std::filesystem::path& folder, proto::Job* spec) {
  MakeFieldsAbsolute(folder, spec);
  for (std::string& text : *spec->mutable_data()->mutable_mix()) {
    MixedData mixed = MixedDataFromText(text);
    if (mixed.share == 0) continue;  // CheckRules reports it.
    MakeAbsolute(folder, &mixed.path);
    text = ToText(mixed);
  }
  for (std::string& text : *spec->mutable_data()->mutable_evaluation_sources()) {
    EvaluationSource source = EvaluationSourceFromText(text);
    if (source.name.empty()) continue;  // CheckRules reports it.
    MakeAbsolute(folder, &source.path);
    text = ToText(source);
  }
}

// Fills in the decoder from the config.json of model.hf_folder, if the spec itself gives no model. Does not open the
// folder of a spec that gives a model: the two shapes are compared when the weights are read.
void ReadShape(Origin origin, proto::ModelSpec* model, SpecErrors* errors) {
  if (model->hf_folder().empty() || model->kind_case() != proto::ModelSpec::KIND_NOT_SET) return;
  if (!IsLineOfPath(model->hf_folder())) return;  // This is no path. CheckFields reports it.
  if (origin == Origin::kForeign) {
    errors->Add("model.hf_folder",
                "only the files of this folder describe the model, and they are not opened here; give model.decoder as "
                "well");
    return;
  }
  const absl::StatusOr<DecoderConfig> config = ReadHfConfig(model->hf_folder());
  if (config.ok()) {
    proto::Job described;
    WriteSpec(*config, *described.mutable_model());
    ClearWithoutEffect(&described);
    return model->MergeFrom(described.model());
  }
  errors->Add("model.hf_folder", std::string(config.status().message()));
}

// Gives text the tokenizer of model.hf_folder, unless the spec names one.
void FindTokenizer(Origin origin, proto::Job* spec) {
  const std::string& folder = spec->model().hf_folder();
  const bool open = origin == Origin::kWritten && spec->data().tokenizer().empty() && !spec->data().path().empty();
  if (!open || folder.empty() || !IsLineOfPath(folder)) return;
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json", error)) {
    spec->mutable_data()->set_tokenizer(folder);
  }
}

// Refuses a spec whose model does not come from where it should. If the program brings the model, writes one into the
// spec that breaks no rule, because only SetModel can check those about the model.
void CheckModelFrom(ModelFrom from, Origin origin, proto::Job* spec, SpecErrors* errors) {
  const proto::ModelSpec& model = spec->model();
  const bool has_model =
      model.kind_case() != proto::ModelSpec::KIND_NOT_SET || !model.hf_folder().empty() || model.has_adapter();
  if (from == ModelFrom::kProgram && has_model) {
    errors->Add("model", "the program that runs this job brings its own model; leave `model` out");
  } else if (from == ModelFrom::kProgram) {
    const double most = FactsOf(*FindField("model.custom.layers")).max();
    const CustomModel open{.name = "open", .digest = "open", .layers = static_cast<int64_t>(most)};
    WriteSpec(open, *spec->mutable_model());
  } else if (origin != Origin::kRecorded && spec->model().has_custom()) {
    errors->Add("model.custom",
                "stands only in the records of runs, and names a model that a program brought; leave `model` out, and "
                "run the job with that program");
  }
}

// Returns the working directory. If there is none, paths stay relative.
std::filesystem::path WorkingDirectory() {
  std::error_code unknown;
  return std::filesystem::current_path(unknown);
}

// Reads the bytes of a spec.
absl::Status ReadSpec(absl::string_view bytes, Form form, absl::string_view filename, proto::Job& spec,
                      SpecErrors& errors) {
  SHALE_RETURN_IF_ERROR(form == Form::kText ? ReadText(bytes, "", &spec, &errors, filename)
                                            : ReadBinary(bytes, &spec, filename));
  // Relative paths in the file start at the file's folder, and those of overrides at the working directory.
  MakePathsAbsolute(WorkingDirectory() / std::filesystem::path(std::string(filename)).parent_path(), &spec);
  return absl::OkStatus();
}

// Returns the job of a spec that was read, with the overrides.
absl::StatusOr<Job> JobOfSpec(proto::Job spec, absl::Span<const std::string> overrides, ModelFrom from, Origin origin,
                              SpecErrors& errors) {
  ApplyOverrides(overrides, &spec, &errors);
  MakePathsAbsolute(WorkingDirectory(), &spec);
  CheckModelFrom(from, origin, &spec, &errors);
  ReadShape(origin, spec.mutable_model(), &errors);
  FindTokenizer(origin, &spec);

  CheckFields(&spec, &errors);
  Job job = JobFromSpec(spec);
  CheckRules(spec, job, &errors);
  if (from == ModelFrom::kJobAndData && job.data.path.empty()) {
    errors.AddRule({"data.path"}, "missing; give a text file, a token file, or a folder of such files");
  }
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  if (from == ModelFrom::kProgram) job.model = CustomModel();
  return job;
}

// Reads a spec and returns its job with the overrides. Stores the errors in `found`, unless it is null.
absl::StatusOr<Job> ParseJob(absl::string_view bytes, Form form, absl::string_view filename,
                             absl::Span<const std::string> overrides, ModelFrom from, Origin origin,
                             std::vector<JobError>* found = nullptr) {
  SpecErrors errors{std::string(filename)};
  const auto parse = [&]() -> absl::StatusOr<Job> {
    proto::Job spec;
    SHALE_RETURN_IF_ERROR(ReadSpec(bytes, form, filename, spec, errors));
    return JobOfSpec(std::move(spec), overrides, from, origin, errors);
  };
  absl::StatusOr<Job> job = parse();
  if (found == nullptr) return job;
  *found = errors.errors();
  // What is no job at all, such as a text that is too long, has no field to blame.
  if (!job.ok() && found->empty()) {
    found->push_back({.source = std::string(filename), .message = std::string(job.status().message())});
  }
  return job;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder; expected a job file, such as job.textproto"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open the job file"));
  }
  std::string bytes;
  std::array<char, 4096> some;
  // Reads more than is allowed of a file that is too long, so that this is noticed.
  while (bytes.size() <= kMaxBytes && file.read(some.data(), some.size()).gcount() > 0) {
    bytes.append(some.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read the job file"));
  return bytes;
}

Form FormOf(absl::string_view path, absl::string_view bytes) {
  for (absl::string_view ending : {".binpb", ".pb"}) {
    if (absl::EndsWith(path, ending)) return Form::kBinary;
  }
  for (absl::string_view ending : {".textproto", ".txtpb", ".prototxt"}) {
    if (absl::EndsWith(path, ending)) return Form::kText;
  }
  return FindNonText(bytes) == absl::string_view::npos ? Form::kText : Form::kBinary;
}

}  // namespace

absl::StatusOr<Job> LoadJob(absl::string_view path, absl::Span<const std::string> overrides, ModelFrom model,
                            std::vector<JobError>* errors) {
  const absl::StatusOr<std::string> bytes = ReadFile(std::string(path));
  if (bytes.ok()) return ParseJob(*bytes, FormOf(path, *bytes), path, overrides, model, Origin::kWritten, errors);
  if (errors != nullptr) {
    *errors = {{.source = std::string(path), .message = std::string(bytes.status().message())}};
  }
  return bytes.status();
}

struct JobFile::Contents {
  proto::Job spec;
  SpecErrors errors;  // None, but with the place of each field.
};

absl::StatusOr<JobFile> JobFile::Read(absl::string_view path) {
  SHALE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(std::string(path)));
  auto contents = std::make_shared<Contents>(Contents{.errors = SpecErrors(std::string(path))});
  SHALE_RETURN_IF_ERROR(ReadSpec(bytes, FormOf(path, bytes), path, contents->spec, contents->errors));
  return JobFile(std::move(contents));
}

absl::StatusOr<Job> JobFile::With(absl::Span<const std::string> overrides) const {
  SpecErrors errors = contents_->errors;
  return JobOfSpec(contents_->spec, overrides, ModelFrom::kJob, Origin::kWritten, errors);
}

absl::StatusOr<Job> ParseJobText(absl::string_view text, absl::string_view filename,
                                 absl::Span<const std::string> overrides, ModelFrom model) {
  return ParseJob(text, Form::kText, filename, overrides, model, Origin::kWritten);
}

absl::StatusOr<Job> ParseRecordedJob(absl::string_view text, absl::string_view filename) {
  return ParseJob(text, Form::kText, filename, {}, ModelFrom::kJob, Origin::kRecorded);
}

absl::StatusOr<Job> ParseJobBinary(absl::string_view bytes, absl::string_view filename,
                                   absl::Span<const std::string> overrides, ModelFrom model) {
  return ParseJob(bytes, Form::kBinary, filename, overrides, model, Origin::kWritten);
}

absl::StatusOr<Job> ParseForeignJob(absl::string_view bytes, absl::string_view filename,
                                    absl::Span<const std::string> overrides, std::vector<JobError>* errors) {
  return ParseJob(bytes, FormOf("", bytes), filename, overrides, ModelFrom::kJob, Origin::kForeign, errors);
}

absl::Status ValidateJob(const Job& job, std::vector<JobError>* errors) {
  return ParseJob(ResolvedJobText(job), Form::kText, "job", {}, ModelFrom::kJob, Origin::kRecorded, errors).status();
}

absl::StatusOr<Job> WithOverrides(const Job& job, absl::Span<const std::string> overrides) {
  SHALE_ASSIGN_OR_RETURN(
      Job changed, ParseJob(ResolvedJobText(job), Form::kText, "job", overrides, ModelFrom::kJob, Origin::kRecorded));
  // No text holds these.
  if (std::holds_alternative<CustomModel>(job.model)) changed.model = job.model;
  changed.data.for_evaluation = job.data.for_evaluation;
  return changed;
}

absl::StatusOr<ModelConfig> ParseModelText(absl::string_view text, int64_t sequence_length,
                                           absl::string_view filename) {
  SpecErrors errors{std::string(filename)};
  proto::Job spec;
  // The checks require these fields outside the model.
  spec.mutable_batch()->set_global_batch(1);
  spec.mutable_batch()->set_sequence_length(sequence_length);
  SHALE_RETURN_IF_ERROR(ReadText(text, "model", spec.mutable_model(), &errors, filename));
  CheckFields(&spec, &errors);
  const Job job = JobFromSpec(spec);
  CheckConditions(spec, SpecOf(job), &errors);
  CheckModelRules(spec.model(), job.model, job.batch.sequence_length, &errors);
  CheckSizes(job, &errors);
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  return job.model;
}

}  // namespace shale

// A client of the example service. Prints what comes back as JSON, a line for each job or event.

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "tools/examples/service/service.grpc.pb.h"

ABSL_FLAG(std::string, service, "127.0.0.1:50051", "Where the service listens.");
ABSL_FLAG(std::string, id, "", "submit: the id of the new job; empty: the service chooses one.");
ABSL_FLAG(int64_t, position, 0, "watch: the position of the last event that is known already.");

namespace service {
namespace {

constexpr char kUsage[] =
    "calls the example service.\n\n"
    "  client submit FILE [--id=ID]       submits a job spec\n"
    "  client list                        prints all jobs\n"
    "  client watch ID [--position=N]     prints what happens to a job, until it ends\n"
    "  client cancel|preempt|resume ID\n\n"
    "Exit codes: 0 the call succeeded; 1 it did not, and stderr says why.";

void Print(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);  // Fails only for Any.
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

int End(const grpc::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "client: %s\n", status.error_message().c_str());
  return 1;
}

int PrintAnswer(const grpc::Status& status, const JobStatus& job) {
  if (status.ok()) Print(job);
  return End(status);
}

int Call(Jobs::Stub& jobs, const std::string& command, const std::string& operand) {
  grpc::ClientContext context;
  JobStatus job;
  JobRequest request;
  request.set_id(operand);
  if (command == "cancel") return PrintAnswer(jobs.Cancel(&context, request, &job), job);
  if (command == "preempt") return PrintAnswer(jobs.Preempt(&context, request, &job), job);
  if (command == "resume") return PrintAnswer(jobs.Resume(&context, request, &job), job);
  if (command == "submit") {
    std::ifstream file(operand, std::ios::binary);
    if (!file) return End({grpc::StatusCode::NOT_FOUND, "cannot open " + operand});
    SubmitRequest submit;
    submit.set_job(std::string(std::istreambuf_iterator<char>(file), {}));
    submit.set_id(absl::GetFlag(FLAGS_id));
    return PrintAnswer(jobs.Submit(&context, submit, &job), job);
  }
  if (command == "list") {
    JobList list;
    const grpc::Status status = jobs.List(&context, ListRequest(), &list);
    for (const JobStatus& each : list.jobs()) Print(each);
    return End(status);
  }
  WatchRequest watch;
  watch.set_id(operand);
  watch.set_position(absl::GetFlag(FLAGS_position));
  const std::unique_ptr<grpc::ClientReader<WatchEvent>> events = jobs.Watch(&context, watch);
  for (WatchEvent event; events->Read(&event);) Print(event);
  return End(events->Finish());
}

}  // namespace
}  // namespace service

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(service::kUsage);
  // Otherwise --help shows only flags of a file that has the program's name in full.
  absl::SetFlagsUsageConfig(
      {.contains_help_flags = [](absl::string_view file) { return absl::EndsWith(file, "service/client.cc"); }});
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  const std::string command = words.size() > 1 ? words[1] : "";
  const bool has_operand =
      command == "submit" || command == "watch" || command == "cancel" || command == "preempt" || command == "resume";
  if (words.size() != (has_operand ? 3 : 2) || (!has_operand && command != "list")) {
    std::fprintf(stderr, "client: give one of submit, list, watch, cancel, preempt, resume; see --help\n");
    return 1;
  }
  const auto channel = grpc::CreateChannel(absl::GetFlag(FLAGS_service), grpc::InsecureChannelCredentials());
  return service::Call(*service::Jobs::NewStub(channel), command, has_operand ? words[2] : "");
}

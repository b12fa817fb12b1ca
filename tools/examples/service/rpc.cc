#include "tools/examples/service/rpc.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace service {
namespace {

// Both libraries have the same codes.
grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

grpc::Status Answer(absl::StatusOr<JobStatus> result, JobStatus* response) {
  if (result.ok()) *response = *std::move(result);
  return ToGrpc(result.status());
}

}  // namespace

grpc::Status Rpc::Submit(grpc::ServerContext*, const SubmitRequest* request, JobStatus* response) {
  return Answer(queue_.Submit(request->job(), request->id()), response);
}

grpc::Status Rpc::List(grpc::ServerContext*, const ListRequest*, JobList* response) {
  for (JobStatus& job : queue_.List()) *response->add_jobs() = std::move(job);
  return grpc::Status::OK;
}

grpc::Status Rpc::Watch(grpc::ServerContext* context, const WatchRequest* request,
                        grpc::ServerWriter<WatchEvent>* writer) {
  return ToGrpc(queue_.Watch(
      request->id(), request->position(), [&] { return !context->IsCancelled(); },
      [&](const WatchEvent& event) { return writer->Write(event); }));
}

grpc::Status Rpc::Cancel(grpc::ServerContext*, const JobRequest* request, JobStatus* response) {
  return Answer(queue_.Cancel(request->id()), response);
}

grpc::Status Rpc::Preempt(grpc::ServerContext*, const JobRequest* request, JobStatus* response) {
  return Answer(queue_.Preempt(request->id()), response);
}

grpc::Status Rpc::Resume(grpc::ServerContext*, const JobRequest* request, JobStatus* response) {
  return Answer(queue_.Resume(request->id()), response);
}

}  // namespace service

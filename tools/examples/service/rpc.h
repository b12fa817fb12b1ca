// The calls of service.proto, as a gRPC service.
#pragma once

#include "tools/examples/service/job_queue.h"
#include "tools/examples/service/service.grpc.pb.h"

namespace service {

class Rpc : public Jobs::Service {
 public:
  // `queue` is borrowed.
  explicit Rpc(JobQueue* queue) : queue_(*queue) {}

  grpc::Status Submit(grpc::ServerContext*, const SubmitRequest* request, JobStatus* response) override;
  grpc::Status List(grpc::ServerContext*, const ListRequest*, JobList* response) override;
  grpc::Status Watch(grpc::ServerContext* context, const WatchRequest* request,
                     grpc::ServerWriter<WatchEvent>* writer) override;
  grpc::Status Cancel(grpc::ServerContext*, const JobRequest* request, JobStatus* response) override;
  grpc::Status Preempt(grpc::ServerContext*, const JobRequest* request, JobStatus* response) override;
  grpc::Status Resume(grpc::ServerContext*, const JobRequest* request, JobStatus* response) override;

 private:
  JobQueue& queue_;
};

}  // namespace service

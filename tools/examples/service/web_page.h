// WebPage: a page that lists the jobs with their loss curves, over HTTP. It only shows; nothing can be changed with it.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "httplib.h"
#include "tools/examples/service/job_queue.h"

namespace service {

class WebPage {
 public:
  // Serves the page at `host` and `port` (0: at any free port) until the object is destroyed. Borrows `queue`. Returns
  // FailedPrecondition if the port is in use.
  static absl::StatusOr<std::unique_ptr<WebPage>> Start(JobQueue* queue, const std::string& host, int port);
  ~WebPage();

  int port() const { return port_; }

 private:
  WebPage() = default;

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace service

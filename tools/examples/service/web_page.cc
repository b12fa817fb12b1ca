#include "tools/examples/service/web_page.h"

#include <sys/socket.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/examples/service/page.h"

namespace service {
namespace {

constexpr size_t kMostPoints = 400;  // Of a curve.
constexpr int kThreads = 2;

std::string JobsJson(JobQueue& queue) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const JobStatus& job : queue.List()) {
    nlohmann::json curve = nlohmann::json::array();
    const absl::StatusOr<std::vector<LossPoint>> points = queue.Curve(job.id(), kMostPoints);
    for (const LossPoint& point : points.value_or(std::vector<LossPoint>())) curve.push_back({point.step, point.loss});
    jobs.push_back({{"id", job.id()},
                    {"state", JobStatus::State_Name(job.state())},
                    {"text", job.error().empty() ? job.plan() : job.error()},
                    {"threads", job.threads()},
                    {"bytes", job.bytes()},
                    {"steps_done", job.steps_done()},
                    {"total_steps", job.total_steps()},
                    {"curve", std::move(curve)}});
  }
  // Messages may quote bytes of a job that are no text.
  return jobs.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WebPage>> WebPage::Start(JobQueue* queue, const std::string& host, int port) {
  std::unique_ptr<WebPage> page(new WebPage);
  httplib::Server& server = page->server_;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // By default the library shares the port with other programs that do, and each gets some of the requests.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(kPage, "text/html; charset=utf-8");
  });
  server.Get("/jobs", [queue](const httplib::Request&, httplib::Response& response) {
    response.set_content(JobsJson(*queue), "application/json");
  });
  if (port == 0) {
    port = server.bind_to_any_port(host);
  } else if (!server.bind_to_port(host, port)) {
    port = -1;
  }
  if (port < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen at ", host, " for the page; give a --page_port that is free, or 0"));
  }
  page->port_ = port;
  page->thread_ = std::thread([&server] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();  // stop() is heard only from then on.
  return page;
}

WebPage::~WebPage() {
  if (!thread_.joinable()) return;
  server_.stop();
  thread_.join();
}

}  // namespace service

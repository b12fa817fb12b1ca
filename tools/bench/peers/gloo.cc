// Gloo's own collectives, between processes of this host over TCP. tools/launch says which process this is. The first
// argument is a folder where the processes find each other; the others are those of TimeCollectives.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "rounds.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  Peers peers = {.process = std::atoi(std::getenv("SHALE_PROCESS")),
                 .processes = std::atoi(std::getenv("SHALE_PROCESSES"))};
  gloo::rendezvous::FileStore store(argv[1]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(peers.process, peers.processes);
  auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
  context->connectFullMesh(store, device);
  peers.barrier = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  peers.least = [&](double value) {
    gloo::AllreduceOptions options(context);
    options.setOutput(&value, 1);
    options.setReduceFunction([](void* c, const void* a, const void* b, size_t n) { gloo::min<double>(c, a, b, n); });
    gloo::allreduce(options);
    return value;
  };
  peers.all_gather = [&](float* full, float* part, int64_t count) {
    gloo::AllgatherOptions options(context);
    options.setInput(part, count / peers.processes);
    options.setOutput(full, count);
    gloo::allgather(options);
  };
  peers.all_reduce = [&](float* full, float*, int64_t count) {
    gloo::AllreduceOptions options(context);
    options.setOutput(full, count);
    options.setReduceFunction([](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
  };
  // This one is an object, which is made for a size and then called.
  std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter;
  int64_t made_for = 0;
  peers.reduce_scatter = [&](float* full, float*, int64_t count) {
    if (std::exchange(made_for, count) != count) {
      reduce_scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context, std::vector<float*>{full}, static_cast<int>(count),
          std::vector<int>(peers.processes, static_cast<int>(count / peers.processes)));
    }
    reduce_scatter->run();
  };
  return TimeCollectives(peers, argv + 2);
}

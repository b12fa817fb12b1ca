// Communicators between ranks in several processes, on any hosts, over Gloo's TCP transport. For CpuStreams.
//
// A process holds one or several ranks of a group. Ranks of one process read one another's memory. If all processes of
// a group are on one host, and the system lets each read the memory of the others (they are of one user, in one
// container), then all its ranks do; Gloo only tells them when. Otherwise every rank exchanges its parts over TCP,
// directly with the ranks that need them. Either way each element of a sum is computed by one rank, in rank order and
// in the element type. So results have the bits of an in-process group (in_process.h).
//
// Each collective begins with a small message between every two processes, which says what their ranks want and holds
// the data itself if that is small. So ranks that want different collectives are told who wanted what, and a collective
// of no elements is a barrier.
//
// Errors of a collective become errors of its stream: those of in_process.h, and Unavailable if a process has ended or
// its connections are lost. The message names its ranks and the collective. When a group fails in one process, this
// process tells the others why. So all ranks get the same error, and each first closes its connections: nobody uses the
// memory of a failed collective any more. A rank that was destroyed fails the collectives that its peers enqueue after
// its last one. No exception of Gloo leaves this library.
//
// Each process of a group has three threads for it: one of Gloo that moves data, one that waits for notices of peers,
// and one that looks at connections and deadlines. A process accepts its peers on ports that the system chooses and
// that are open until all peers have connected. Gloo does not authenticate peers, and other bytes that arrive on these
// ports may end the process, so use it only on a network where nobody else can connect to them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/store.h"

namespace shale {

// The ranks of a group and their processes. Processes may have any numbers, such as those they have in the job.
struct GlooMembers {
  std::string name;                  // Names the group in the store, where no other group may have this name.
  int process = 0;                   // This process. It holds at least one rank.
  std::vector<int> process_of_rank;  // By rank. Equal in all processes.
};

struct GlooOptions {
  // The host name or address of this process, under which the others reach it.
  std::string address = "127.0.0.1";
  // How long a rank waits in a collective for its peers before the group fails. 0: forever.
  double timeout_seconds = 600;
  // How long to wait for the other processes to create the group. Must be above 0.
  double connect_timeout_seconds = 60;
  // Memory that each rank has besides its operands, to receive what it adds up. Equal in all processes. At least 4096
  // bytes are taken for each rank in another process.
  int64_t staging_bytes = int64_t{4} << 20;
  // Whether ranks read the memory of other processes of their host. Equal in all processes.
  bool read_memory = true;
  // Receives a line if all processes are on one host but cannot read one another's memory. May be empty.
  std::function<void(const std::string& line)> report;
};

// Creates the communicators of the ranks that this process holds, in rank order. Waits for all other processes of the
// group. Returns DeadlineExceeded if one does not come in time and Unavailable if it cannot be reached; the message
// names its ranks. `store` is used only during the call.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGlooGroup(Store& store, const GlooMembers& members,
                                                                           const GlooOptions& options = {});

// Creates the communicators of all ranks of a group, which are in this process but exchange as if each were in a
// process of its own on this host. For programs that measure such a group.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGlooGroupOfThreads(const std::string& name, int ranks,
                                                                                    const GlooOptions& options = {});

// Returns whether another process of this user may read the memory of this one. If not, processes of one host exchange
// over TCP, although threads of one process, which a group of threads has, may read their own memory.
bool ProcessesMayReadMemory();

}  // namespace shale

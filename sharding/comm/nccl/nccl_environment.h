// The environment variables that the engine sets for NCCL. NCCL reads most of them once, at its first call, so they
// must be set before. A variable that is set already keeps its value. Call these functions before there are threads; a
// later call with the same arguments changes nothing.
#pragma once

#include <string>

namespace shale {

// Sets two variables:
// - NCCL_LAUNCH_ORDER_IMPLICIT=1: NCCL launches the collectives of two communicators of a rank in the order in which
//   its thread enqueues them, so that they cannot wait for each other.
// - NCCL_RUNTIME_CONNECT=0: NCCL connects and takes its memory when a communicator is made, and not when some algorithm
//   is first used.
void SetNcclEnvironment();

// Lets NCCL of this version (NcclApi::Version) join processes that share a GPU, of which each has one rank. It refuses
// ranks that have both their host and their GPU in common. So, before 2.30, it is told that every process is on another
// host, and they exchange everything over TCP; since 2.30 one variable allows it. Sets
// - NCCL_SOCKET_IFNAME=lo: all processes are on this host, which may have no other network;
// - since 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1;
// - before, NCCL_HOSTID to a value of this process, and NCCL_NET=Socket.
// Returns the variables with the values that they have now, for people. A value that was there before is marked.
std::string SetNcclSharingEnvironment(int version);

}  // namespace shale

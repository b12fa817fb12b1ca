#include "sharding/comm/gloo/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "sharding/comm/agreement.h"

namespace shale {
namespace {

// Returns a text that all processes of this host have and no others. Empty if the system does not tell.
std::string HostId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

uint64_t RandomToken() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;  // Not 0.
}

}  // namespace

GlooMemory::GlooMemory() : token_(RandomToken()) {}

GlooMemory::~GlooMemory() {
  Withdraw();
  for (std::byte* board : boards_) {
    if (board != nullptr) munmap(board, kBoardBytes);
  }
  if (file_ >= 0) close(file_);
}

absl::Status GlooMemory::MakeBoard(int process) {
  file_ = memfd_create("shale", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0 || ftruncate(file_, kBoardBytes) != 0 || fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return absl::UnavailableError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  }
  return MapBoard(process, file_, PROT_READ | PROT_WRITE);
}

absl::Status GlooMemory::MapBoard(int process, int file, int protection) {
  void* const mapped = mmap(nullptr, kBoardBytes, protection, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return absl::UnavailableError(absl::StrCat("mmap: ", std::strerror(errno)));
  boards_[process] = static_cast<std::byte*>(mapped);
  return absl::OkStatus();
}

// Returns what other processes need to read this one's memory.
std::string GlooMemory::Mine() const {
  return absl::StrCat(HostId(), " ", getpid(), " ", file_, " ", reinterpret_cast<uintptr_t>(&token_), " ",
                      token_.load());
}

absl::StatusOr<std::unique_ptr<GlooMemory>> GlooMemory::Create(Store& store, const GlooLayout& layout,
                                                               const GlooMembers& members, const GlooOptions& options) {
  std::unique_ptr<GlooMemory> memory(new GlooMemory);
  memory->processes_.resize(layout.processes());
  memory->boards_.resize(layout.processes());
  if (!options.read_memory || layout.peers().empty()) return memory;
  // First all say where they are, then whether they can read all others.
  std::vector<std::string> values(layout.processes());
  const auto exchange = [&](absl::string_view what, const std::string& mine) -> absl::Status {
    const auto key = [&](int process) { return absl::StrCat("gloo/", members.name, "/", what, "/", process); };
    SHALE_RETURN_IF_ERROR(store.Put(key(layout.process()), mine));
    for (int process = 0; process < layout.processes(); ++process) {
      SHALE_ASSIGN_OR_RETURN(values[process], store.Get(key(process), options.connect_timeout_seconds));
    }
    return absl::OkStatus();
  };
  absl::Status opened = memory->MakeBoard(layout.process());
  SHALE_RETURN_IF_ERROR(exchange("memory", memory->Mine()));
  const auto host = [&](int process) { return values[process].substr(0, values[process].find(' ')); };
  for (const int peer : layout.peers()) {
    if (host(peer) != host(layout.process()) || host(peer).empty()) return memory;
  }
  for (const int peer : layout.peers()) {
    absl::Status status = memory->Open(peer, values[peer]);
    if (!status.ok() && opened.ok()) {
      opened = absl::Status(status.code(), absl::StrCat(RankList(layout.local_ranks()), " cannot read the memory of ",
                                                        RankList(layout.ranks_of(peer)), ": ", status.message()));
    }
  }
  SHALE_RETURN_IF_ERROR(exchange("reads", std::string(opened.message())));
  close(std::exchange(memory->file_, -1));
  for (const std::string& refusal : values) {
    if (refusal.empty()) continue;
    if (options.report) {
      options.report(absl::StrCat("the processes of this host exchange tensors over TCP, which is slower: ", refusal));
    }
    return memory;
  }
  memory->readable_ = true;
  return memory;
}

absl::Status GlooMemory::Open(int process, const std::string& theirs) {
  Peer& peer = processes_[process];
  const std::vector<std::string> parts = absl::StrSplit(theirs, ' ');
  uintptr_t address = 0;
  int number = 0;
  if (parts.size() != 5 || !absl::SimpleAtoi(parts[1], &peer.pid) || !absl::SimpleAtoi(parts[2], &number) ||
      !absl::SimpleAtoi(parts[3], &address) || !absl::SimpleAtoi(parts[4], &peer.token)) {
    return absl::InvalidArgumentError(absl::StrCat("it says \"", theirs, "\" of its memory"));
  }
  peer.token_address = reinterpret_cast<const void*>(address);
  SHALE_RETURN_IF_ERROR(CheckToken(process));
  const std::string path = absl::StrCat("/proc/", peer.pid, "/fd/", number);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  const absl::Status mapped = MapBoard(process, file, PROT_READ);
  close(file);
  return mapped;
}

absl::Status GlooMemory::CheckToken(int process) const {
  uint64_t token = 0;
  SHALE_RETURN_IF_ERROR(Read(process, processes_[process].token_address, &token, sizeof(token)));
  if (token == processes_[process].token) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("process ", processes_[process].pid,
                                             " does not hold the expected token; it has failed, or has this number "
                                             "only in another container"));
}

absl::Status GlooMemory::Check() const {
  for (int process = 0; process < std::ssize(processes_); ++process) {
    if (processes_[process].pid != 0) SHALE_RETURN_IF_ERROR(CheckToken(process));
  }
  return absl::OkStatus();
}

absl::Status GlooMemory::Read(int process, const void* from, void* to, int64_t size_bytes) const {
  while (size_bytes > 0) {
    const iovec local = {to, static_cast<size_t>(size_bytes)};
    const iovec remote = {const_cast<void*>(from), static_cast<size_t>(size_bytes)};
    const ssize_t count = process_vm_readv(processes_[process].pid, &local, 1, &remote, 1, 0);
    if (count <= 0) {
      const int error = count == 0 ? EFAULT : errno;
      return absl::UnavailableError(
          absl::StrCat("process_vm_readv: ", std::strerror(error),
                       error == EPERM ? "; run all processes as one user, with kernel.yama.ptrace_scope 0" : "",
                       error == ESRCH ? "; run all processes in one container" : ""));
    }
    from = static_cast<const std::byte*>(from) + count;
    to = static_cast<std::byte*>(to) + count;
    size_bytes -= count;
  }
  return absl::OkStatus();
}

}  // namespace shale

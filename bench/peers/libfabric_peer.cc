// Counted writes straight on libfabric: what a program gets that skips every library above it. Two
// processes on two cores; one writes with data, the other counts the data that arrive.
//
// Tuned as far as the interface allows: manual progress on the two threads that call it, one
// thread a domain, injected writes where they fit (no completion at the sender), and otherwise one
// completion for several writes; completions are read many at a time. Delivery-complete is off: a
// completion at the sender does not mean that the bytes have arrived, which is weaker than what we
// promise and faster.

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "host.h"

namespace {

using peers::map;
using peers::now;
using peers::pause_cpu;
using peers::pin;

struct Options {
  std::string provider = "shm";
  std::string verb;
  uint64_t bytes = 8;
  uint64_t slots = 1;
  uint32_t window = 64;
  bool inject = true;
  uint32_t pauses = 0;
  double duration = 0.3;
  std::vector<int> pin{0, 1};
};

void check(long rc, const char* call) {
  if (rc < 0) {
    throw std::runtime_error(fmt::format("{}: {}", call, fi_strerror(static_cast<int>(-rc))));
  }
}

struct Closed {
  template <class T>
  void operator()(T* object) const {
    fi_close(&object->fid);  // the result does not matter: the process exits next
  }
};
struct InfoFreed {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
template <class T>
using Owned = std::unique_ptr<T, Closed>;
using Info = std::unique_ptr<fi_info, InfoFreed>;

/// What each side sends the other before the first write.
struct Hello {
  std::array<char, 128> name{};
  uint64_t name_bytes = 0;
  uint64_t base = 0;
  uint64_t key = 0;
};

/// Between the two processes, apart from libfabric: how the run goes.
struct RunState {
  alignas(128) std::atomic<uint64_t> total{0};     ///< writes to expect; 0: not known yet
  alignas(128) std::atomic<uint64_t> received{0};  ///< of them counted by the target
};

/// Where the write number `i` comes from and goes to. A prime step scatters pages at the target and
/// still visits each once.
uint64_t source_slot(const Options& options, uint64_t i) { return i % options.slots; }
uint64_t target_slot(const Options& options, uint64_t i) {
  if (options.verb != "paged") return source_slot(options, i);
  return i % options.slots * 7919 % options.slots;
}

Info find(const Options& options) {
  const Info hints(fi_allocinfo());
  if (hints == nullptr) throw std::bad_alloc();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = 0;
  hints->ep_attr->type = FI_EP_RDM;
  hints->addr_format = options.provider == "shm" ? FI_ADDR_STR : FI_SOCKADDR_IN;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->cq_data_size = 4;
  hints->fabric_attr->prov_name = strdup(options.provider.c_str());
  fi_info* found = nullptr;
  const bool shm = options.provider == "shm";
  const int rc = fi_getinfo(FI_VERSION(1, 15), shm ? nullptr : "127.0.0.1", nullptr,
                            shm ? 0 : FI_SOURCE, hints.get(), &found);
  check(rc, "fi_getinfo");
  return Info(found);
}

class Side {
 public:
  Side(const Options& options, int socket) : options_(options), info_(find(options)) {
    const uint64_t extent = options.slots * options.bytes;
    source_ = map(extent, MAP_PRIVATE);
    target_ = map(extent, MAP_PRIVATE);
    for (uint64_t i = 0; i < extent; ++i) source_[i] = static_cast<std::byte>(i * 31 >> 3);
    open();
    source_mr_ = reg(source_, extent, FI_WRITE, 1);
    target_mr_ = reg(target_, extent, FI_REMOTE_WRITE, 2);
    meet(socket);
  }

  /// One write with data; tries until the provider takes it.
  void write(uint64_t i) {
    const std::byte* const from = source_ + source_slot(options_, i) * options_.bytes;
    const uint64_t to = peer_.base + target_slot(options_, i) * options_.bytes;
    if (options_.inject && options_.bytes <= info_->tx_attr->inject_size) {
      again("fi_inject_writedata", [&] {
        return fi_inject_writedata(ep_.get(), from, options_.bytes, i, peer_addr_, to, peer_.key);
      });
      return;
    }
    const iovec local{const_cast<std::byte*>(from), options_.bytes};
    const fi_rma_iov remote{to, options_.bytes, peer_.key};
    void* descriptor = fi_mr_desc(source_mr_.get());
    fi_msg_rma message{&local, &descriptor, 1, peer_addr_, &remote, 1, nullptr, i};
    // One completion for a quarter of the window: the other three quarters stay in flight.
    const uint32_t group = std::max<uint32_t>(1, options_.window / 4);
    const bool last = ++unsignalled_ == group;
    const uint64_t flags = FI_REMOTE_CQ_DATA | (last ? FI_COMPLETION : 0);
    again("fi_writemsg", [&] { return fi_writemsg(ep_.get(), &message, flags); });
    if (!last) return;
    unsignalled_ = 0;
    ++signalled_;
    while (signalled_ * group >= options_.window) poll_sent();
  }

  /// Completions at the sender, and progress for what is under way.
  void poll_sent() { signalled_ -= read(tx_.get()); }
  /// How many writes have arrived since the last call.
  uint64_t poll_received() { return read(rx_.get()); }

  bool right(uint64_t writes) const {
    for (uint64_t i = 0; i < std::min(writes, options_.slots); ++i) {
      const std::byte* const from = source_ + source_slot(options_, i) * options_.bytes;
      const std::byte* const to = target_ + target_slot(options_, i) * options_.bytes;
      if (std::memcmp(from, to, options_.bytes) != 0) return false;
    }
    return true;
  }

 private:
  void open() {
    fid_fabric* fabric = nullptr;
    check(fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    check(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain");
    domain_.reset(domain);
    fi_av_attr av_attr{};
    av_attr.type = FI_AV_TABLE;
    fid_av* av = nullptr;
    check(fi_av_open(domain, &av_attr, &av, nullptr), "fi_av_open");
    av_.reset(av);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_DATA;
    cq_attr.size = 4096;
    fid_cq *tx = nullptr, *rx = nullptr;
    check(fi_cq_open(domain, &cq_attr, &tx, nullptr), "fi_cq_open");
    tx_.reset(tx);
    check(fi_cq_open(domain, &cq_attr, &rx, nullptr), "fi_cq_open");
    rx_.reset(rx);
    fid_ep* ep = nullptr;
    check(fi_endpoint(domain, info_.get(), &ep, nullptr), "fi_endpoint");
    ep_.reset(ep);
    check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION), "fi_ep_bind");
    check(fi_ep_bind(ep, &rx->fid, FI_RECV), "fi_ep_bind");
    check(fi_enable(ep), "fi_enable");
  }

  Owned<fid_mr> reg(std::byte* at, uint64_t bytes, uint64_t access, uint64_t key) {
    fid_mr* mr = nullptr;
    check(fi_mr_reg(domain_.get(), at, bytes, access, 0, key, 0, &mr, nullptr), "fi_mr_reg");
    return Owned<fid_mr>(mr);
  }

  void meet(int socket) {
    Hello mine;
    size_t bytes = mine.name.size();
    check(fi_getname(&ep_->fid, mine.name.data(), &bytes), "fi_getname");
    mine.name_bytes = bytes;
    const bool absolute = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    mine.base = absolute ? reinterpret_cast<uint64_t>(target_) : 0;
    mine.key = fi_mr_key(target_mr_.get());
    if (send(socket, &mine, sizeof(mine), 0) != sizeof(mine) ||
        recv(socket, &peer_, sizeof(peer_), MSG_WAITALL) != sizeof(peer_)) {
      throw std::runtime_error("the other side is gone");
    }
    if (fi_av_insert(av_.get(), peer_.name.data(), 1, &peer_addr_, 0, nullptr) != 1) {
      throw std::runtime_error("fi_av_insert");
    }
  }

  template <class Post>
  void again(const char* call, Post post) {
    for (;;) {
      const ssize_t rc = post();
      if (rc == 0) return;
      if (rc != -FI_EAGAIN) check(rc, call);
      poll_sent();
    }
  }

  uint64_t read(fid_cq* cq) {
    std::array<fi_cq_data_entry, 64> entries;
    const ssize_t count = fi_cq_read(cq, entries.data(), entries.size());
    if (count >= 0) return static_cast<uint64_t>(count);
    if (count == -FI_EAGAIN) return 0;
    fi_cq_err_entry error{};
    if (count == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) > 0) check(-error.err, "completion");
    check(count, "fi_cq_read");
    return 0;
  }

  const Options& options_;
  Info info_;
  std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> av_;
  Owned<fid_cq> tx_, rx_;
  Owned<fid_ep> ep_;
  Owned<fid_mr> source_mr_, target_mr_;
  Hello peer_;
  fi_addr_t peer_addr_ = 0;
  uint32_t unsignalled_ = 0;
  uint64_t signalled_ = 0;  ///< completions to come
};

void target(const Options& options, Side& side, RunState& run_state) {
  const bool answers = options.verb == "latency";
  uint64_t received = 0;
  for (;;) {
    const uint64_t more = side.poll_received();
    if (answers && more != 0) {
      for (uint64_t i = 0; i < more; ++i) side.write(received + i);
    }
    if (more != 0) run_state.received.store(received += more, std::memory_order_release);
    for (uint32_t i = 0; i < options.pauses; ++i) pause_cpu();
    if (received == run_state.total.load(std::memory_order_acquire) && received != 0) break;
  }
  if (!side.right(received)) throw std::runtime_error("wrong bytes");
}

void stream(const Options& options, Side& side, RunState& run_state) {
  const uint64_t burst = std::clamp<uint64_t>((256u << 10) / options.bytes, 1, 256);
  uint64_t posted = 0, before = 0;
  double begin = now();
  for (;;) {
    for (uint64_t i = 0; i < burst; ++i) side.write(posted++);
    const double took = now() - begin;
    if (took >= options.duration) break;
    if (before == 0 && took >= options.duration / 8) {
      // The first writes make connections and warm caches.
      while (run_state.received.load(std::memory_order_acquire) != posted) side.poll_sent();
      before = posted;
      begin = now();
    }
  }
  run_state.total.store(posted, std::memory_order_release);
  while (run_state.received.load(std::memory_order_acquire) != posted) side.poll_sent();
  const double rate = static_cast<double>(posted - before) / (now() - begin);
  fmt::print(R"({{"benchmark":"{}","network":"{}","bytes":{},"ops_per_second":{:.1f},)"
             R"("gb_per_second":{:.6f}}})"
             "\n",
             options.verb, options.provider, options.bytes, rate,
             rate * static_cast<double>(options.bytes) / 1e9);
}

void latency(const Options& options, Side& side, RunState& run_state) {
  std::vector<double> times;
  const double begin = now();
  uint64_t turns = 0;
  for (double last = begin; last - begin < options.duration;) {
    side.write(turns++);
    while (side.poll_received() == 0) {
    }
    const double end = now();
    // As above: not the first ones.
    if (last - begin > options.duration / 8) times.push_back((end - last) / 2 * 1e9);
    last = end;
  }
  run_state.total.store(turns, std::memory_order_release);
  if (times.empty()) throw std::runtime_error("too short for a single round trip");
  std::sort(times.begin(), times.end());
  fmt::print(R"({{"benchmark":"latency","network":"{}","bytes":{},"half_round_trip_ns":)"
             R"({{"p50":{:.1f},"p99":{:.1f}}}}})"
             "\n",
             options.provider, options.bytes, times[times.size() / 2],
             times[times.size() * 99 / 100]);
}

int run(const Options& options) {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  auto* const run_state = new (map(sizeof(RunState), MAP_SHARED)) RunState;
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  // A provider that never returns must not hold up the comparison. Both have the same limit.
  ::alarm(static_cast<unsigned>(options.duration) + 20);
  close(sockets[child == 0 ? 0 : 1]);
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(child == 0 ? options.pin.back() : options.pin.front());
  Side side(options, sockets[child == 0 ? 1 : 0]);
  if (child == 0) {
    target(options, side, *run_state);
    return EXIT_SUCCESS;
  }
  options.verb == "latency" ? latency(options, side, *run_state)
                            : stream(options, side, *run_state);
  std::fflush(stdout);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Writes with data on libfabric itself: one JSON object a run");
  app.add_option("verb", options.verb, "write, paged or latency")
      ->required()
      ->check(CLI::IsMember({"write", "paged", "latency"}));
  app.add_option("--provider", options.provider, "shm, or a name such as tcp;ofi_rxm");
  app.add_option("--bytes", options.bytes)->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30));
  app.add_option("--slots", options.slots, "Rotate over so many slots; the pages of a paged write")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--window", options.window, "Writes under way")->check(CLI::Range(1, 1024));
  app.add_flag("!--no-inject", options.inject, "Ask for completions even of small writes");
  app.add_option("--pauses", options.pauses, "Of the target's processor between two polls");
  app.add_option("--duration", options.duration, "Seconds")->check(CLI::Range(0.01, 60.0));
  app.add_option("--pin", options.pin, "Two cores")->delimiter(',')->expected(2);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "libfabric_peer: {}\n", error.what());
    return EXIT_FAILURE;
  }
}

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include <fabric/types.h>

#include "base/rng.h"
#include "base/thread.h"
#include "fake_verbs/objects.h"
#include "providers/verbs/library.h"

// Fake NICs: an implementation of libibverbs in software. They move bytes between registered memory
// of this process as a reliable connection does, inject faults when a test asks for them, and
// record calls that no real NIC accepts (violations).

namespace fabric::test {

/// Properties of the fake NICs. The defaults are those of the strictest real ones.
struct FakeNicOptions {
  uint32_t hosts = 3, rails = 2;
  bool wire_thread = true;  ///< false: packets move only by run(), pass() and run_to()
  /// Control datagrams and timerfds are on the NICs' clock too, which advances only by run_to().
  bool stepped = false;
  Nanos cable{0};  ///< one way
  int cqe_max = 1 << 16;
  int requests_max = 1 << 14;
  uint32_t inline_max = 128;
  ibv_mtu mtu = IBV_MTU_4096;
  bool thread_domains = true;
  bool dmabuf = true;
  bool lands_late = true;            ///< packets land after the error state, until the first flush
  bool keeps_completions = false;    ///< of a destroyed queue pair, as SoftRoCE does
  bool flushes_after_error = false;  ///< receives posted after the error state are flushed at once
  bool silent_when_unsignalled = false;  ///< unsignalled requests fail without a completion
  uint64_t seed = 1;                     ///< of random loss
};

/// All fake NICs of the process, and the network between them. One instance at a time; it replaces
/// the table of libibverbs while it exists.
///
/// Threads: everything from any thread; one mutex guards all state. Packets are moved by a thread
/// of its own, or by run() and pass().
class FakeNics {
 public:
  enum class End : uint8_t { kSender, kTarget };
  enum class Call : uint8_t {
    kCreateQp,
    kCreateCq,
    kToInit,
    kToReceive,
    kToSend,
    kToError,
    kRegister,
    kDeregister,
    kPostSend,
    kPostReceive,
    kOpen,
    kAllocPd,
    kCreateChannel,
  };
  /// Kinds of packets between two hosts.
  enum Part : uint32_t { kData = 1, kAcks = 2, kControl = 4, kAll = 7 };
  static constexpr uint32_t kAny = UINT32_MAX;

  /// An injected failure of a call.
  struct Failure {
    Call call = Call::kCreateQp;
    uint32_t host = kAny, rail = kAny;
    uint32_t times = 1;
    int error = ENOMEM;
    int taken = 0;        ///< requests of the chain that are posted before it fails
    bool silent = false;  ///< `bad` stays null
    uint32_t after = 0;   ///< calls that succeed before
  };
  struct Lossy {
    double drop = 0, duplicate = 0, reorder = 0;
  };

  explicit FakeNics(const FakeNicOptions& options = {});
  /// Fails the test for leaked objects and for violations.
  ~FakeNics();
  FakeNics(const FakeNics&) = delete;
  FakeNics& operator=(const FakeNics&) = delete;

  static std::string name(uint32_t host, uint32_t rail);

  // ---- Without a thread
  /// Until nothing moves any more; true when something did.
  bool run();
  /// Delivers up to `packets` data packets of one NIC, even if its target holds them.
  uint32_t deliver(uint32_t host, uint32_t rail, uint32_t packets);
  /// From now on a thread moves the packets.
  void start_wire_thread();
  /// Advances the time of retransmissions and RNR pauses.
  void pass(Nanos time);
  /// Sets the time, then as run().
  bool run_to(int64_t now_ns);
  /// When the next packet, control datagram, retransmission or timer is due, after now.
  int64_t next_event_ns();

  // ---- Faults
  void lose(uint32_t from, uint32_t to, uint32_t parts, bool on, uint32_t rail = kAny);
  void lossy_control(const Lossy& lossy);
  void port(uint32_t host, uint32_t rail, bool up, bool raises_event = true);
  void fatal(uint32_t host, uint32_t rail);
  void overrun(uint32_t host, uint32_t rail);
  /// Moves one end of the paths from one host to another to the error state, on this rail of the
  /// sender. Returns how many there were.
  uint32_t break_path(uint32_t from, uint32_t to, uint32_t rail, End end);
  void raise_event(uint32_t host, uint32_t rail, ibv_event_type type);  ///< of the port
  /// One event for every connected queue pair of a NIC at this end of a path; returns how many.
  uint32_t raise_qp_events(uint32_t host, uint32_t rail, End end, ibv_event_type type);
  /// Moves the address of a port to another index of its GID table, and raises the event.
  void move_gid(uint32_t host, uint32_t rail, uint8_t index);
  /// While on, calls that connect to this port block, as the kernel does for an unresolved
  /// neighbour; when it ends they fail with ETIMEDOUT.
  void hide_neighbour(uint32_t host, uint32_t rail, bool on);
  uint32_t neighbour_searches();       ///< calls that are blocked by it
  void time_out_neighbour_searches();  ///< they fail; the neighbour stays hidden
  void corrupt_rkey(uint32_t from, uint32_t to);
  void not_ready(uint32_t host, bool on);
  void land_late(uint32_t host, uint32_t rail, bool on);
  void land_before_error_state(uint32_t host, uint32_t rail, bool on);
  void hold_flushes(uint32_t host, uint32_t rail, bool on);
  void hold_packets(uint32_t host, uint32_t rail, bool on);
  void fail(const Failure& failure);
  /// For tests in which a drain is abandoned: destroying an undrained queue pair is no violation.
  void allow_undrained() {
    change([this] { undrained_allowed_ = true; });
  }
  void set_silent_when_unsignalled(bool on);

  // ---- Inspection
  uint64_t calls(Call call, uint32_t host = kAny);  ///< so far, failed ones included
  uint64_t failed_calls();                          ///< by fail()
  uint64_t landed(uint32_t host);                   ///< packets
  uint64_t landed_late();                           ///< packets after the error state
  uint64_t deleted();                               ///< completions deleted with their queue pair
  uint64_t flushed();
  uint32_t in_flight(uint32_t host, uint32_t rail);  ///< data packets of a NIC
  std::vector<fake::QpSettings> qp_settings(uint32_t host,
                                            uint32_t rail);  ///< of connected queue pairs
  unsigned access(const void* address);  ///< flags of the region that begins there
  std::vector<std::string> take_violations();

  /// What happens to a control datagram. Called by the sendmsg() of control.cc.
  struct DatagramFate {
    uint32_t copies = 1;
    bool swaps = false;  ///< the next one overtakes it
  };
  DatagramFate control(uint32_t from_host, uint32_t from_rail, uint32_t to_host, uint32_t to_rail);
  bool stepped() const noexcept { return options_.stepped; }
  /// With FakeNicOptions::stepped, in place of the kernel's sendmsg(), recv() and
  /// timerfd_settime(). A socket is identified by the address that it is bound to.
  void send_datagram(uint64_t to_socket, std::vector<std::byte> bytes, const DatagramFate& fate);
  std::optional<std::vector<std::byte>> receive_datagram(uint64_t socket);
  void set_timer(int fd, int64_t after_ns);  ///< 0: off
  static FakeNics* current() noexcept;

 private:
  friend struct FakeKernel;
  friend struct FakeUserDriver;
  using Lock = std::unique_lock<std::mutex>;
  template <class F>
  void change(F&& f) {
    const std::lock_guard lock(mutex_);
    f();
    moved_.notify_all();
  }
  template <class F>
  void each_device(uint32_t host, uint32_t rail, F&& f) {
    for (auto& device : devices_) {
      if ((host == kAny || device->host == host) && (rail == kAny || device->rail == rail)) {
        f(*device);
      }
    }
  }

  // fake_nics.cc
  void violate(const std::string& what) { violations_.push_back(what); }
  /// The errno of an injected failure, or 0.
  int failing(Call call, const fake::Device& device, Failure* how = nullptr);
  fake::Device* find(const verbs::GidBytes& gid);
  fake::Qp* find(const fake::Device& device, uint32_t number);
  fake::Mr* find_key(const fake::Pd& pd, uint32_t key);
  void raise_event(fake::Context& context, fake::AsyncEvent event);
  void to_error(fake::Qp& qp);
  void overrun(fake::Cq& cq);

  // wire.cc
  bool step();
  int64_t now_ns() const;
  int64_t next_ns(int64_t after_ns) const;
  bool flush(fake::Qp& qp);
  bool transmit(fake::Qp& qp);
  bool watch(fake::Qp& qp);
  bool deliver_due(fake::Flight& flight);
  bool is_held(const fake::Packet& packet);
  bool passes(const fake::Packet& packet);
  void arrive(fake::Packet&& packet);
  void take_data(fake::Qp& qp, const fake::Packet& packet);
  bool land(fake::Qp& qp, const fake::Packet& packet);
  void answer(fake::Qp& qp, fake::Packet::Kind kind, uint32_t number);
  void take_answer(fake::Qp& qp, const fake::Packet& packet);
  void acknowledge(fake::Qp& qp, uint32_t packets);
  void break_send(fake::Qp& qp, ibv_wc_status status);
  void complete_send(fake::Qp& qp, const fake::Request& request, ibv_wc_status status);
  void complete(fake::Cq& cq, const fake::Completion& completion);
  void land_all(fake::Device& device);
  void run_wire();

  const FakeNicOptions options_;
  verbs::Library before_{};
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<std::unique_ptr<fake::Device>> devices_;
  std::map<uint64_t, std::unique_ptr<fake::Qp>> qps_;
  std::vector<std::unique_ptr<fake::Qp>> destroyed_qps_;  ///< kept to detect late calls
  std::map<uint64_t, fake::Flight> flights_;              ///< by serial of the sending queue pair
  std::map<uint32_t, std::unique_ptr<fake::Mr>> mrs_;
  std::vector<Failure> failures_;
  std::map<std::pair<Call, uint32_t>, uint64_t> calls_;  ///< with the host
  struct Loss {
    uint32_t from = 0, to = 0, rail = kAny, parts = 0;
  };
  std::vector<Loss> losses_;
  std::vector<std::string> violations_;
  Lossy lossy_{};
  Rng rng_;
  uint32_t corrupt_from_ = kAny, corrupt_to_ = kAny;
  uint64_t serials_ = 0;
  uint32_t keys_ = 0x11;
  uint64_t failed_calls_ = 0, late_ = 0, deleted_ = 0, flushed_ = 0;
  std::map<uint32_t, uint64_t> landed_;
  int64_t virtual_ns_ = 0;
  struct Datagram {
    int64_t due_ns = 0;
    std::vector<std::byte> bytes{};
  };
  std::map<uint64_t, std::deque<Datagram>> datagrams_;  ///< stepped: by receiving socket
  std::map<int, int64_t> timers_;                       ///< stepped: timerfds and when they expire
  std::set<std::pair<uint32_t, uint32_t>> hidden_neighbours_;  ///< hosts and rails
  uint32_t neighbour_searches_ = 0;
  uint64_t searches_timed_out_ = 0;  ///< how often those of the time were ended
  bool undrained_allowed_ = false;
  bool silent_when_unsignalled_ = false;
  bool threaded_ = false;
  bool stopping_ = false;
  Thread thread_;
};

/// Fills the function table of libibverbs and those of a device context.
struct FakeVerbsTable {
  static verbs::Library table();
  static void fill(fake::Context& context);
  static void fill_kernel(fake::Context& context);
};

}  // namespace fabric::test

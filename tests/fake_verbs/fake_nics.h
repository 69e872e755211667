#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include <fabric/types.h>

#include "base/rng.h"
#include "base/thread.h"
#include "fake_verbs/objects.h"
#include "providers/verbs/library.h"

// RDMA cards made of software, in the place of libibverbs. They move bytes between registered
// memory of this process as a reliable connection does, do everything that goes wrong when a test
// says so, and remember what no card would have put up with.

namespace fabric::test {

/// What the cards are like. The usual ones are the strictest that exist.
struct FakeNicOptions {
  uint32_t hosts = 3, rails = 2;
  bool wire_thread = true;  ///< false: nothing moves but by run()
  Nanos cable{0};    ///< one way
  int cqe_max = 1 << 16;
  int requests_max = 1 << 14;
  uint32_t inline_max = 128;
  ibv_mtu mtu = IBV_MTU_4096;
  bool thread_domains = true;
  bool dmabuf = true;
  bool lands_late = true;          ///< behind the error state, until a receive is flushed
  bool keeps_completions = false;  ///< those of a destroyed queue pair, as SoftRoCE does
  bool flushes_after_error = false;     ///< receives behind the error state come back by themselves
  bool silent_when_unsignalled = false;  ///< a request that asked for no completion fails silently
  uint64_t seed = 1;                     ///< of what is lost by chance
};

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
  /// What travels between two hosts.
  enum Part : uint32_t { kData = 1, kAcks = 2, kControl = 4, kAll = 7 };
  static constexpr uint32_t kAny = UINT32_MAX;

  /// A call that fails.
  struct Failure {
    Call call = Call::kCreateQp;
    uint32_t host = kAny, rail = kAny;
    uint32_t times = 1;
    int error = ENOMEM;
    /// Of a chain of requests: so many are taken before it fails.
    int taken = 0;
    bool silent = false;  ///< and `bad` stays null
    uint32_t after = 0;   ///< so many calls go well before
  };
  struct Lossy {
    double drop = 0, duplicate = 0, reorder = 0;
  };

  explicit FakeNics(const FakeNicOptions& options = {});
  /// Fails the test for everything that is left over, and for what was forbidden.
  ~FakeNics();
  FakeNics(const FakeNics&) = delete;
  FakeNics& operator=(const FakeNics&) = delete;

  static std::string name(uint32_t host, uint32_t rail);

  // ---- Without a pump
  /// Until nothing moves any more; true when something did.
  bool run();
  /// So many packets from a card arrive, also while they are held.
  uint32_t deliver(uint32_t host, uint32_t rail, uint32_t packets);
  /// From here on a thread moves everything.
  void start_wire_thread();
  /// Lets time pass that queue pairs wait for: repeats, pauses.
  void pass(Nanos time);

  // ---- Trouble
  void lose(uint32_t from, uint32_t to, uint32_t parts, bool on, uint32_t rail = kAny);
  void lossy_control(const Lossy& lossy);
  void port(uint32_t host, uint32_t rail, bool up, bool raises_event = true);
  void fatal(uint32_t host, uint32_t rail);
  void overrun(uint32_t host, uint32_t rail);
  /// Puts one end of the paths from one host to another into the error state, on this rail of the
  /// sender. Returns how many there were.
  uint32_t break_path(uint32_t from, uint32_t to, uint32_t rail, End end);
  void raise_event(uint32_t host, uint32_t rail, ibv_event_type type);  ///< about the port
  /// About every connected queue pair of a card that is this end of a path; returns how many.
  uint32_t raise_qp_events(uint32_t host, uint32_t rail, End end, ibv_event_type type);
  /// The address of a port goes to another place of its table, and the device says so.
  void move_gid(uint32_t host, uint32_t rail, uint8_t index);
  /// The kernel looks for the neighbour, in every call that connects to this host by this rail,
  /// until that ends; then it says that there is none.
  void hide_neighbour(uint32_t host, uint32_t rail, bool on);
  uint32_t neighbour_searches();  ///< calls that are at it
  void corrupt_rkey(uint32_t from, uint32_t to);
  void not_ready(uint32_t host, bool on);
  void land_late(uint32_t host, uint32_t rail, bool on);
  void land_before_error_state(uint32_t host, uint32_t rail, bool on);
  void hold_flushes(uint32_t host, uint32_t rail, bool on);
  void hold_packets(uint32_t host, uint32_t rail, bool on);
  void fail(const Failure& failure);
  /// A drain is given up in this test: what is destroyed before it is drained is no mistake.
  void allow_undrained() {
    change([this] { undrained_allowed_ = true; });
  }
  void set_silent_when_unsignalled(bool on);

  // ---- Looks
  uint64_t calls(Call call, uint32_t host = kAny);  ///< so far, those that failed included
  uint64_t failed_calls();                          ///< of those that fail() asked for
  uint64_t landed(uint32_t host);                   ///< packets
  uint64_t landed_late();                           ///< packets behind the error state
  uint64_t deleted();                               ///< completions that went with their queue pair
  uint64_t flushed();
  uint32_t in_flight(uint32_t host, uint32_t rail);            ///< data packets from a card
  std::vector<fake::QpSettings> qp_settings(uint32_t host, uint32_t rail);  ///< of connected queue pairs
  unsigned access(const void* address);  ///< what the region that begins there allows
  std::vector<std::string> take_violations();

  /// What becomes of a control datagram. Called by sendmsg() of this process.
  struct DatagramFate {
    uint32_t copies = 1;
    bool swaps = false;  ///< the next one passes it
  };
  DatagramFate control(uint32_t from_host, uint32_t from_rail, uint32_t to_host, uint32_t to_rail);
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

  // card.cc
  void violate(const std::string& what) { violations_.push_back(what); }
  /// The errno of a failure that was asked for, or 0.
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
  int64_t next_ns() const;
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
  std::vector<std::unique_ptr<fake::Qp>> destroyed_qps_;  ///< so that a late caller is recognised
  std::map<uint64_t, fake::Flight> flights_;       ///< by the serial of who sent them
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
  std::set<std::pair<uint32_t, uint32_t>> hidden_neighbours_;  ///< hosts and rails
  uint32_t neighbour_searches_ = 0;
  bool undrained_allowed_ = false;
  bool silent_when_unsignalled_ = false;
  bool threaded_ = false;
  bool stopping_ = false;
  Thread thread_;
};

/// The calls of libibverbs and of the tables of a device.
struct FakeVerbsTable {
  static verbs::Library table();
  static void fill(fake::Context& context);
  static void fill_kernel(fake::Context& context);
};

}  // namespace fabric::test

#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fabric/fabric.h>

// One test body per promise (docs/contracts.md), run on every network. A body sees the public API
// and what its case can do, nothing else: what it needs beyond that is a capability with a name,
// and the case without it prints that name when it is skipped.

namespace fabric::test {

using namespace std::chrono_literals;

/// What a case has beyond the public API. A body asks by REQUIRE_CAP(field).
struct CaseCaps {
  bool two_engines = true;        ///< the two ends are engines of their own, and a third exists
  bool virtual_time = false;      ///< the clock is a world's: times are exact and long waits free
  bool step_hooks = false;             ///< each_step() looks again and again while things happen
  bool every_step = false;        ///< and really sees every step
  bool lossy_control = false;     ///< the network can be told to lose and repeat control messages
  bool realtime_threads = false;  ///< the network also runs under the threaded runtime
  bool second_network = false;    ///< two networks between the same hosts
  bool overtaking = false;        ///< writes pass each other, so that P7 is really put to work
  bool several_rails = false;     ///< a write can be cut
  bool counted_slices = false;    ///< a counted write may go in slices (Caps::slice_safe)
  bool exact_replay = false;      ///< the target can say what it took (Caps::exact_replay)

  // What a body can ask the ground's FaultInjector for.
  bool cuts = false;           ///< two hosts are cut off from each other
  bool lost_rails = false;     ///< a NIC fails and comes back
  bool control_apart = false;  ///< without any rail the hosts can still talk to each other
  bool broken_paths = false;
  bool kills = false;        ///< a process dies without a word
  bool stops = false;        ///< a process is stopped and goes on later; its NICs do not stop
  bool lost_acks = false;    ///< writes arrive and their sender does not hear of it
  bool not_ready = false;    ///< a receiver takes bytes and no counts
  bool wrong_keys = false;   ///< a write reaches its target with a key that is refused there
  bool late_proofs = false;  ///< taking memory and paths back takes time
};

/// How a ground differs from the usual one. Each field needs the capability of its name.
struct TestEnvOptions {
  double drop_control = 0, duplicate_control = 0, reorder_control = 0;  ///< lossy_control
  bool realtime_threads = false;
  bool second_network = false;  ///< named "second", after the usual one in the order
  bool faults = false;         ///< the body will ask for some
};

/// What can be made to go wrong between the hosts of a ground, each from the moment of the call.
/// In words that every network can act on: a cut is a link that is taken down or a filter, a broken
/// path a queue pair in error or a connection that is reset, a stop a signal. A ground overrides
/// what its case declares; the capability stands next to it.
class FaultInjector {
 public:
  enum class Side { kSender, kTarget };  ///< of a path
  /// Ends what began, and may be called without it.
  enum class Phase { kBegin, kEnd };

  virtual ~FaultInjector() = default;
  virtual void cut(uint32_t one, uint32_t other, Phase phase);         ///< cuts
  virtual void lose_rail(uint32_t host, uint32_t rail, Phase phase);  ///< lost_rails
  /// One end of the path from one host to another; the other finds out.
  virtual void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side);  ///< broken_paths
  virtual void kill(uint32_t host);                                              ///< kills
  virtual void stop(uint32_t host, Phase phase);                                 ///< stops
  virtual void lose_acks(uint32_t from, uint32_t to, Phase phase);                ///< lost_acks
  virtual void not_ready(uint32_t host, Phase phase);                            ///< not_ready
  virtual void wrong_key(uint32_t from, uint32_t to);   ///< wrong_keys: the next write
  virtual void delay_proofs(uint32_t host, Nanos by);  ///< late_proofs; zero ends it
};

/// An address and a descriptor at which nobody answers.
struct SilentPeer {
  std::vector<std::byte> address, desc;
};

/// Where the engines of a case live: their hosts, network and time.
class TestEnv {
 public:
  static constexpr uint32_t kHosts = 3;

  virtual ~TestEnv() = default;
  /// Opens one more engine on a host, 0 .. kHosts - 1.
  virtual Result<Engine> open(uint32_t host, const Config& config) = 0;
  /// Makes progress until done() or for `limit`. True when done() said so.
  virtual bool run_until(const std::function<bool()>& done, Nanos limit) = 0;
  virtual void run_for(Nanos time) = 0;
  /// Longer than anything takes that has no deadline.
  virtual void wait_idle() = 0;
  virtual void each_step(std::function<void()> look) = 0;
  /// For networks where an engine that is gone is known to be gone at once: one that is there and
  /// never says a word. It lives as long as the ground.
  virtual std::optional<SilentPeer> silent_peer(const Config&) { return std::nullopt; }
  virtual FaultInjector& faults();  ///< one that can do nothing, for grounds without any
  /// How long writes take here to come as far as on the simulator in that time.
  virtual Nanos wire_time(Nanos simulated) const { return simulated; }
};

/// One line of the list in providers.cc.
struct ProviderCase {
  std::string name;
  CaseCaps caps;
  std::function<std::unique_ptr<TestEnv>(const TestEnvOptions&)> make;
};
void PrintTo(const ProviderCase& provider, std::ostream* out);

/// Skips the body, and says for want of what.
#define REQUIRE_CAP(cap)                                                                          \
  do {                                                                                            \
    if (!GetParam().caps.cap) GTEST_SKIP() << GetParam().name << " has no capability '" #cap "'"; \
  } while (false)

/// Memory of the kind that the last call of use_shared_pages() asked for.
void* allocate_test_memory(size_t bytes);
void free_test_memory(void* at) noexcept;
void use_shared_pages(bool shared) noexcept;

/// What arrived by callback, in order. The fixture owns it, so that it outlives every engine.
class EventRecorder {
 public:
  struct Seen {
    Event event{};
    std::vector<std::byte> bytes{};  ///< of a message, copied
  };

  Notify notify(uint64_t tag = 0) noexcept { return Notify::call<&EventRecorder::on>(this, tag); }
  const std::vector<Seen>& seen() const noexcept { return seen_; }
  uint32_t count() const noexcept { return static_cast<uint32_t>(seen_.size()); }
  uint32_t count(uint64_t tag) const;
  uint32_t count(EventKind kind) const;
  const Event* find(uint64_t tag) const;  ///< the first with this tag
  const Event* find(EventKind kind) const;
  std::vector<PeerState> states(PeerId peer) const;  ///< that a peer went through, in order
  std::function<void(const Event&)> then{};          ///< called inside the callback

 private:
  void on(const Event& event);
  std::vector<Seen> seen_;
};

/// Where the blocks of a case come from: the heap, or pages that a peer can map.
template <class T>
struct TestAllocator {
  using value_type = T;
  TestAllocator() = default;
  template <class U>
  TestAllocator(const TestAllocator<U>&) noexcept {}
  T* allocate(size_t n) { return static_cast<T*>(allocate_test_memory(n * sizeof(T))); }
  void deallocate(T* at, size_t) noexcept { free_test_memory(at); }
  friend bool operator==(const TestAllocator&, const TestAllocator&) { return true; }
};
using TestBytes = std::vector<std::byte, TestAllocator<std::byte>>;

/// Memory of one end and its registration.
struct TestMemory {
  TestBytes bytes;
  MemoryRegion region;  ///< goes before the bytes

  LocalRef at(uint64_t offset) const noexcept { return region.at(offset); }
  void fill(uint64_t seed);
  void clear();
};

/// One engine with something to send and a place to receive.
struct DuplexHost {
  TestMemory out, in;
  Engine engine;  ///< closed first: what outlives it is inert
};

/// How one end reaches another.
struct RemoteHost {
  PeerId peer{};
  RemoteRegion in{};
};

class Conformance : public testing::TestWithParam<ProviderCase> {
 protected:
  static constexpr uint64_t kBytes = 1u << 20;
  static constexpr uint64_t kStripe = 4096;  ///< a write of n stripes is cut in n, up to the rails
  static constexpr Nanos kLong = 20s;        ///< bounds a wait that should end much earlier

  static constexpr uint32_t kA = 0, kB = 1, kC = 2;  ///< places

  /// Small bounds and small stripes, so that cuts are cheap to see.
  static Config usual_config();
  /// The same with short times. A drain is long enough for a NIC to give up on its own, and a
  /// deadline with its drain is over before a silent peer is doubted.
  static Config short_config();

  void SetUp() override;
  void TearDown() override;
  /// Starts over with other engines or another ground.
  void reopen(const Config& config, const TestEnvOptions& options = {});

  /// a writes to b. In a case without two engines both are the same one, its two blocks are not.
  DuplexHost& a() { return *hosts_[0]; }
  DuplexHost& b() { return GetParam().caps.two_engines ? *hosts_[1] : *hosts_[0]; }
  DuplexHost& c();  ///< opened by the first call; two_engines only
  Engine& ea() { return a().engine; }
  Engine& eb() { return b().engine; }

  /// Connects, waits until both know it, and imports.
  RemoteHost connect(DuplexHost& from, DuplexHost& to);
  std::unique_ptr<DuplexHost> make_host(uint32_t host, const Config& config);
  TestMemory make_memory(Engine& engine, uint64_t size_bytes = kBytes);
  /// Of an engine that nobody turns, or that is gone: nobody answers there.
  SilentPeer silent_peer();

  /// From a's block to the same place in b's.
  Write write(uint64_t offset, uint64_t size_bytes, CounterKey imm = {});
  bool arrived(uint64_t offset, uint64_t size_bytes);    ///< b has a's bytes there
  bool untouched(uint64_t offset, uint64_t size_bytes);  ///< b has zeros there

  EventRecorder& recorder();
  bool until(const std::function<bool()>& done, Nanos limit = kLong);
  void run_for(Nanos time) { env_->run_for(time); }
  void run_on_wire(Nanos simulated) { env_->run_for(env_->wire_time(simulated)); }
  void wait_idle() { env_->wait_idle(); }
  /// Looks in every step, until the end of its scope.
  class StepHook {
   public:
    explicit StepHook(std::function<void()>& slot) noexcept : slot_(&slot) {}
    StepHook(StepHook&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    ~StepHook() { end(); }
    void end() {
      if (slot_ != nullptr) *slot_ = {};
    }

   private:
    std::function<void()>* slot_;
  };
  [[nodiscard]] StepHook on_each_step(std::function<void()> every_step) {
    step_hook_ = std::move(every_step);
    return StepHook(step_hook_);
  }
  /// Waits for the end with this tag; the end, or a failure of the test.
  Event wait_completion(EventRecorder& completions, uint64_t tag = 0);
  /// Submits and waits for the end.
  template <class Request>
  Event submit_and_wait(Engine& engine, Request request) {
    EventRecorder& completions = recorder();
    request.notify = completions.notify();
    auto op = engine.submit(request);
    EXPECT_TRUE(op) << to_string(op.error().code) << " " << op.error().what;
    return op ? wait_completion(completions) : Event{.code = op.error().code};
  }

  using FaultAction = std::function<void(FaultInjector&)>;
  /// Starts over with short times and with all paths from a to b set up. From here on the warnings
  /// of broken networks are expected.
  void reopen_with_faults(const Config& config = short_config(), const TestEnvOptions& options = {});
  /// Several of every kind, and the trouble at some moments: all end once, within deadline and
  /// drain, and service goes on when it is `over` (none: it never is). Returns how many failed.
  uint32_t every_kind_completes_once(const Config& config, const FaultAction& inject, const FaultAction& repair);
  /// Counted writes with short deadlines, and the trouble at some moments: what is said of each is
  /// so, before and after it is over. Returns what was said.
  struct Reported {
    uint32_t delivered = 0, not_delivered = 0, unknown = 0;
    uint32_t unsplit_unknown = 0;  ///< of those that were not cut: a cut one may be half taken
  };
  Reported each_report_is_true(const FaultAction& inject, const FaultAction& repair);
  /// The same with long ones on a network that can say what it took: all are delivered once.
  void everything_is_delivered_once(const FaultAction& inject, const FaultAction& repair);
  /// Leaves a stopped with writes to b in its NICs, which are cut off and try again for a while.
  void leave_a_zombie(RemoteRegion in, EventRecorder& completions);
  /// Loses b in the middle of things: said once, in time, and to every wait that names it at once.
  void is_lost_once(const FaultAction& inject);
  /// FaultInjector with b while a has work for it, then a closes.
  void close_returns_in_time(const FaultAction& inject);
  /// FaultInjector with b while a writes to b and c: c notices nothing.
  void others_are_served(const FaultAction& inject,
                         const std::function<void(const EventRecorder& to_b)>& check_b);
  /// Whatever happened: a new write from a arrives at the other, once, with all its bytes.
  void expect_service(DuplexHost& to);

  TestEnv& env() { return *env_; }
  FaultInjector& faults() { return env_->faults(); }
  /// Opens an engine on a host whose process died, in the place of the dead one.
  DuplexHost& restart(uint32_t host, const Config& config);
  const RemoteHost& ab() const { return ab_; }
  const Config& config() const { return config_; }

 private:
  void close_all();

  Config config_;
  std::function<void()> step_hook_;
  std::vector<std::unique_ptr<EventRecorder>> recorders_;
  std::unique_ptr<TestEnv> env_;
  std::array<std::unique_ptr<DuplexHost>, TestEnv::kHosts> hosts_;
  RemoteHost ab_;
};

}  // namespace fabric::test

namespace fabric {
// Found by gtest: events and codes print as words.
void PrintTo(Errc code, std::ostream* out);
void PrintTo(Remote remote, std::ostream* out);
void PrintTo(PeerState state, std::ostream* out);
}  // namespace fabric

#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>

#include "harness/event_recorder.h"
#include "harness/host.h"
#include "harness/test_env.h"

// One test body per promise (docs/contracts.md), run on every network. A body sees the public API
// and what its case can do, nothing else: what it needs beyond that is a capability with a name,
// and the case without it prints that name when it is skipped.

namespace fabric::test {

using namespace std::chrono_literals;

/// When faults strike: from the first packet to the last acknowledgements, on every network.
inline constexpr std::array<Nanos, 3> kMoments{1us, 5us, 12us};

/// What a case has beyond the public API. A body asks by REQUIRE_CAP(field).
struct CaseCaps {
  bool two_engines = true;        ///< a and b are two engines, and a third one exists
  bool virtual_time = false;      ///< the clock is a world's: times are exact and long waits free
  bool step_hooks = false;        ///< each_step() calls its hook often while engines make progress
  bool every_step = false;        ///< and the hook runs after every step
  bool lossy_control = false;     ///< the network can lose and repeat control messages
  bool realtime_threads = false;  ///< the network also runs under the threaded runtime
  bool second_network = false;    ///< two networks between the same hosts
  bool overtaking = false;        ///< writes pass each other, which P7 needs
  bool several_rails = false;     ///< a write can be cut
  bool counted_slices = false;    ///< a counted write may go in slices (Caps::slice_safe)
  bool exact_replay = false;      ///< the target can report what it took (Caps::exact_replay)
  bool final_counts = true;       ///< bytes that were counted stay (Caps::count_is_final)

  // The faults that the environment's FaultInjector can inject.
  bool cuts = false;           ///< two hosts are cut off from each other
  bool lost_rails = false;     ///< a NIC fails and comes back
  bool control_apart = false;  ///< control messages pass without any rail
  bool broken_paths = false;
  bool kills = false;        ///< a process dies without a goodbye
  bool stops = false;        ///< a process is stopped and resumed; its NICs do not stop
  bool lost_acks = false;    ///< writes arrive and their sender gets no acknowledgement
  bool not_ready = false;    ///< a receiver takes bytes and no immediates
  bool wrong_rkeys = false;  ///< a write carries an rkey that its target refuses
  bool late_proofs = false;  ///< deregistration and closing paths take time
  bool duplicates = false;   ///< the network delivers packets twice
};

/// One entry of the list in providers.cc.
struct ProviderCase {
  std::string name;
  CaseCaps caps;
  std::function<std::unique_ptr<TestEnv>(const TestEnvOptions&)> make;
};
void PrintTo(const ProviderCase& provider, std::ostream* out);

/// Skips the body, and names the missing capability.
#define REQUIRE_CAP(cap)                                                                          \
  do {                                                                                            \
    if (!GetParam().caps.cap) GTEST_SKIP() << GetParam().name << " has no capability '" #cap "'"; \
  } while (false)

/// Memory of the kind that the last call of use_shared_pages() selected.
void* allocate_test_memory(size_t bytes);
void free_test_memory(void* at) noexcept;
void use_shared_pages(bool shared) noexcept;

/// The bytes of a case: from the heap, or pages that a peer can map. Not a vector, which constructs
/// and destroys a mebibyte byte by byte in unoptimised tests: that took most of a body's time.
class TestBytes {
 public:
  using iterator = std::byte*;
  using const_iterator = const std::byte*;

  TestBytes() = default;
  explicit TestBytes(size_t size)
      : data_(static_cast<std::byte*>(allocate_test_memory(size))), size_(size) {
    std::memset(data_, 0, size);
  }
  TestBytes(const TestBytes& other) : TestBytes(other.size_) {
    if (size_ != 0) std::memcpy(data_, other.data_, size_);
  }
  TestBytes(TestBytes&& other) noexcept { swap(other); }
  TestBytes& operator=(TestBytes other) noexcept {
    swap(other);
    return *this;
  }
  ~TestBytes() {
    if (data_ != nullptr) free_test_memory(data_);
  }

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  iterator begin() noexcept { return data_; }
  iterator end() noexcept { return data_ + size_; }
  const_iterator begin() const noexcept { return data_; }
  const_iterator end() const noexcept { return data_ + size_; }
  std::byte& operator[](size_t index) noexcept { return data_[index]; }
  friend bool operator==(const TestBytes& a, const TestBytes& b) noexcept {
    return a.size_ == b.size_ && (a.size_ == 0 || std::memcmp(a.data_, b.data_, a.size_) == 0);
  }

 private:
  void swap(TestBytes& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Memory of one host and its registration.
struct TestMemory {
  TestBytes bytes;
  MemoryRegion region;  ///< destroyed before the bytes

  LocalRef at(uint64_t offset) const noexcept { return region.at(offset); }
  void fill(uint64_t seed) { test::fill(bytes, seed); }
  void clear() { std::memset(bytes.data(), 0, bytes.size()); }
};

/// One engine with a source and a target.
///
/// Not a Host: the bodies of P12 and P13 revoke the target and go on with the source, the case
/// decides where the memory comes from, and the engine is closed before its regions are destroyed
/// (P22), where a Host does it the other way round.
struct DuplexHost {
  TestMemory out, in;
  Engine engine;  ///< closed first: the regions outlive it, inert
};

class Conformance : public testing::TestWithParam<ProviderCase> {
 protected:
  static constexpr uint64_t kBytes = 1u << 20;
  static constexpr uint64_t kStripe = 4096;  ///< a write of n stripes is cut in n, up to the rails
  static constexpr Nanos kLong = 20s;        ///< bounds a wait that should end much earlier

  static constexpr uint32_t kA = 0, kB = 1, kC = 2;  ///< hosts

  /// Small bounds and small stripes, so that cuts are cheap to see.
  static Config usual_config();
  /// The same with short times. A drain is long enough for a NIC to give up on its own, and the
  /// longest deadline plus its drain is shorter than the time after which a silent peer is lost.
  static Config short_config();

  void SetUp() override;
  void TearDown() override;
  /// Starts over with other engines or another environment.
  void reopen(const Config& config, const TestEnvOptions& options = {});

  /// a writes to b. In a case without two engines they are one engine, with two blocks of memory.
  DuplexHost& a() { return *hosts_[0]; }
  DuplexHost& b() { return GetParam().caps.two_engines ? *hosts_[1] : *hosts_[0]; }
  DuplexHost& c();  ///< opened by the first call; two_engines only
  Engine& ea() { return a().engine; }
  Engine& eb() { return b().engine; }

  /// Connects, waits until both sides have a session, and imports.
  RemoteHost connect(DuplexHost& from, DuplexHost& to);
  std::unique_ptr<DuplexHost> make_host(uint32_t host, const Config& config);
  TestMemory make_memory(Engine& engine, uint64_t size_bytes = kBytes);
  /// An engine that makes no progress, or that is closed: it never answers.
  SilentPeer silent_peer();

  /// From a's memory to the same offset in b's.
  Write write(uint64_t offset, uint64_t size_bytes, CounterKey imm = {});
  bool arrived(uint64_t offset, uint64_t size_bytes);    ///< b has a's bytes there
  bool untouched(uint64_t offset, uint64_t size_bytes);  ///< b has zeros there

  EventRecorder& recorder();
  bool until(const std::function<bool()>& done, Nanos limit = kLong);
  void run_for(Nanos time) { env_->run_for(time); }
  void run_on_wire(Nanos simulated) { env_->run_for(env_->wire_time(simulated)); }
  void wait_idle() { env_->wait_idle(); }
  /// Runs a function in every step, until the end of its scope.
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
  /// Waits for the completion with this tag. Fails the test when there is none.
  Event wait_completion(EventRecorder& completions, uint64_t tag = 0);
  /// Submits and waits for the completion.
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
  void reopen_with_faults(const Config& config = short_config(),
                          const TestEnvOptions& options = {});
  /// Several of every kind, and the fault at some moments: all complete once, within deadline and
  /// drain, and service goes on after `repair` (if there is one). Returns how many failed.
  uint32_t every_kind_completes_once(const Config& config, const FaultAction& inject,
                                     const FaultAction& repair);
  /// Counted writes with short deadlines, and the fault at some moments: what is reported of each
  /// is true, before and after the repair. Returns what was reported.
  struct Reported {
    uint32_t delivered = 0, not_delivered = 0, unknown = 0;
    uint32_t unsplit_unknown = 0;  ///< without the split ones, which may be half taken
  };
  Reported each_report_is_true(const FaultAction& inject, const FaultAction& repair);
  /// The same with long deadlines on a network with exact replay: all are delivered once.
  void everything_is_delivered_once(const FaultAction& inject, const FaultAction& repair);
  /// Stops a with writes to b in its NICs, which are cut off and retry for a while.
  void leave_a_zombie(RemoteRegion in, EventRecorder& completions);
  /// Loses b under load: reported once, in time, and at once to every wait that names b.
  void is_lost_once(const FaultAction& inject);
  /// A fault at b while a has work for it, then a closes.
  void close_returns_in_time(const FaultAction& inject);
  /// A fault at b while a writes to b and c: c is not disturbed.
  void others_are_served(const FaultAction& inject,
                         const std::function<void(const EventRecorder& to_b)>& check_b);
  /// A new write from a arrives at the other, once, with all its bytes.
  void expect_service(DuplexHost& to);

  TestEnv& env() { return *env_; }
  FaultInjector& faults() { return env_->faults(); }
  /// Opens an engine on a host whose process died, as its successor.
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

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
  bool looks = false;             ///< each_step() looks again and again while things happen
  bool every_step = false;        ///< and really sees every step
  bool lossy_control = false;     ///< the network can be told to lose and repeat control messages
  bool realtime_threads = false;  ///< the network also runs under the threaded runtime
  bool second_network = false;    ///< two networks between the same hosts
  bool overtaking = false;        ///< writes pass each other, so that P7 is really put to work
  bool several_rails = false;     ///< a write can be cut
  bool counted_slices = false;    ///< a counted write may go in slices (Caps::slice_safe)
  bool exact_replay = false;      ///< the target can say what it took (Caps::exact_replay)

  // What a body can ask the ground's Trouble for.
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
struct GroundOptions {
  double drop_control = 0, duplicate_control = 0, reorder_control = 0;  ///< lossy_control
  bool realtime_threads = false;
  bool second_network = false;  ///< named "second", after the usual one in the order
  bool trouble = false;         ///< the body will ask for some
};

/// What can be made to go wrong between the hosts of a ground, each from the moment of the call.
/// In words that every network can act on: a cut is a link that is taken down or a filter, a broken
/// path a queue pair in error or a connection that is reset, a stop a signal. A ground overrides
/// what its case declares; the capability stands next to it.
class Trouble {
 public:
  enum class Side { kSender, kTarget };  ///< of a path
  /// Ends what began, and may be called without it.
  enum class Phase { kBegin, kEnd };

  virtual ~Trouble() = default;
  virtual void cut(uint32_t one, uint32_t other, Phase phase);         ///< cuts
  virtual void lose_rail(uint32_t place, uint32_t rail, Phase phase);  ///< lost_rails
  /// One end of the path from one host to another; the other finds out.
  virtual void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side);  ///< broken_paths
  virtual void kill(uint32_t place);                                              ///< kills
  virtual void stop(uint32_t place, Phase phase);                                 ///< stops
  virtual void lose_acks(uint32_t from, uint32_t to, Phase phase);                ///< lost_acks
  virtual void not_ready(uint32_t place, Phase phase);                            ///< not_ready
  virtual void wrong_key(uint32_t from, uint32_t to);   ///< wrong_keys: the next write
  virtual void delay_proofs(uint32_t place, Nanos by);  ///< late_proofs; zero ends it
};

/// An address and a descriptor at which nobody answers.
struct Ghost {
  std::vector<std::byte> address, desc;
};

/// Where the engines of a case live: their hosts, network and time.
class Ground {
 public:
  static constexpr uint32_t kPlaces = 3;

  virtual ~Ground() = default;
  /// Opens one more engine on a host, 0 .. kPlaces - 1.
  virtual Result<Engine> open(uint32_t place, const Config& config) = 0;
  /// Makes progress until done() or for `limit`. True when done() said so.
  virtual bool run_until(const std::function<bool()>& done, Nanos limit) = 0;
  virtual void run_for(Nanos time) = 0;
  /// Longer than anything takes that has no deadline.
  virtual void settle() = 0;
  virtual void each_step(std::function<void()> look) = 0;
  /// For networks where an engine that is gone is known to be gone at once: one that is there and
  /// never says a word. It lives as long as the ground.
  virtual std::optional<Ghost> mute(const Config&) { return std::nullopt; }
  virtual Trouble& trouble();  ///< one that can do nothing, for grounds without any
  /// How long writes take here to come as far as on the simulator in that time.
  virtual Nanos on_the_wire(Nanos simulated) const { return simulated; }
};

/// One line of the list in providers.cc.
struct ProviderCase {
  std::string name;
  CaseCaps caps;
  std::function<std::unique_ptr<Ground>(const GroundOptions&)> make;
};
void PrintTo(const ProviderCase& provider, std::ostream* out);

/// Skips the body, and says for want of what.
#define REQUIRE_CAP(cap)                                                                          \
  do {                                                                                            \
    if (!GetParam().caps.cap) GTEST_SKIP() << GetParam().name << " has no capability '" #cap "'"; \
  } while (false)

/// Memory of the kind that the last call of use_shared_blocks() asked for.
void* take_block_memory(size_t bytes);
void free_block_memory(void* at) noexcept;
void use_shared_blocks(bool shared) noexcept;

/// What arrived by callback, in order. The fixture owns it, so that it outlives every engine.
class Recorder {
 public:
  struct Seen {
    Event event{};
    std::vector<std::byte> bytes{};  ///< of a message, copied
  };

  Notify notify(uint64_t tag = 0) noexcept { return Notify::call<&Recorder::on>(this, tag); }
  const std::vector<Seen>& seen() const noexcept { return seen_; }
  uint32_t total() const noexcept { return static_cast<uint32_t>(seen_.size()); }
  uint32_t count(uint64_t tag) const;
  uint32_t count(EventKind kind) const;
  const Event* find(uint64_t tag) const;  ///< the first with this tag
  const Event* find(EventKind kind) const;
  std::vector<PeerState> states(PeerId peer) const;  ///< that a peer went through, in order
  std::function<void(const Event&)> also{};          ///< called inside the callback

 private:
  void on(const Event& event);
  std::vector<Seen> seen_;
};

/// Where the blocks of a case come from: the heap, or pages that a peer can map.
template <class T>
struct BlockMemory {
  using value_type = T;
  BlockMemory() = default;
  template <class U>
  BlockMemory(const BlockMemory<U>&) noexcept {}
  T* allocate(size_t n) { return static_cast<T*>(take_block_memory(n * sizeof(T))); }
  void deallocate(T* at, size_t) noexcept { free_block_memory(at); }
  friend bool operator==(const BlockMemory&, const BlockMemory&) { return true; }
};
using BlockBytes = std::vector<std::byte, BlockMemory<std::byte>>;

/// Memory of one end and its registration.
struct Block {
  BlockBytes bytes;
  MemoryRegion region;  ///< goes before the bytes

  LocalRef at(uint64_t offset) const noexcept { return region.at(offset); }
  void fill(uint64_t seed);
  void clear();
};

/// One engine with something to send and a place to receive.
struct End {
  Block out, in;
  Engine engine;  ///< closed first: what outlives it is inert
};

/// How one end reaches another.
struct Way {
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
  void reopen(const Config& config, const GroundOptions& options = {});

  /// a writes to b. In a case without two engines both are the same one, its two blocks are not.
  End& a() { return *ends_[0]; }
  End& b() { return GetParam().caps.two_engines ? *ends_[1] : *ends_[0]; }
  End& c();  ///< opened by the first call; two_engines only
  Engine& ea() { return a().engine; }
  Engine& eb() { return b().engine; }

  /// Connects, waits until both know it, and imports.
  Way way(End& from, End& to);
  std::unique_ptr<End> make_end(uint32_t place, const Config& config);
  Block make_block(Engine& engine, uint64_t size_bytes = kBytes);
  /// Of an engine that nobody turns, or that is gone: nobody answers there.
  Ghost ghost();

  /// From a's block to the same place in b's.
  Write write(uint64_t offset, uint64_t size_bytes, CounterKey imm = {});
  bool arrived(uint64_t offset, uint64_t size_bytes);    ///< b has a's bytes there
  bool untouched(uint64_t offset, uint64_t size_bytes);  ///< b has zeros there

  Recorder& recorder();
  bool until(const std::function<bool()>& done, Nanos limit = kLong);
  void run_for(Nanos time) { ground_->run_for(time); }
  void let_fly(Nanos simulated) { ground_->run_for(ground_->on_the_wire(simulated)); }
  void settle() { ground_->settle(); }
  /// Looks in every step, until the end of its scope.
  class Look {
   public:
    explicit Look(std::function<void()>& slot) noexcept : slot_(&slot) {}
    Look(Look&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    ~Look() { end(); }
    void end() {
      if (slot_ != nullptr) *slot_ = {};
    }

   private:
    std::function<void()>* slot_;
  };
  [[nodiscard]] Look look(std::function<void()> every_step) {
    look_ = std::move(every_step);
    return Look(look_);
  }
  /// Waits for the end with this tag; the end, or a failure of the test.
  Event ended(Recorder& ends, uint64_t tag = 0);
  /// Submits and waits for the end.
  template <class Request>
  Event end_of(Engine& engine, Request request) {
    Recorder& ends = recorder();
    request.notify = ends.notify();
    auto op = engine.submit(request);
    EXPECT_TRUE(op) << to_string(op.error().code) << " " << op.error().what;
    return op ? ended(ends) : Event{.code = op.error().code};
  }

  using Act = std::function<void(Trouble&)>;
  /// Starts over with short times and with all paths from a to b set up. From here on the warnings
  /// of broken networks are expected.
  void expect_trouble(const Config& config = short_config(), const GroundOptions& options = {});
  /// Several of every kind, and the trouble at some moments: all end once, within deadline and
  /// drain, and service goes on when it is `over` (none: it never is). Returns how many failed.
  uint32_t every_kind_ends_once(const Config& config, const Act& happens, const Act& over);
  /// Counted writes with short deadlines, and the trouble at some moments: what is said of each is
  /// so, before and after it is over. Returns what was said.
  struct Said {
    uint32_t delivered = 0, not_delivered = 0, unknown = 0;
    uint32_t whole_unknown = 0;  ///< of those that were not cut: a cut one may be half taken
  };
  Said each_end_is_true(const Act& happens, const Act& over);
  /// The same with long ones on a network that can say what it took: all are delivered once.
  void everything_is_delivered_once(const Act& happens, const Act& over);
  /// Leaves a stopped with writes to b in its NICs, which are cut off and try again for a while.
  void leave_a_zombie(RemoteRegion in, Recorder& ends);
  /// Loses b in the middle of things: said once, in time, and to every wait that names it at once.
  void is_lost_once(const Act& happens);
  /// Trouble with b while a has work for it, then a closes.
  void close_ends_in_time(const Act& happens);
  /// Trouble with b while a writes to b and c: c notices nothing.
  void others_are_served(const Act& happens,
                         const std::function<void(const Recorder& to_b)>& look_at_b);
  /// Whatever happened: a new write from a arrives at the other, once, with all its bytes.
  void expect_service(End& to);

  Ground& ground() { return *ground_; }
  Trouble& trouble() { return ground_->trouble(); }
  /// Opens an engine on a host whose process died, in the place of the dead one.
  End& restart(uint32_t place, const Config& config);
  const Way& ab() const { return ab_; }
  const Config& config() const { return config_; }

 private:
  void close_all();

  Config config_;
  std::function<void()> look_;
  std::vector<std::unique_ptr<Recorder>> recorders_;
  std::unique_ptr<Ground> ground_;
  std::array<std::unique_ptr<End>, Ground::kPlaces> ends_;
  Way ab_;
};

}  // namespace fabric::test

namespace fabric {
// Found by gtest: events and codes print as words.
void PrintTo(Errc code, std::ostream* out);
void PrintTo(Remote remote, std::ostream* out);
void PrintTo(PeerState state, std::ostream* out);
}  // namespace fabric

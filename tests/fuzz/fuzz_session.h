#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "fuzz/completion_auditor.h"
#include "fuzz/hostile.h"
#include "fuzz/sequence.h"
#include "harness/host.h"

// The engine under test, an honest peer, and two hostile peers. Whatever the hostile peers send:
// every accepted operation completes once and in time, and between the engine and the honest peer
// every byte and every count arrives.

namespace fabric::fuzz {

using namespace std::chrono_literals;

class FuzzSession {
 public:
  FuzzSession(const Setting& setting, InitialState initial);
  FuzzSession(const FuzzSession&) = delete;
  FuzzSession& operator=(const FuzzSession&) = delete;

  void act(const FuzzAction& action);
  /// Removes the hostile peers, unless Setting::kAbrupt, and closes the engine.
  void finish();

 private:
  static constexpr uint64_t kSlotBytes = 32;  ///< of the honest exchange, one for each round
  static constexpr uint64_t kSlots = kActionsMax + 2;
  static constexpr Nanos kDrain = 200ms, kPeerTimeout = 200ms, kLost = 500ms, kTimeoutMax = 1s;
  static constexpr uint64_t kSharedBytes = 4096;
  static constexpr uint16_t kHonestChannel = 9;

  /// One side of the honest exchange. The first half of its memory is sent, the second is written.
  struct Side : test::Host {
    Counter counter;
    test::RemoteHost other{};
    std::unique_ptr<test::EventRecorder> received = std::make_unique<test::EventRecorder>();
    Subscription listener{};
  };
  /// Memory that a hostile peer may write to, until a fence or deregistration.
  struct Shared {
    Bytes bytes;
    MemoryRegion memory;
    Bytes wire_rkey{};
    std::optional<Bytes> snapshot{};  ///< the bytes when a fence or deregistration was proved
    uint64_t paths_then = 0;          ///< a path that was started later belongs to a later session
    bool deregistered = false;
  };
  /// Memory that a hostile peer may write to under one grant only, until its Revoke.
  struct Granted {
    Bytes bytes;
    MemoryRegion memory;
    GrantId id{};
    Bytes wire_rkey{};
    std::optional<Bytes> snapshot{};  ///< the bytes when the Revoke was proved
  };

  Side open_side(uint64_t engine_id, uint32_t node);
  void run_for(Nanos time);
  void connect_honest();
  void connect_hostile();
  void share(uint32_t who);
  void grant(uint32_t who);
  PeerId peer_of(uint32_t who);

  void local(const FuzzAction& action);
  void local_transfer(const FuzzAction& action, uint32_t who, Nanos timeout);
  void local_counter(const FuzzAction& action, uint32_t who, Nanos timeout);
  void local_control(const FuzzAction& action, uint32_t who, Nanos timeout);
  void local_region(const FuzzAction& action, uint32_t who, Nanos timeout);
  void local_revoke(const FuzzAction& action, uint32_t who, Nanos timeout);
  void take_snapshot(uint32_t who, size_t which, bool deregistered);
  void honest_round();
  void exchange(Side& from, Side& to);
  void fault(const FuzzAction& action);

  void check_bounds() const;
  void check_snapshots() const;
  void check_honest(const Side& from, const Side& to, bool idle) const;
  void check_all(bool idle) const;

  const Setting setting_;
  std::shared_ptr<sim::World::Impl> world_;
  CompletionAuditor auditor_, honest_auditor_;
  std::vector<std::unique_ptr<std::array<CounterKey, 8>>>
      resolved_;                    ///< until the engine is closed
  std::array<uint32_t, 4> node_{};  ///< the engine's, the honest peer's, the hostile ones'
  std::optional<Side> engine_, honest_;
  std::optional<Counter> secret_;        ///< its counter key was given to no peer
  std::vector<Counter> given_counters_;  ///< one for each hostile peer
  std::vector<Counter> counters_;
  std::optional<Inbox> inbox_;
  std::optional<Subscription> small_listener_;
  std::array<std::unique_ptr<Hostile>, 2> hostile_;
  std::array<std::vector<std::unique_ptr<Shared>>, 2> shared_;  ///< the last is in use
  std::array<std::vector<std::unique_ptr<Granted>>, 2> granted_;
  std::array<PeerId, 2> peer_{};
  std::array<RemoteRegion, 2> target_{};
  uint64_t rounds_ = 0;
  uint64_t heap_before_ = 0;
  bool closing_ = false;
};

}  // namespace fabric::fuzz

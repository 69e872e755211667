#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <fabric/engine.h>
#include <fabric/kv_directory.h>

#include "base/rng.h"
#include "workloads/kv/seed_table.h"
#include "workloads/kv/seed_view.h"

namespace fabric::kv {

/// A delay that doubles from attempt to attempt, with a random half, so that many members that lost
/// the same seed do not come back at the same instant.
class RetryDelay {
 public:
  void reset() noexcept { delay_ = {}; }
  Nanos next(const EmbeddedOptions& options, Rng& rng);

 private:
  Nanos delay_{};
};

/// This engine's side of the session with one seed.
struct SeedConnection {
  std::vector<std::byte> address{};
  bool open = false;
  PeerId peer{};        ///< while open
  Nanos due{};          ///< not open: when to connect; open: when to send what is due
  Nanos refresh_due{};  ///< when to repeat announcement and watch
  RetryDelay delay{};
  bool announce_due = false, leave_due = false, watch_due = false;
  uint64_t sending = 0;  ///< the tag of the one message in flight; 0: none
  uint32_t announcement = 0;
  bool announced = false;
  SeedView view{};
};

/// An engine that watches this seed. One message at a time is in flight: changes made before it
/// has arrived are sent together in the next one, so a slow watcher costs the seed no memory.
struct ViewWatcher {
  WatchPosition has{};
  uint64_t sending = 0;       ///< the tag of the message in flight; 0: none
  uint64_t sending_upto = 0;  ///< its revision
  bool sending_warmed_up = false;
  bool has_warmed_up = false;
  Nanos due{};
  RetryDelay delay{};
  uint32_t message_bytes_max = 0;
};

/// The pending answer to a session: to its latest announcement only, one at a time.
struct OwedAnswer {
  AnswerMessage message{};
  bool due = false;
  uint64_t sending = 0;
};

/// The state of EmbeddedDirectory. All events arrive in one inbox, and poll() does all the work.
struct EmbeddedDirectory::Impl {
  Impl(Engine& on, const EmbeddedOptions& chosen, Inbox box);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> listen();
  void set_seeds(std::vector<std::vector<std::byte>> seeds);
  bool poll();

  // Events
  void take(const Event& event);
  void take_sent(const Event& event);
  void take_peer(const Event& event);
  void take_message(const Event& event);
  void take_announcement(PeerId from, const AnnounceMessage& message);
  void take_answer(PeerId from, const AnswerMessage& message);
  void take_watch(PeerId from, const WatchMessage& message);
  void take_view(PeerId from, const ViewMessage& message);
  Errc list(PeerId from, const Member& member);
  void connection_lost(SeedConnection& connection);

  // Sending what is due
  void connect(SeedConnection& connection);
  void serve_connection(SeedConnection& connection);
  void serve_watcher(PeerId peer, ViewWatcher& watcher);
  void serve_answer(PeerId peer, OwedAnswer& answer);
  bool behind(const ViewWatcher& watcher) const;
  /// The tag of the message, or 0 when the engine has no room for it. `lost`: the session is.
  uint64_t send(PeerId peer, const DirectoryMessage& message, bool& lost);
  void set_timer();
  Nanos next_due() const;

  void update_view();
  MemberMap merged(bool& stale) const;
  SeedConnection* connection_of(PeerId peer);

  Engine& engine;
  const EmbeddedOptions options;
  Inbox inbox;
  std::vector<Subscription> subscriptions{};
  std::array<Event, 64> events{};

  std::vector<SeedConnection> connections{};
  MemberMap kept{};  ///< listed by seeds that are no longer in the list, until a view is fresh
  std::optional<Member> self{};
  SeedTable table;
  std::map<PeerId, ViewWatcher> watchers{};
  std::map<PeerId, OwedAnswer> answers{};
  bool warmed_up = false;
  Nanos warm_up_due{};

  OpId timer{};
  Nanos timer_due = Nanos::max();
  Nanos wake_due{};    ///< before it, and without an event, there is nothing to do
  bool kicked = true;  ///< the next poll() has work, whatever the time
  uint64_t next_tag;
  uint32_t announcements = 0;
  Rng rng;
  Nanos now{};

  View view{};
  uint64_t revision_polled = 0;
  EmbeddedStats counted{};
};

}  // namespace fabric::kv

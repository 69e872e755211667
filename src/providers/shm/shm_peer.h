#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fabric/result.h>

#include "base/unique_fd.h"
#include "providers/shm/writer_slots.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/mapping.h"
#include "providers/shm/pull.h"
#include "providers/shm/socket.h"
#include "providers/shm/wire.h"

namespace fabric::shm {

/// One engine on this host that is talked to: the line out, the line in, and what it shows.
///
/// Lifetime: shared by the network and the paths, so that a path outlives the lines.
/// Threads: the worker only.
class Neighbour {
 public:
  explicit Neighbour(Address address) noexcept : address_(std::move(address)) {}
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  const Address& address() const noexcept { return address_; }

  // The line out.

  /// Connects if it has to, and greets. False: not now.
  struct Self {
    const Greeting* greeting = nullptr;  ///< `line` is filled in
    int cards = -1, front = -1;
    Front* own = nullptr;
  };
  bool connect(const Self& self);
  /// Why the last attempt failed, as connect_to() says it; kOk when it did not.
  Error obstacle() const noexcept { return obstacle_; }
  bool connected() const noexcept { return static_cast<bool>(out_); }
  /// Behind everything that waits already. A frame that must arrive waits when there is no room;
  /// who lets thousands wait without reading any is hung up on.
  void send(const Frame& frame, std::shared_ptr<const UniqueFd> descriptor = nullptr);
  /// At once, and only when nothing waits. False: no room.
  bool send_now(std::span<const std::byte> head, std::span<const std::byte> rest);
  bool flush();  ///< false: something still waits
  bool waits() const noexcept { return !pending_.empty(); }
  void hang_up() noexcept;

  /// After something was published for it: a wake if it sleeps, once for each sleep.
  void wake_if_asleep() noexcept {
    if (!front_) return;
    // Without this fence the sleeper has called membarrier between its bell and its second look.
    if (needs_fence_) std::atomic_thread_fence(std::memory_order_seq_cst);
    // Relaxed: either this load sees the bell, or the second look sees what was published.
    const uint64_t bell = their_front()->bell.load(std::memory_order_relaxed);
    if ((bell & 1) != 0 && bell != rung_) wake(bell);
  }

  // The line in.

  /// Its greeting. Fails with kBadFormat, kExhausted, kPermission (somebody who uses its name),
  /// kPeerLost.
  Result<void> greeted(UniqueFd socket, const Greeting& greeting, Credentials who,
                       std::span<UniqueFd> descriptors);
  int in() const noexcept { return in_.get(); }
  bool heard_of() const noexcept { return static_cast<bool>(front_); }
  /// Frames it has sent and we have not looked for.
  bool has_mail() noexcept {
    if (!in_) return false;
    // Pairs with the release in flush(): the frame is in the socket.
    const uint32_t sent = their_front()->sent[their_line_].load(std::memory_order_acquire);
    if (sent == seen_) return false;
    seen_ = sent;
    return true;
  }
  /// What has_mail() would say, and says later all the same.
  bool may_have_mail() const noexcept {
    return in_ && their_front()->sent[their_line_].load(std::memory_order_relaxed) != seen_;
  }
  /// Not everything was read: the next has_mail() says so.
  void look_again() noexcept { --seen_; }
  void line_ended() noexcept { in_.reset(); }
  /// It was here and has hung up: it has no path to or from here any more.
  bool left() const noexcept { return front_ && !in_; }

  /// The process is gone for certain, and nothing of it will ever be stored again.
  bool gone() const noexcept { return gone_; }
  /// Its engine listens no more, and will not do so again.
  bool refuses() const noexcept { return refuses_; }
  /// Its engine is over, whatever else its process does: all that it has said was heard.
  bool over() const noexcept { return gone_ || (refuses_ && !in_); }
  /// Finds out. Costs a few loads, or a system call when nobody of it holds a card.
  bool look_for_death() noexcept;
  /// No thread of the process is left, which is later than gone(): a death shows on one thread
  /// while others may be at their last stores. A system call.
  bool ended() noexcept;
  /// Of one that is over and that no path needs: its memory is given back, however long somebody
  /// remembers it.
  void forget() noexcept;

  const Front* their_front() const noexcept { return front_.as<const Front>(); }
  /// Shared: a fence needs them for longer than anybody remembers the neighbour.
  const std::shared_ptr<const PeerCards>& cards() const noexcept { return cards_; }
  /// Each section that stores into its memory, and each publication, needs a fence of its own.
  bool needs_fence() const noexcept { return needs_fence_; }

  // Its memory.

  struct View {
    enum class Way : uint8_t { kUnknown, kMapped, kPulled, kAsked, kStale };
    Way way = Way::kUnknown;
    uint32_t generation = 0;
    uint64_t size_bytes = 0;
    std::byte* base = nullptr;                      ///< kMapped
    const std::atomic<uint64_t>* permit = nullptr;  ///< kMapped
  };
  /// What a key leads to. kAsked: its pages are on their way.
  const View& view(uint64_t remote_key) {
    const auto index = static_cast<uint32_t>(remote_key);
    const auto generation = static_cast<uint32_t>(remote_key >> 32);
    if (index < views_.size()) {
      const View& known = views_[index];
      const bool settled = known.way == View::Way::kMapped || known.way == View::Way::kPulled;
      if (known.generation == generation && settled) return known;
    }
    return find_view(index, generation);
  }
  void block_came(const Block& block, UniqueFd descriptor);
  void block_gone(uint64_t block) noexcept;
  /// Makes a stretch of a newly mapped block ready to be stored to: faults page by page would slow
  /// down the first writes everywhere. False: nothing is left.
  bool populate_some() noexcept;

  Puller& puller() noexcept { return puller_; }
  /// Whether its memory can be read, as far as was tried.
  enum class Reach : uint8_t { kUntried, kAsked, kYes, kNo };
  Reach reach = Reach::kUntried;
  Beacon beacon{};

  std::set<uint64_t> shown{};  ///< own blocks whose descriptor it got
  bool has_pages = false;      ///< it ever got one: it may be storing, and fences ask it
  bool expected = false;       ///< its line is among those that are read next
  /// Paths of it that ended here, by lane and number, so that a late copy of the hello is known.
  std::deque<std::pair<uint32_t, uint32_t>> ended_paths{};
  static constexpr uint32_t kNoLine = UINT32_MAX;
  uint32_t line = kNoLine;  ///< place of the line out in the own Front::sent
  uint32_t links = 0;
  uint32_t paths = 0;    ///< in both directions
  bool mourned = false;  ///< its links were told that it is over

 private:
  struct Waiting {
    std::vector<std::byte> head;
    std::shared_ptr<const UniqueFd> descriptor;  ///< shared: the same pages may wait many times
  };
  const View& find_view(uint32_t index, uint32_t generation);
  void wake(uint64_t bell) noexcept;

  const Address address_;
  Error obstacle_{};
  UniqueFd out_;
  Front* own_front_ = nullptr;
  std::deque<Waiting> pending_;
  uint64_t rung_ = 0;  ///< the sleep that it was woken from last

  UniqueFd in_;
  UniqueFd process_;  ///< a pidfd; none where it cannot be had
  std::shared_ptr<const PeerCards> cards_;
  Mapping front_;
  uint64_t front_file_ = 0;  ///< its inode: a second line must show the same
  uint32_t their_line_ = 0;
  uint32_t seen_ = 0;
  bool needs_fence_ = true;
  bool gone_ = false;
  bool ended_ = false;
  bool refuses_ = false;

  std::vector<View> views_;
  View none_{};
  std::map<uint64_t, Mapping> blocks_;
  std::map<uint64_t, uint64_t> unpopulated_;  ///< of those, with how far they are
  std::map<uint64_t, uint64_t> asked_;        ///< blocks, and the key for which
  /// Blocks that could not be mapped, with the key that led there: another key may ask again.
  std::set<std::pair<uint64_t, uint64_t>> unusable_;
  Puller puller_;
};

}  // namespace fabric::shm

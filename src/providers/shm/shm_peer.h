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

/// One engine on this host that is talked to: the connection out, the connection in, and what it shows.
///
/// Lifetime: shared by the network and the paths, so that a path outlives the lines.
/// Threads: the worker only.
class ShmPeer {
 public:
  explicit ShmPeer(Address address) noexcept : address_(std::move(address)) {}
  ShmPeer(const ShmPeer&) = delete;
  ShmPeer& operator=(const ShmPeer&) = delete;

  const Address& address() const noexcept { return address_; }

  // The connection out.

  /// Connects if it has to, and greets. False: not now.
  struct Self {
    const Greeting* greeting = nullptr;  ///< `connection` is filled in
    int writer_slots = -1, header = -1;
    SharedHeader* own = nullptr;
  };
  bool connect(const Self& self);
  /// Why the last attempt failed, as connect_to() says it; kOk when it did not.
  Error connect_error() const noexcept { return connect_error_; }
  bool connected() const noexcept { return static_cast<bool>(out_); }
  /// Behind everything that waits already. A frame that must arrive waits when there is no room;
  /// who lets thousands wait without reading any is hung up on.
  void send(const Frame& frame, std::shared_ptr<const UniqueFd> descriptor = nullptr);
  /// At once, and only when nothing waits. False: no room.
  bool send_now(std::span<const std::byte> head, std::span<const std::byte> rest);
  bool flush();  ///< false: something still waits
  bool has_queued_frames() const noexcept { return !send_queue_.empty(); }
  void disconnect() noexcept;

  /// After something was published for it: a wake if it sleeps, once for each sleep.
  void wake_if_asleep() noexcept {
    if (!header_) return;
    // Without this fence the sleeper has called membarrier between its sleep_epoch and its second look.
    if (needs_fence_) std::atomic_thread_fence(std::memory_order_seq_cst);
    // Relaxed: either this load sees the sleep_epoch, or the second look sees what was published.
    const uint64_t sleep_epoch = their_header()->sleep_epoch.load(std::memory_order_relaxed);
    if ((sleep_epoch & 1) != 0 && sleep_epoch != woken_epoch_) wake(sleep_epoch);
  }

  // The connection in.

  /// Its greeting. Fails with kBadFormat, kExhausted, kPermission (somebody who uses its name),
  /// kPeerLost.
  Result<void> accept_greeting(UniqueFd socket, const Greeting& greeting, Credentials who,
                       std::span<UniqueFd> descriptors);
  int in() const noexcept { return in_.get(); }
  bool has_greeted() const noexcept { return static_cast<bool>(header_); }
  /// Frames it has sent and we have not looked for.
  bool has_frames() noexcept {
    if (!in_) return false;
    // Pairs with the release in flush(): the frame is in the socket.
    const uint32_t sent = their_header()->frames_sent[their_connection_].load(std::memory_order_acquire);
    if (sent == frames_seen_) return false;
    frames_seen_ = sent;
    return true;
  }
  /// What has_frames() would say, and says later all the same.
  bool may_have_frames() const noexcept {
    return in_ && their_header()->frames_sent[their_connection_].load(std::memory_order_relaxed) != frames_seen_;
  }
  /// Not everything was read: the next has_frames() says so.
  void recheck_frames() noexcept { --frames_seen_; }
  void close_inbound() noexcept { in_.reset(); }
  /// It was here and has hung up: it has no path to or from here any more.
  bool disconnected() const noexcept { return header_ && !in_; }

  /// The process is gone for certain, and nothing of it will ever be stored again.
  bool dead() const noexcept { return dead_; }
  /// Its engine listens no more, and will not do so again.
  bool stopped_listening() const noexcept { return stopped_listening_; }
  /// Its engine is over, whatever else its process does: all that it has said was heard.
  bool closed() const noexcept { return dead_ || (stopped_listening_ && !in_); }
  /// Finds out. Costs a few loads, or a system call when nobody of it holds a slot.
  bool check_dead() noexcept;
  /// No thread of the process is left, which is later than dead(): a death shows on one thread
  /// while others may be at their last stores. A system call.
  bool exited() noexcept;
  /// Of one that is over and that no path needs: its memory is given back, however long somebody
  /// remembers it.
  void release_resources() noexcept;

  const SharedHeader* their_header() const noexcept { return header_.as<const SharedHeader>(); }
  /// Shared: a fence needs them for longer than anybody remembers the peer.
  const std::shared_ptr<const PeerWriterSlots>& writer_slots() const noexcept { return writer_slots_; }
  /// Each section that stores into its memory, and each publication, needs a fence of its own.
  bool needs_fence() const noexcept { return needs_fence_; }

  // Its memory.

  struct RkeyView {
    enum class Access : uint8_t { kUnknown, kMapped, kPulled, kRequested, kStale };
    Access access = Access::kUnknown;
    uint32_t generation = 0;
    uint64_t size_bytes = 0;
    std::byte* base = nullptr;                      ///< kMapped
    const std::atomic<uint64_t>* validity_epoch = nullptr;  ///< kMapped
  };
  /// What a rkey leads to. kAsked: its pages are on their way.
  const RkeyView& rkey_view(uint64_t remote_key) {
    const auto index = static_cast<uint32_t>(remote_key);
    const auto generation = static_cast<uint32_t>(remote_key >> 32);
    if (index < views_.size()) {
      const RkeyView& known = views_[index];
      const bool resolved = known.access == RkeyView::Access::kMapped || known.access == RkeyView::Access::kPulled;
      if (known.generation == generation && resolved) return known;
    }
    return find_rkey_view(index, generation);
  }
  void block_received(const BlockReply& block, UniqueFd descriptor);
  void block_released(uint64_t block) noexcept;
  /// Makes a stretch of a newly mapped block ready to be stored to: faults page by page would slow
  /// down the first writes everywhere. False: nothing is left.
  bool populate_some() noexcept;

  Puller& puller() noexcept { return puller_; }
  /// Whether its memory can be read, as far as was tried.
  enum class ReadAccess : uint8_t { kUntried, kRequested, kGranted, kDenied };
  ReadAccess read_access = ReadAccess::kUntried;
  Beacon beacon{};

  std::set<uint64_t> shared_blocks{};  ///< own blocks whose descriptor it got
  bool ever_shared = false;      ///< it ever got one: it may be storing, and fences ask it
  bool read_queued = false;       ///< its connection is among those that are read next
  /// Paths of it that ended here, by lane and number, so that a late copy of the hello is known.
  std::deque<std::pair<uint32_t, uint32_t>> closed_paths{};
  static constexpr uint32_t kNoConnection = UINT32_MAX;
  uint32_t connection = kNoConnection;  ///< place of the connection out in the own SharedHeader::frames_sent
  uint32_t links = 0;
  uint32_t paths = 0;    ///< in both directions
  bool loss_reported = false;  ///< its links were told that it is over

 private:
  struct QueuedFrame {
    std::vector<std::byte> head;
    std::shared_ptr<const UniqueFd> descriptor;  ///< shared: the same pages may wait many times
  };
  const RkeyView& find_rkey_view(uint32_t index, uint32_t generation);
  void wake(uint64_t sleep_epoch) noexcept;

  const Address address_;
  Error connect_error_{};
  UniqueFd out_;
  SharedHeader* own_header_ = nullptr;
  std::deque<QueuedFrame> send_queue_;
  uint64_t woken_epoch_ = 0;  ///< the sleep that it was woken from last

  UniqueFd in_;
  UniqueFd pidfd_;  ///< a pidfd; none where it cannot be had
  std::shared_ptr<const PeerWriterSlots> writer_slots_;
  Mapping header_;
  uint64_t header_inode_ = 0;  ///< its inode: a second connection must show the same
  uint32_t their_connection_ = 0;
  uint32_t frames_seen_ = 0;
  bool needs_fence_ = true;
  bool dead_ = false;
  bool exited_ = false;
  bool stopped_listening_ = false;

  std::vector<RkeyView> views_;
  RkeyView none_{};
  std::map<uint64_t, Mapping> blocks_;
  std::map<uint64_t, uint64_t> unpopulated_;  ///< of those, with how far they are
  std::map<uint64_t, uint64_t> requested_;        ///< blocks, and the rkey for which
  /// Blocks that could not be mapped, with the rkey that led there: another rkey may ask again.
  std::set<std::pair<uint64_t, uint64_t>> unusable_;
  Puller puller_;
};

}  // namespace fabric::shm

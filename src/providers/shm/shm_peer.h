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
#include "providers/shm/arrivals.h"
#include "providers/shm/mapping.h"
#include "providers/shm/pull.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/socket.h"
#include "providers/shm/wire.h"
#include "providers/shm/writer_slots.h"

namespace fabric::shm {

/// Another engine on this host. Owns the two sockets between us (we write to the outgoing one, it
/// writes to the incoming one), the mappings of its SharedHeader, writer slots and blocks of shared
/// pages, and the Puller that reads its other memory.
///
/// States: created from an address; connected() once our socket is open; has_greeted() once its
///   greeting gave us its memory; disconnected() when it closed its socket; closed() when its
///   engine is gone for good; dead() when its process is.
/// Lifetime: shared by the ShmNetwork and the paths, because a path may outlive the connections.
/// Threads: the worker only, under the engine's state lock.
class ShmPeer {
 public:
  explicit ShmPeer(Address address) noexcept : address_(std::move(address)) {}
  ShmPeer(const ShmPeer&) = delete;
  ShmPeer& operator=(const ShmPeer&) = delete;

  const Address& address() const noexcept { return address_; }

  // Outgoing connection.

  /// What the greeting says about us.
  struct Self {
    const Greeting* greeting = nullptr;  ///< connect() fills in `connection`
    int writer_slots = -1, header = -1;
    SharedHeader* own = nullptr;
  };
  /// Connects and sends the greeting. False: failed, try again later.
  bool connect(const Self& self);
  /// The error of the last connect(), as from connect_to(); kOk if it succeeded.
  Error connect_error() const noexcept { return connect_error_; }
  bool connected() const noexcept { return static_cast<bool>(out_); }
  /// Reliable, in order: the frame is queued while the socket is full. A peer that lets too many
  /// frames queue up is disconnected.
  void send(const Frame& frame, std::shared_ptr<const UniqueFd> descriptor = nullptr);
  /// Sends now or not at all. False: frames are queued, or the socket is full.
  bool send_now(std::span<const std::byte> head, std::span<const std::byte> rest);
  bool flush();  ///< false: some frames remain queued
  bool has_queued_frames() const noexcept { return !send_queue_.empty(); }
  void disconnect() noexcept;

  /// The fence between publishing something for it and reading what it published before a sleep.
  void publication_fence() const noexcept {
    if (needs_barrier_) {
      full_fence();
    } else {
      light_fence();  // the sleeper calls membarrier before its last check for work
    }
  }
  /// Call after publishing something for it: its sleep epoch if it sleeps and was not woken yet,
  /// else 0.
  uint64_t unwoken_sleep() const noexcept {
    if (!header_) return 0;
    publication_fence();
    // Relaxed: either this load sees the odd epoch, or the last check sees what was published.
    const uint64_t sleep_epoch = their_header()->sleep_epoch.load(std::memory_order_relaxed);
    return (sleep_epoch & 1) != 0 && sleep_epoch != woken_epoch_ ? sleep_epoch : 0;
  }
  /// Sends a wake frame.
  void wake(uint64_t sleep_epoch) noexcept;
  /// Call after publishing something for it: sends a wake frame if it sleeps, once per sleep.
  void wake_if_asleep() noexcept {
    if (const uint64_t sleep_epoch = unwoken_sleep(); sleep_epoch != 0) wake(sleep_epoch);
  }
  /// Counts immediates that were published for it, after unwoken_sleep(). True: they wake it.
  bool arrivals_wake(uint64_t imms) noexcept {
    return !arrivals_ ||
           shm::arrivals_wake(arrivals_.as<ArrivalCount>()->arrived, their_header()->wake_at, imms);
  }
  /// It sent its ArrivalCount. Without it, or if it cannot be mapped, every arrival wakes.
  void arrivals_received(UniqueFd descriptor);

  // Incoming connection.

  /// Takes over the socket and maps the memory of a greeting. Fails with kBadFormat, kExhausted,
  /// kPermission (another process uses its name), kPeerLost.
  Result<void> accept_greeting(UniqueFd socket, const Greeting& greeting, Credentials who,
                               std::span<UniqueFd> descriptors);
  int in() const noexcept { return in_.get(); }
  bool has_greeted() const noexcept { return static_cast<bool>(header_); }
  /// It has sent frames since the last call that returned true.
  bool has_frames() noexcept {
    if (!in_) return false;
    // Pairs with the release in flush(), which follows the send.
    const uint32_t sent =
        their_header()->frames_sent[their_connection_].load(std::memory_order_acquire);
    if (sent == frames_seen_) return false;
    frames_seen_ = sent;
    return true;
  }
  /// The same without consuming it.
  bool may_have_frames() const noexcept {
    return in_ && their_header()->frames_sent[their_connection_].load(std::memory_order_relaxed) !=
                      frames_seen_;
  }
  /// Some frames were left unread: the next has_frames() returns true.
  void recheck_frames() noexcept { --frames_seen_; }
  void close_inbound() noexcept { in_.reset(); }
  /// It greeted and later closed its socket: it has no path to or from us any more.
  bool disconnected() const noexcept { return header_ && !in_; }

  /// Its process is known to be dead or dying (exec() included).
  bool dead() const noexcept { return dead_; }
  /// Its engine has closed its listening socket; engine names are never reused.
  bool stopped_listening() const noexcept { return stopped_listening_; }
  /// Its engine is closed or its process dead, and its incoming connection is drained.
  bool closed() const noexcept { return dead_ || (stopped_listening_ && !in_); }
  /// Updates and returns dead(). A few loads, or a system call if it holds no writer slot.
  bool check_dead() noexcept;
  /// All threads of the process have exited. Later than dead(), which one thread's death sets while
  /// others may still be storing. A system call.
  bool exited() noexcept;
  /// Releases sockets and mappings of a closed peer without paths; the record may live longer.
  void release_resources() noexcept;

  const SharedHeader* their_header() const noexcept { return header_.as<const SharedHeader>(); }
  /// Shared: a fence may need them after the peer is released.
  const std::shared_ptr<const PeerWriterSlots>& writer_slots() const noexcept {
    return writer_slots_;
  }
  /// One of us lacks membarrier: each copy section and each publication needs a full barrier.
  bool needs_barrier() const noexcept { return needs_barrier_; }

  // Its registered memory.

  /// What an rkey of this peer refers to, as read from its SharedHeader. Cached by index.
  struct RkeyView {
    enum class Access : uint8_t { kUnknown, kMapped, kPulled, kRequested, kStale };
    Access access = Access::kUnknown;
    uint32_t generation = 0;
    uint64_t size_bytes = 0;
    std::byte* base = nullptr;                              ///< kMapped
    const std::atomic<uint64_t>* validity_epoch = nullptr;  ///< kMapped
  };
  /// Looks up an rkey. kRequested: the descriptor of its block was requested; kStale: not valid.
  const RkeyView& rkey_view(uint64_t rkey) {
    const auto index = static_cast<uint32_t>(rkey);
    const auto generation = static_cast<uint32_t>(rkey >> 32);
    if (index < views_.size()) {
      const RkeyView& known = views_[index];
      const bool resolved =
          known.access == RkeyView::Access::kMapped || known.access == RkeyView::Access::kPulled;
      if (known.generation == generation && resolved) return known;
    }
    return find_rkey_view(index, generation);
  }
  void block_received(const BlockReply& block, UniqueFd descriptor);
  void block_released(uint64_t block) noexcept;
  /// Prefaults a part of a newly mapped block, because page faults would slow down the first
  /// writes. False: nothing left to do.
  bool populate_some() noexcept;

  Puller& puller() noexcept { return puller_; }
  /// Whether we can read its memory.
  enum class ReadAccess : uint8_t { kUntried, kRequested, kGranted, kDenied };
  ReadAccess read_access = ReadAccess::kUntried;
  Beacon beacon{};
  bool counts_arrivals = false;  ///< it understands Arrivals

  // Bookkeeping of the ShmNetwork and its rails.

  std::set<uint64_t> shared_blocks{};  ///< our blocks whose descriptor it has
  bool ever_shared = false;            ///< it got one at some time: fences must prove it idle
  bool read_queued = false;            ///< in ShmNetwork::read_queue_
  bool arrivals_sent = false;          ///< it got our ArrivalCount
  /// Its inbound paths that were closed, by lane and number, to recognise a late copy of a hello.
  std::deque<std::pair<uint32_t, uint32_t>> closed_paths{};
  static constexpr uint32_t kNoConnection = UINT32_MAX;
  uint32_t connection = kNoConnection;  ///< index in our SharedHeader::frames_sent
  uint32_t links = 0;
  uint32_t paths = 0;          ///< in both directions
  bool loss_reported = false;  ///< its links were reported as lost

 private:
  struct QueuedFrame {
    std::vector<std::byte> head;
    std::shared_ptr<const UniqueFd>
        descriptor;  ///< shared: the same block may be queued many times
  };
  const RkeyView& find_rkey_view(uint32_t index, uint32_t generation);

  const Address address_;
  Error connect_error_{};
  UniqueFd out_;
  SharedHeader* own_header_ = nullptr;
  std::deque<QueuedFrame> send_queue_;
  uint64_t woken_epoch_ = 0;  ///< its sleep_epoch when it was last woken

  UniqueFd in_;
  UniqueFd pidfd_;  ///< empty if its pid is not visible
  std::shared_ptr<const PeerWriterSlots> writer_slots_;
  Mapping header_;
  Mapping arrivals_;           ///< its ArrivalCount
  uint64_t header_inode_ = 0;  ///< a second connection must pass the same file
  uint32_t their_connection_ = 0;
  uint32_t frames_seen_ = 0;
  bool needs_barrier_ = true;
  bool dead_ = false;
  bool exited_ = false;
  bool stopped_listening_ = false;

  std::vector<RkeyView> views_;
  RkeyView none_{};
  std::map<uint64_t, Mapping> blocks_;
  std::map<uint64_t, uint64_t> unpopulated_;  ///< by block: bytes prefaulted so far
  std::map<uint64_t, uint64_t> requested_;    ///< by block: the rkey that needs it
  /// Blocks that could not be mapped, with the rkey; another rkey may request the block again.
  std::set<std::pair<uint64_t, uint64_t>> unusable_;
  Puller puller_;
};

}  // namespace fabric::shm

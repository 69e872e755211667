#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fabric/caps.h>
#include <fabric/memory.h>
#include <fabric/peer.h>
#include <fabric/result.h>
#include <fabric/types.h>

// The provider contract: the core reaches every network through these classes and nothing else.
// How to write one: docs/providers.md.

namespace fabric {

/// One work request: a write, or one fragment of a write.
struct WriteOp {
  uint64_t source = 0;      ///< local address
  uint64_t target = 0;      ///< offset in the target's region
  uint64_t size_bytes = 0;  ///< 0 is legal: a bare immediate, or without one a probe
  uint64_t lkey = 0;        ///< the lkey: what register_memory() returned on this rail
  uint64_t rkey = 0;        ///< the rkey: what import_rkey() returned on this rail
  uint32_t cookie = 0;      ///< returned in the completion
  uint32_t path = 0;        ///< what open_path() returned
  uint32_t imm = 0;         ///< wire form: number of shards and counter key
  uint8_t has_imm = 0;
  uint8_t priority = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(WriteOp) == 56);

/// One event that Rail::poll() returns.
struct RailEvent {
  enum class Kind : uint8_t {
    kCompletion,  ///< completion of a work request: cookie, code, remote. `value` further requests,
                  ///< with the cookies that follow, completed with the same code and remote
    kImm,       ///< an immediate arrived and its bytes are in place: imm; and `value` more like it
    kPathDown,  ///< this end of a path broke or was closed, and is drained: path, code. Inbound:
                ///< value = immediates it had received (`taken` in docs/design/0008)
    kRailDown,  ///< the NIC or its port failed: code. The core closes the paths on it
    kRailUp,    ///< the NIC or its port works again
    kFenced,    ///< deregister_memory() is proved: cookie
  };
  Kind kind = Kind::kCompletion;
  Errc code = Errc::kOk;  ///< kPathDown: kPeerLost is proof that the remote process has died
  /// kPathDown, inbound: kUnknown when the end could not be drained; `value` then counts only the
  /// immediates that poll() returned.
  Remote remote = Remote::kDelivered;
  uint8_t inbound = 0;  ///< kPathDown: 1 for an end made by accept_path()
  uint32_t cookie = 0;
  uint32_t imm = 0;
  uint32_t path = 0;
  uint64_t value = 0;
};
static_assert(sizeof(RailEvent) == 24);

/// One opened NIC (or lane) of one network.
///
/// Paths have a direction: the sender opens its end and sends `hello` to the peer, the peer accepts
/// it and answers, the sender starts. The core carries hello and answer over the control channel,
/// retransmits and deduplicates.
///
/// Threads: one call at a time, under the engine's state lock; mostly from the worker, set-up calls
///   also from application threads. Exceptions: register_memory() and deregister_memory() may block
///   in the kernel and are called from any thread at any time.
/// Failure: every work request that post() accepted completes exactly once, through poll(). Errors
///   are reported nowhere else.
class Rail {
 public:
  virtual ~Rail() = default;
  virtual const Caps& caps() const noexcept = 0;
  virtual std::string_view device() const noexcept = 0;
  /// Details for an operator, as name and value; for dumps and tools, not for programs.
  virtual std::vector<std::pair<std::string, std::string>> facts() const { return {}; }

  /// Returns the lkey; `wire_rkey` (at most kWireRkeyBytesMax) is the rkey in the form peers get.
  virtual Result<uint64_t> register_memory(const Memory& memory,
                                           std::vector<std::byte>& wire_rkey) = 0;
  /// From here on writes to the region are refused. Reports kFenced with `cookie` once no write can
  /// land any more.
  virtual void deregister_memory(uint64_t lkey, uint32_t cookie) noexcept = 0;
  /// Turns a peer's wire rkey into the rkey that WriteOp carries. Hostile bytes: kBadFormat.
  virtual Result<uint64_t> import_rkey(std::span<const std::byte> wire_rkey) = 0;

  /// `peer` is the peer's OpenNetwork::address().
  virtual Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                     std::vector<std::byte>& hello) = 0;
  /// Creates the target's end. Accepting the same hello again gives the same answer, and kClosed
  /// once the end was reported down.
  virtual Result<uint32_t> accept_path(std::span<const std::byte> hello,
                                       std::vector<std::byte>& answer) = 0;
  virtual Result<void> start_path(uint32_t path, std::span<const std::byte> answer) = 0;
  /// Stops this end. Work requests posted on it complete through poll(); kPathDown follows once the
  /// end is drained.
  virtual void close_path(uint32_t path, bool inbound) noexcept = 0;

  /// Accepts a prefix of `ops` and returns its length. A short count is back-pressure, not an
  /// error: poll(), then post the rest again.
  virtual uint32_t post(std::span<const WriteOp> ops) noexcept = 0;
  /// Moves up to out.size() events into `out` and returns how many. Never blocks. Fewer than
  /// out.size() means that every event that arrived before the call has been returned.
  virtual uint32_t poll(std::span<RailEvent> out) noexcept = 0;
  /// With Caps::cpu_copy: a copy is in progress and the next poll() continues it, even if this one
  /// returned no event.
  virtual bool busy() const noexcept { return false; }

  static constexpr uint32_t kWireRkeyBytesMax = 32;
};

/// One configured instance of a provider: its rails, and a channel for control datagrams.
///
/// The control channel may lose, duplicate and reorder datagrams; the core numbers, retransmits and
/// deduplicates them.
///
/// Threads: one call at a time, under the engine's state lock, as for Rail.
class OpenNetwork {
 public:
  virtual ~OpenNetwork() = default;
  virtual uint32_t rail_count() const noexcept = 0;  ///< 1..kRailsMax
  virtual Rail& rail(uint32_t index) noexcept = 0;

  /// How a peer's instance of the same provider reaches this one; at most kAddressBytesMax.
  virtual std::vector<std::byte> address() const = 0;
  /// Local and cheap. Fails with kBadFormat, or kUnreachable when this host cannot get there.
  virtual Result<uint32_t> open_link(std::span<const std::byte> address) = 0;
  virtual void close_link(uint32_t link) noexcept = 0;
  virtual uint32_t control_bytes_max() const noexcept = 0;
  /// False: no room now, or the link is closed. The core tries again later.
  virtual bool send(uint32_t link, std::span<const std::byte> datagram) noexcept = 0;
  /// Copies the next datagram that arrived into `out`; 0 when there is none.
  virtual uint32_t receive(std::span<std::byte> out) noexcept = 0;
  /// Returns a link whose remote process is proved dead, each once. False: there is none.
  virtual bool take_lost(uint32_t& link) noexcept {
    (void)link;
    return false;
  }

  /// A cheap check before a turn: `rails` false lets the turn skip every rail's poll(), `control`
  /// false lets it skip receive() and take_lost(). Networks without a cheaper check than those
  /// calls keep this default.
  struct PendingWork {
    bool rails = true;
    bool control = true;
    explicit operator bool() const noexcept { return rails || control; }
  };
  virtual PendingWork pending_work() noexcept { return {}; }

  /// Called before each arm(). Nothing is to be done for immediates before so many have arrived
  /// since then on this network and those that wake for each one; 1: each may matter. True: the
  /// network counts them and may not wake for the first ones. Then other networks must get 1. What
  /// is not an immediate wakes as ever.
  virtual bool sleep_through(uint32_t arrivals) noexcept {
    (void)arrivals;
    return false;
  }
  /// Called before a sleep; false when work is pending already. Otherwise the next arrival makes
  /// wait_fd() readable, or calls the wake function that the network was opened with.
  virtual bool arm() noexcept = 0;
  virtual int wait_fd() const noexcept = 0;  ///< -1: it calls the wake function

  static constexpr uint32_t kAddressBytesMax = 192;
};

}  // namespace fabric

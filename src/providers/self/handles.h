#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <fabric/provider.h>

#include "base/driver.h"

namespace fabric::self {

inline constexpr uint32_t kQueueDepth = 1024;
/// The most that one poll() copies: some 100 us, which bounds the delay for the NICs that the same
/// worker polls.
inline constexpr uint64_t kPollBytes = 1u << 20;

/// Registered memory by memory key (slot and generation), with a pin count for the copy in
/// progress.
///
/// Threads: add() and remove() from any thread; all others under the engine's state lock. The mutex
///   is held for a few instructions, never over a copy.
/// Invariant: a region's slot is reused, and its fence reported, only when it has no pins.
class RegionTable {
 public:
  Result<uint64_t> add(const Memory& memory);
  /// Invalidates the rkey. True: no copy uses the region, and the fence is proved already.
  /// take_fenced() reports it in either case.
  bool remove(uint64_t key, uint32_t cookie) noexcept;

  enum class Access : uint8_t { kOk, kSource, kTarget };  ///< or which side was refused
  struct Pinned {
    Access access = Access::kOk;
    std::byte* target = nullptr;  ///< address of the write's first byte
  };
  /// Checks source and target of a write and pins both; every kOk needs an unpin().
  Pinned pin(const WriteOp& op) noexcept;
  void unpin(const WriteOp& op) noexcept;

  bool take_fenced(uint32_t& cookie) noexcept;
  /// Without the mutex: called in every poll.
  bool has_fenced() const noexcept {
    return fenced_count_.load(std::memory_order_acquire) != 0;  // pairs with retire()
  }

 private:
  struct Region {
    std::byte* address = nullptr;
    uint64_t size_bytes = 0;
    uint32_t generation = 1;  ///< of the rkey that is live, or of the next one; never 0
    uint32_t pins = 0;
    uint32_t cookie = 0;  ///< of the deregistration
    bool live = false;    ///< its rkey may start accesses
    bool remote_write = false;
  };
  Region* find(uint64_t key) noexcept;
  void unpin_region(uint64_t key) noexcept;
  void retire(Region& region) noexcept;

  std::mutex mutex_;
  std::vector<Region> regions_;
  // add() reserves room for every region in both lists, so that remove() and unpin() cannot fail.
  std::vector<uint32_t> free_;
  std::vector<uint32_t> fenced_;           ///< cookies, oldest first
  std::atomic<uint32_t> fenced_count_{0};  ///< its size, written under the lock
};

/// The loopback rail: post() queues writes, poll() copies them. Owned by SelfNetwork; owns the
/// region table, both ends of every path and the queue of posted writes.
///
/// Threads: Rail calls come one at a time, under the engine's state lock. register_memory() and
///   deregister_memory() come from any thread, and touch only the RegionTable, which has a mutex.
/// Invariant: writes complete in posting order; `kPathDown` follows the last completion of its
/// path.
class SelfRail final : public Rail {
 public:
  explicit SelfRail(const OpenContext& context);

  const Caps& caps() const noexcept override { return caps_; }
  std::string_view device() const noexcept override { return "self"; }

  Result<uint64_t> register_memory(const Memory& memory,
                                   std::vector<std::byte>& wire_rkey) override;
  void deregister_memory(uint64_t lkey, uint32_t cookie) noexcept override;
  Result<uint64_t> import_rkey(std::span<const std::byte> wire_rkey) override;

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override;
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override;
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override;
  void close_path(uint32_t path, bool inbound) noexcept override;

  uint32_t post(std::span<const WriteOp> ops) noexcept override;
  uint32_t poll(std::span<RailEvent> out) noexcept override;

  bool busy() const noexcept override { return count_ != 0; }

  bool has_work() const noexcept;

 private:
  /// Both ends of a path: they are in the same rail, so one record and one number are enough.
  struct Path {
    uint32_t queued = 0;   ///< writes posted and not yet completed
    uint64_t counted = 0;  ///< immediates received by the target's end
    bool accepted = false;
    bool started = false;
    bool closing = false;     ///< the sender's end: flush, then report
    bool in_closing = false;  ///< the target's end: report
    bool down = false;        ///< the sender's end has been reported
    bool in_down = false;     ///< the target's end has been reported
  };
  struct QueuedWrite {
    WriteOp op{};
    uint64_t copied_bytes = 0;
    bool counted = false;  ///< its immediate is reported: from here on it is delivered
  };
  struct CopyResult {
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };

  /// Copies the next chunk of the write, at most `budget` bytes, and subtracts it from the budget.
  CopyResult copy(QueuedWrite& write, uint64_t& budget) noexcept;
  uint32_t poll_fences(std::span<RailEvent> out) noexcept;
  uint32_t poll_paths(std::span<RailEvent> out) noexcept;
  uint32_t poll_writes(std::span<RailEvent> out) noexcept;
  Path* find(uint32_t path) noexcept;

  const Caps caps_;
  const uint64_t engine_id_;
  const std::function<void()> wake_;
  RegionTable regions_;
  // Path numbers are never reused: a late close_path() finds nothing.
  std::map<uint32_t, Path> paths_;
  uint32_t next_path_ = 1;
  uint32_t closing_ = 0;  ///< ends whose kPathDown is due
  std::array<QueuedWrite, kQueueDepth> queue_;
  uint32_t head_ = 0;
  uint32_t count_ = 0;
};

/// The loopback network of one engine: one rail, and a queue for control datagrams to itself. Calls
/// come under the engine's state lock.
class SelfNetwork final : public OpenNetwork {
 public:
  explicit SelfNetwork(const OpenContext& context);

  uint32_t rail_count() const noexcept override { return 1; }
  Rail& rail(uint32_t) noexcept override { return rail_; }

  std::vector<std::byte> address() const override;
  Result<uint32_t> open_link(std::span<const std::byte> address) override;
  void close_link(uint32_t link) noexcept override;
  uint32_t control_bytes_max() const noexcept override { return kControlBytesMax; }
  bool send(uint32_t link, std::span<const std::byte> datagram) noexcept override;
  uint32_t receive(std::span<std::byte> out) noexcept override;

  PendingWork pending_work() noexcept override { return {rail_.has_work(), count_ != 0}; }
  bool arm() noexcept override;
  int wait_fd() const noexcept override { return -1; }

 private:
  // One datagram carries one message: twice the default message size, with room for its frame.
  static constexpr uint32_t kControlBytesMax = 128u << 10;
  static constexpr uint32_t kDatagramsMax = 64;

  const uint64_t engine_id_;
  SelfRail rail_;
  std::set<uint32_t> links_;  ///< all of them lead to this engine
  uint32_t next_link_ = 1;
  std::array<std::vector<std::byte>, kDatagramsMax> datagrams_;  ///< a ring; keeps its buffers
  uint32_t head_ = 0;
  uint32_t count_ = 0;
};

/// Fails with kBadFormat, kUnreachable (the address of another engine).
Result<void> check_address(std::span<const std::byte> address, uint64_t engine_id);

}  // namespace fabric::self

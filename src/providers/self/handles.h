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
/// What one poll() copies: some 100 us of memory bandwidth, the longest that a NIC of the same
/// worker waits.
inline constexpr uint64_t kPollBytes = 1u << 20;

/// Local memory by key, and which of it is being copied right now.
///
/// Threads: add(), remove() from any thread; the rest from the worker. The lock is held for a few
///   instructions, never over a copy.
class RegionTable {
 public:
  Result<uint64_t> add(const Memory& memory);
  /// Ends the key. True: nothing is being copied, and the fence is proved already; it will be
  /// handed out by take_fenced() in any case.
  bool remove(uint64_t key, uint32_t cookie) noexcept;

  enum class Access : uint8_t { kOk, kSource, kTarget };  ///< or which end was refused
  struct Pinned {
    Access access = Access::kOk;
    std::byte* target = nullptr;  ///< address of the piece's first byte
  };
  /// Checks both ends of a piece and keeps them until unpin(), which every kOk needs.
  Pinned pin(const WriteOp& op) noexcept;
  void unpin(const WriteOp& op) noexcept;

  bool take_fenced(uint32_t& cookie) noexcept;
  /// Without the lock: asked in every poll.
  bool has_fenced() const noexcept {
    return fenced_count_.load(std::memory_order_acquire) != 0;  // pairs with retire()
  }

 private:
  struct Region {
    std::byte* address = nullptr;
    uint64_t size_bytes = 0;
    uint32_t generation = 1;  ///< of the key that is live, or of the next one; never 0
    uint32_t pins = 0;
    uint32_t cookie = 0;  ///< of the deregistration
    bool live = false;    ///< its key may start accesses
    bool remote_write = false;
  };
  Region* find(uint64_t key) noexcept;
  void unpin_region(uint64_t key) noexcept;
  void retire(Region& region) noexcept;

  std::mutex mutex_;
  std::vector<Region> regions_;
  // Room for every region is reserved when it is added: remove() and unpin() cannot fail.
  std::vector<uint32_t> free_;
  std::vector<uint32_t> fenced_;           ///< cookies, oldest first
  std::atomic<uint32_t> fenced_count_{0};  ///< its size, written under the lock
};

/// One NIC that is not there: pieces wait in a queue until poll() copies them.
class SelfRail final : public Rail {
 public:
  explicit SelfRail(const OpenContext& context);

  const Caps& caps() const noexcept override { return caps_; }
  std::string_view device() const noexcept override { return "self"; }

  Result<uint64_t> register_memory(const Memory& memory, std::vector<std::byte>& wire_key) override;
  void deregister_memory(uint64_t local_key, uint32_t cookie) noexcept override;
  Result<uint64_t> import_key(std::span<const std::byte> wire_key) override;

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override;
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override;
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override;
  void close_path(uint32_t path, bool inbound) noexcept override;

  uint32_t post(std::span<const WriteOp> ops) noexcept override;
  uint32_t poll(std::span<WireEvent> out) noexcept override;

  bool busy() const noexcept override { return count_ != 0; }

  bool has_work() const noexcept;

 private:
  /// Both ends: they live in the same rail, so one record and one number serve.
  struct Path {
    uint32_t queued = 0;   ///< pieces taken and not yet reported
    uint64_t counted = 0;  ///< immediates that the target's end has taken
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
    bool counted = false;  ///< its immediate is out: from here on it is delivered
  };
  struct CopyResult {
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };

  /// Copies the next stretch of the write, at most `budget` bytes, and takes it off the budget.
  CopyResult copy(QueuedWrite& write, uint64_t& budget) noexcept;
  uint32_t poll_fences(std::span<WireEvent> out) noexcept;
  uint32_t poll_paths(std::span<WireEvent> out) noexcept;
  uint32_t poll_writes(std::span<WireEvent> out) noexcept;
  Path* find(uint32_t path) noexcept;

  const Caps caps_;
  const uint64_t engine_id_;
  const std::function<void()> wake_;
  RegionTable regions_;
  // Ordered, and numbers are not used again: a late close_path() finds nothing.
  std::map<uint32_t, Path> paths_;
  uint32_t next_path_ = 1;
  uint32_t closing_ = 0;  ///< ends that have something to report
  std::array<QueuedWrite, kQueueDepth> queue_;
  uint32_t head_ = 0;
  uint32_t count_ = 0;
};

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
  // One datagram carries one message: twice the default message, with room for its frame.
  static constexpr uint32_t kControlBytesMax = 128u << 10;
  static constexpr uint32_t kDatagramsMax = 64;

  const uint64_t engine_id_;
  SelfRail rail_;
  std::set<uint32_t> links_;  ///< all of them lead here
  uint32_t next_link_ = 1;
  std::array<std::vector<std::byte>, kDatagramsMax> datagrams_;  ///< a ring; buffers are kept
  uint32_t head_ = 0;
  uint32_t count_ = 0;
};

/// Looks at an address: fails with kBadFormat, kUnreachable (of another engine).
Result<void> check_address(std::span<const std::byte> address, uint64_t engine_id);

}  // namespace fabric::self

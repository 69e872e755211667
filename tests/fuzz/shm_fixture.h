#pragma once

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fabric/config.h>
#include <fabric/provider.h>

#include "base/driver.h"
#include "base/shared_pages.h"
#include "base/unique_fd.h"
#include "providers/shm/arrivals.h"
#include "providers/shm/mapping.h"
#include "providers/shm/ring.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/socket.h"
#include "providers/shm/wire.h"
#include "providers/shm/writer_slots.h"

// shm networks in one process without engines, so that a test controls every turn, and a hostile
// peer that speaks their protocol and breaks all its rules.

namespace fabric::fuzz {

/// A manual clock: time passes only when a node takes a turn.
class StepDriver final : public Driver {
 public:
  int64_t now_ns() const noexcept override { return now_; }
  uint64_t entropy() noexcept override { return entropy_ += 0x9e3779b97f4a7c15; }
  uint64_t incarnation() noexcept override { return ++incarnation_; }
  Result<void> attach(Progress&, const AttachOptions&) override { return {}; }
  void detach(Progress&) noexcept override {}
  void wake(Progress&) noexcept override {}
  void wake_callbacks(Progress&) noexcept override {}
  bool threaded() const noexcept override { return false; }
  bool drive(const std::function<bool()>&, int64_t) override { return false; }
  void offload(std::function<void()> job, uint32_t) override { job(); }

  void pass(int64_t ns) noexcept { now_ += ns; }

 private:
  int64_t now_ = 1;
  /// Socket names are per host: two processes must not draw the same.
  uint64_t entropy_ = static_cast<uint64_t>(::getpid()) << 40;
  uint64_t incarnation_ = 0;
};

/// One network and the events it reported.
class ShmNode {
 public:
  explicit ShmNode(StepDriver& driver, std::string directory = {});

  OpenNetwork& network() noexcept { return *network_; }
  Rail& rail() noexcept { return network_->rail(0); }
  shm::Address address() const;
  /// Polls everything, including the sockets.
  void turn();
  void turns(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) turn();
  }

  std::vector<RailEvent> events{};
  uint32_t reported = 0;  ///< completions and immediates, before merged ones are split
  std::vector<std::vector<std::byte>> datagrams{};
  /// Number of events of a kind on one path.
  uint32_t count(RailEvent::Kind kind, uint32_t path) const;
  const RailEvent* completion(uint32_t cookie) const;  ///< its kCompletion
  const RailEvent* fenced(uint32_t cookie) const;

  /// The most events per poll.
  uint32_t poll_room = 64;

 private:
  StepDriver& driver_;
  std::unique_ptr<OpenNetwork> network_;
  std::vector<std::byte> datagram_;
};

enum class TargetKind : uint8_t { kMapped, kPulled };

/// A path from `from` to a region of `to`, and a record of everything written on it.
class ShmTraffic {
 public:
  static constexpr uint64_t kBytes = 16u << 10;
  ShmTraffic(ShmNode& from, ShmNode& to, TargetKind kind);
  ~ShmTraffic();

  /// Writes new bytes with an immediate. False: no room.
  bool write();
  /// All writes succeeded, their immediates were delivered, and the last bytes have landed.
  bool exact() const;
  uint32_t in() const noexcept { return in_; }
  uint64_t rkey() const noexcept { return rkey_; }
  uint32_t rkey_index() const noexcept { return static_cast<uint32_t>(rkey_); }

 private:
  ShmNode& from_;
  ShmNode& to_;
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> plain_ = std::vector<std::byte>(kBytes);
  std::optional<SharedPages> pages_{};
  std::span<std::byte> target_{};
  uint64_t lkey_ = 0, target_lkey_ = 0, rkey_ = 0;
  uint32_t out_ = 0, in_ = 0;
  uint32_t written_ = 0;
};

/// Kinds of descriptors that a peer may send.
enum class Passed : uint8_t {
  kMemory,  ///< sealed, of the right size
  kUnsealed,
  kSmall,
  kLarge,
  kReadOnly,  ///< cannot be mapped for writing
  kPipe,
  kFile,
  kSocket,
  kDirectory,
  kCount,
};
UniqueFd make_descriptor(Passed kind, uint64_t right_bytes);

/// Acts as another process of the same user that sends and stores arbitrary data.
class HostileProcess {
 public:
  explicit HostileProcess(uint64_t instance);

  const shm::Address& address() const noexcept { return address_; }
  shm::SharedHeader& header() noexcept { return *header_.mapping.as<shm::SharedHeader>(); }
  shm::WriterSlotTable& slots() noexcept { return *slots_.mapping.as<shm::WriterSlotTable>(); }

  bool connect(const shm::Address& victim);
  /// Without checking the user of the listener.
  bool connect_unchecked(const shm::Address& victim);
  bool connected() const noexcept { return static_cast<bool>(out_); }
  void disconnect();
  bool send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  bool send(const shm::Frame& frame, std::span<const int> descriptors = {}) {
    return send(shm::encode(frame), descriptors);
  }
  /// A valid greeting, except for the address `as` if given.
  bool greet(const shm::Address* as = nullptr, uint32_t connection = 0);
  /// Sent with greet(); show_memory() makes it valid.
  shm::Beacon beacon{};
  void show_memory() {
    beacon = {.address = reinterpret_cast<uint64_t>(seen_.data()), .value = seen_};
  }

  /// Receives all frames: maps rings, keeps block replies. Returns their number.
  uint32_t receive();
  std::vector<shm::RingReady> ready{};  ///< rings[i] belongs to ready[i]
  std::vector<shm::Mapping> rings{};
  std::vector<shm::BlockReply> blocks{};
  std::vector<shm::Mapping> arrivals{};  ///< arrival counts that were sent to it
  uint32_t greetings = 0, wakes = 0;
  bool counts_arrivals = false;  ///< sent with greet()

  /// Sends a ring of its own for a path of the victim.
  bool show_ring(uint32_t lane, uint32_t path, bool can_pull = true);
  std::vector<shm::SharedMemory> own_rings{};

 private:
  shm::Address address_{};
  shm::SharedMemory header_, slots_;
  UniqueFd listener_, out_;
  std::vector<UniqueFd> in_;
  std::array<std::byte, shm::Beacon::kBytes> seen_{std::byte{1}};
};

/// Open descriptors and memfd mappings of this process.
struct Footprint {
  uint32_t descriptors = 0, mappings = 0;
  bool operator==(const Footprint&) const = default;
};
Footprint footprint();

}  // namespace fabric::fuzz

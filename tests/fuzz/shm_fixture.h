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
#include "providers/shm/writer_slots.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/mapping.h"
#include "providers/shm/ring.h"
#include "providers/shm/socket.h"
#include "providers/shm/wire.h"

// Networks of one process without engines above them, so that a test decides what happens next, and
// somebody who speaks their language and keeps none of its rules.

namespace fabric::fuzz {

/// Time stands still unless a node takes a turn.
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
  /// Names of sockets are for the whole host: two processes must not draw the same.
  uint64_t entropy_ = static_cast<uint64_t>(::getpid()) << 40;
  uint64_t incarnation_ = 0;
};

/// One network, and what it reported.
class ShmNode {
 public:
  explicit ShmNode(StepDriver& driver, std::string directory = {});

  OpenNetwork& network() noexcept { return *network_; }
  Rail& rail() noexcept { return network_->rail(0); }
  shm::Address address() const;
  /// A look at everything, the sockets included.
  void turn();
  void turns(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) turn();
  }

  std::vector<WireEvent> events{};
  uint32_t reported = 0;  ///< as how many ends and counts the rail reported them
  std::vector<std::vector<std::byte>> datagrams{};
  /// How many events of a kind: on one path, or with one cookie.
  uint32_t count(WireEvent::Kind kind, uint32_t path) const;
  const WireEvent* completion(uint32_t cookie) const;  ///< its kWritten
  const WireEvent* fenced(uint32_t cookie) const;

  /// What one poll may report.
  uint32_t poll_room = 64;

 private:
  StepDriver& driver_;
  std::unique_ptr<OpenNetwork> network_;
  std::vector<std::byte> datagram_;
};

enum class TargetKind : uint8_t { kMapped, kPulled };

/// A path from `from` to `to`, into memory of `to`, and everything ever written by it.
class ShmTraffic {
 public:
  static constexpr uint64_t kBytes = 16u << 10;
  ShmTraffic(ShmNode& from, ShmNode& to, TargetKind kind);
  ~ShmTraffic();

  /// Fresh bytes with a count. False: no room.
  bool write();
  /// Everything written has ended well, was counted, and the last bytes are there.
  bool exact() const;
  uint32_t in() const noexcept { return in_; }
  uint64_t remote_key() const noexcept { return remote_key_; }
  uint32_t rkey_index() const noexcept { return static_cast<uint32_t>(remote_key_); }

 private:
  ShmNode& from_;
  ShmNode& to_;
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> plain_ = std::vector<std::byte>(kBytes);
  std::optional<SharedPages> pages_{};
  std::span<std::byte> target_{};
  uint64_t local_key_ = 0, target_key_ = 0, remote_key_ = 0;
  uint32_t out_ = 0, in_ = 0;
  uint32_t written_ = 0;
};

/// Descriptors of every kind that somebody may pass.
enum class Passed : uint8_t {
  kMemory,  ///< sealed, of the right size
  kUnsealed,
  kSmall,
  kLarge,
  kReadOnly,  ///< nobody can map it for writing
  kPipe,
  kFile,
  kSocket,
  kDirectory,
  kCount,
};
UniqueFd make_descriptor(Passed kind, uint64_t right_bytes);

/// A process of the same user that says and stores whatever it likes.
class HostileProcess {
 public:
  explicit HostileProcess(uint64_t instance);

  const shm::Address& address() const noexcept { return address_; }
  shm::SharedHeader& header() noexcept { return *header_.mapping.as<shm::SharedHeader>(); }
  shm::WriterSlotPage& slots() noexcept { return *slots_.mapping.as<shm::WriterSlotPage>(); }

  bool connect(const shm::Address& victim);
  /// Whoever is there.
  bool connect_unchecked(const shm::Address& victim);
  bool connected() const noexcept { return static_cast<bool>(out_); }
  void disconnect();
  bool send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  bool send(const shm::Frame& frame, std::span<const int> descriptors = {}) {
    return send(shm::encode(frame), descriptors);
  }
  /// As an honest one would, apart from `as` when that is given.
  bool greet(const shm::Address* as = nullptr, uint32_t connection = 0);
  /// Where its memory can be read, if it says so.
  shm::Beacon beacon{};
  void show_memory() {
    beacon = {.address = reinterpret_cast<uint64_t>(seen_.data()), .value = seen_};
  }

  /// Takes what was sent to it: rings are mapped, blocks kept.
  uint32_t receive();
  std::vector<shm::RingReady> ready{};  ///< rings[i] came with it
  std::vector<shm::Mapping> rings{};
  std::vector<shm::BlockReply> blocks{};
  uint32_t greetings = 0;

  /// A ring of its own for a path that leads to it.
  bool show_ring(uint32_t lane, uint32_t path, bool can_pull = true);
  std::vector<shm::SharedMemory> own_rings{};

 private:
  shm::Address address_{};
  shm::SharedMemory header_, slots_;
  UniqueFd listener_, out_;
  std::vector<UniqueFd> in_;
  std::array<std::byte, shm::Beacon::kBytes> seen_{std::byte{1}};
};

/// What a process has of this network: descriptors, and mappings of its memory.
struct Footprint {
  uint32_t descriptors = 0, mappings = 0;
  bool operator==(const Footprint&) const = default;
};
Footprint footprint();

}  // namespace fabric::fuzz

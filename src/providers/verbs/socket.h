#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fabric/result.h>

#include "base/unique_fd.h"
#include "providers/verbs/datagram_parts.h"
#include "providers/verbs/wire.h"

namespace fabric::verbs {

/// One peer as the destination of control datagrams.
struct ControlPeer {
  Address to{};
  uint32_t address_index = 0;  ///< index of the peer's control address in use
  uint32_t unanswered = 0;     ///< datagrams sent since one was last received from it
  bool open = false;
};

/// Control datagrams over UDP, with one socket per rail. They depend on no queue pair: when all of
/// them are broken, both sides can still find out what was delivered, as long as one rail works.
///
/// Threads: under the state lock.
class ControlSockets {
 public:
  struct Received {
    uint64_t from = 0;                      ///< instance
    uint32_t address_index = 0;             ///< of the sender's control addresses
    std::span<const std::byte> datagram{};  ///< until the next call; empty: nothing is there
  };

  /// Bound to `ips`, the first to `port` if that is not 0.
  static Result<ControlSockets> open(std::span<const GidBytes> ips, uint16_t port,
                                     uint64_t instance);

  const std::vector<ControlAddress>& addresses() const noexcept { return addresses_; }
  std::vector<int> fds() const;
  bool reaches(const Address& address) const noexcept;

  /// `down`: a bit for every local socket whose rail is down. False: the socket buffer is full. All
  /// other send errors count as a lost datagram.
  bool send(ControlPeer& peer, std::span<const std::byte> datagram, uint32_t down) noexcept;
  Received receive() noexcept;

 private:
  ControlSockets() = default;
  int local_socket(const ControlPeer& peer, uint32_t address_index) const noexcept;
  void choose(ControlPeer& peer, uint32_t down) const noexcept;
  Received receive(int fd) noexcept;

  std::vector<UniqueFd> fds_;
  std::vector<ControlAddress> addresses_;
  uint64_t instance_ = 0;
  uint32_t next_number_ = 0;
  uint32_t next_socket_ = 0;
  Assembler assembler_;
  std::vector<std::byte> buffer_;
};

/// Routable IP addresses of the rails; when there are none (InfiniBand), those of the host.
std::vector<GidBytes> own_ips(std::span<const Gid> rails);
/// Fails with kInvalidArgument, "control_address".
Result<GidBytes> parse_ip(const std::string& text);

}  // namespace fabric::verbs

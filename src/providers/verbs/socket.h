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

/// Where control datagrams go to.
struct Link {
  Address to{};
  uint32_t socket = 0;       ///< of its places, the one in use
  uint32_t unanswered = 0;  ///< datagrams since it was last heard
  bool open = false;
};

/// Control datagrams over UDP, by a socket on every rail. They depend on no queue pair: when all of
/// those are broken, this is how both sides still find out what was delivered, as long as one rail
/// carries anything.
class ControlSockets {
 public:
  struct Received {
    uint64_t from = 0;  ///< instance
    uint32_t socket = 0;
    std::span<const std::byte> datagram{};  ///< until the next call; empty: nothing is there
  };

  /// Bound to `ips`, the first to `port` if that is not 0.
  static Result<ControlSockets> open(std::span<const GidBytes> ips, uint16_t port,
                                     uint64_t instance);

  const std::vector<ControlAddress>& addresses() const noexcept { return addresses_; }
  std::vector<int> fds() const;
  bool reaches(const Address& address) const noexcept;

  /// `down`: a bit for every own place whose rail is down. False: no room now. What the network
  /// cannot carry is lost, as anywhere on its way.
  bool send(Link& link, std::span<const std::byte> datagram, uint32_t down) noexcept;
  Received receive() noexcept;

 private:
  ControlSockets() = default;
  int local_socket(const Link& link, uint32_t socket) const noexcept;
  void choose(Link& link, uint32_t down) const noexcept;
  Received receive(int fd) noexcept;

  std::vector<UniqueFd> fds_;
  std::vector<ControlAddress> addresses_;
  uint64_t instance_ = 0;
  uint32_t next_number_ = 0;
  uint32_t next_socket_ = 0;
  Assembler assembler_;
  std::vector<std::byte> buffer_;
};

/// IP addresses of the rails that datagrams can be sent to; without any (InfiniBand), the host's
/// own ones.
std::vector<GidBytes> own_ips(std::span<const Gid> rails);
/// Fails with kInvalidArgument, "control_address".
Result<GidBytes> parse_ip(const std::string& text);

}  // namespace fabric::verbs

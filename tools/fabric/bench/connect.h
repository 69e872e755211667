#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "json_socket.h"

namespace fabric::tool::bench {

/// The other side as a process of our own. Made before any engine is open: those do not run_receiver into
/// a child. It ends with us, whatever happens to us.
class ForkedPeer {
 public:
  /// `work` runs in the child, whose exit code it returns.
  explicit ForkedPeer(const std::function<int(JsonSocket&)>& work);
  ~ForkedPeer();
  ForkedPeer(ForkedPeer&&) = delete;

  JsonSocket& socket() { return socket_; }
  struct ExitStatus {
    bool well = false;
    bool signalled = false;  ///< by somebody else
    std::string how{};
  };
  /// Gives it `ms` to end, then ends it.
  ExitStatus reap(int ms);

 private:
  JsonSocket socket_;
  pid_t pid_ = -1;
};

// The same over TCP, for two hosts or two terminals. An address is HOST, HOST:PORT or [HOST]:PORT;
// without a host this machine only, without a port kDefaultPort. Port 0 takes a free one.
inline constexpr const char* kDefaultPort = "18555";

/// Says on standard error where it listens, and waits for one sender.
JsonSocket listen_at(const std::string& address);
JsonSocket connect_to(const std::string& address);

/// Wherever the scheduler wants to have us: a wish that cannot be granted is a BenchError.
void pin_to(int cpu);

}  // namespace fabric::tool::bench

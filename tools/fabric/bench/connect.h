#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "json_socket.h"

namespace fabric::tool::bench {

/// The other side as a forked child. Must be made before any engine is open: engines do not survive
/// fork(). The child is killed if this process dies.
class ForkedPeer {
 public:
  /// `work` runs in the child and returns its exit code.
  explicit ForkedPeer(const std::function<int(JsonSocket&)>& work);
  ~ForkedPeer();
  ForkedPeer(ForkedPeer&&) = delete;

  JsonSocket& socket() { return socket_; }
  struct ExitStatus {
    bool ok = false;
    bool signalled = false;  ///< by another process
    std::string text{};
  };
  /// Waits up to `ms` for the child to exit, then kills it.
  ExitStatus reap(int ms);

 private:
  JsonSocket socket_;
  pid_t pid_ = -1;
};

// The same over TCP, for two hosts or two terminals. An address is HOST, HOST:PORT or [HOST]:PORT;
// the default host is loopback, the default port kDefaultPort. Port 0 picks a free one.
inline constexpr const char* kDefaultPort = "18555";

/// Prints on standard error where it listens, and waits for one sender.
JsonSocket listen_at(const std::string& address);
JsonSocket connect_to(const std::string& address);

/// Pins this thread to a CPU. Throws BenchError.
void pin_to(int cpu);

}  // namespace fabric::tool::bench

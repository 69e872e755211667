#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fabric::test {

/// A port of the loopback that is free now.
uint16_t free_port();

/// A real etcd server of one node, as a child process on the loopback, with its data in a temporary
/// folder. The destructor kills it and removes the folder.
class EtcdServer {
 public:
  /// Empty when there is an etcd on this machine, else why there is none. FABRICLIB_TEST_ETCD names
  /// one that is not in the usual folders.
  static std::string missing();

  EtcdServer();
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  void start();  ///< on the same port, with the same data; returns when it answers
  void kill();   ///< SIGKILL
  void stop();   ///< SIGSTOP
  void resume();

  uint16_t port() const { return port_; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// A request of the test's own, not through the directory. Empty when it failed.
  std::string post(std::string_view path, const std::string& body) const;
  void compact() const;  ///< up to the latest revision
  /// Revokes every lease: what etcd does when the members' keep-alives do not come.
  void revoke_leases() const;

 private:
  bool launch();  ///< whether it answers

  uint16_t port_ = 0, peer_port_ = 0;
  std::string folder_;
  pid_t process_ = 0;
};

}  // namespace fabric::test

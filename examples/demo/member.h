#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/kv_directory.h>

#include "control_socket.h"
#include "roles.h"
#include "serve_message.h"

namespace demo {

/// What every child process has: an engine, a place in the directory, an inbox for messages of the
/// service.
///
/// Threads: one, beside those of the engine.
class Member {
 public:
  Member(const ControlSocket& control, const RoleOptions& options, fabric::kv::Role role);

  fabric::Engine& engine() { return engine_; }
  const ControlSocket& control() const { return control_; }
  const std::string& name() const { return name_; }

  /// As the seed of the directory; or as a member, which waits for the router's address.
  void serve_directory();
  void join_directory(uint64_t layout_hash, uint32_t capacity);
  void leave_directory();
  /// The router was replaced: announces itself to the one at `address`.
  void follow_router(const std::string& address);
  fabric::kv::Directory& directory() { return *directory_; }

  /// Messages that have arrived since the last call, and sends that have failed (tag: request).
  struct Arrivals {
    std::vector<ServeMessage> messages{};
    std::vector<uint64_t> undelivered{};
  };
  Arrivals take_messages();
  void send(fabric::PeerId peer, const ServeMessage& message);
  /// Blocks until something has arrived for any part of the process, at most `ms`.
  void wait(std::span<const int> more_fds, int ms);

 private:
  void send_address() const;

  const ControlSocket& control_;
  std::string name_;
  fabric::kv::Role role_;
  fabric::Engine engine_;
  fabric::Inbox inbox_;
  fabric::Subscription listener_;
  std::unique_ptr<fabric::kv::EmbeddedDirectory> directory_{};
  std::vector<uint64_t> undelivered_{};  ///< requests whose message was refused at once
};

}  // namespace demo

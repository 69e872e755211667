#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/message.h"
#include "fuzz/sequence.h"
#include "providers/sim/world.h"

// A peer without an engine that breaks the protocol. Its frames are built from those that it has
// received, so that they pass the first check of each handler.

namespace fabric::fuzz {

using Bytes = std::vector<std::byte>;

class Hostile {
 public:
  struct World {
    std::shared_ptr<sim::World::Impl> impl{};
    control::Address engine{};
    control::Address honest{};
    std::vector<CounterKey> secrets{};  ///< a peer that has one may count on it and poison it
  };
  static constexpr uint64_t kMemoryBytes = 4096;

  /// `knows`: it has the job key, or there is none. Then it does not impersonate the honest peer:
  /// the members of a job trust each other.
  Hostile(const World& world, uint32_t node, uint64_t engine_id, std::string key, bool knows);

  void send_twisted(MessageType type, const FuzzAction& action, Hostile& other);
  /// A correct frame.
  void send(MessageType type, const Bytes& body = {});
  void hello() { send(MessageType::kHello, control::encode(hello_)); }
  void open_path();
  void read(uint8_t answers);
  /// On a path that the engine has accepted. `count_on`: a counter key that it was given.
  void write(const FuzzAction& action, std::span<const std::byte> wire_rkey, CounterKey count_on);
  void replay(const FuzzAction& action, Hostile& other);
  void become(const FuzzAction& action, const Hostile& other);
  void vanish() { network_.reset(); }
  void know_accomplice(const Hostile& with) { accomplice_ = &with; }

  const control::Address& address() const { return hello_.address; }
  Bytes desc() const;
  uint64_t engine_session() const { return engine_session_; }
  uint64_t counted() const { return counted_; }  ///< writes under the counter key given to it
  uint64_t paths_started() const { return paths_started_; }  ///< ever

 private:
  struct Asked {
    MessageType type{};
    uint32_t ref = 0;
    Bytes hello{};       ///< of a path
    uint32_t names = 0;  ///< of a resolve
  };
  struct Path {
    uint32_t ref = 0, number = 0;
    Bytes hello{};
    bool started = false;
  };

  control::Header header_of(MessageType type, const FuzzAction& action);
  Bytes body_of(MessageType type, const FuzzAction& action);
  Bytes hello_body(const FuzzAction& action) const;
  Bytes path_body(MessageType type, const FuzzAction& action);
  Bytes path_open_body(const FuzzAction& action);
  Bytes answer_body(MessageType type, const FuzzAction& action);
  uint32_t key_for(const FuzzAction& action) const;
  uint32_t ref_for(MessageType question, const FuzzAction& action) const;
  Path* make_path(uint32_t remote_rail);
  void post(Bytes datagram);
  void receive(const control::Frame& frame, uint8_t answers);
  void receive_numbered(const control::Frame& frame, uint8_t answers);
  void answer(const Asked& question, uint8_t answers);
  void start_path(const control::PathAnswer& answer);
  void take_name(uint64_t engine_id);

  const World world_;
  const std::string key_;
  const bool knows_;
  Bytes memory_;
  Bytes wire_rkey_;
  uint64_t lkey_ = 0;
  std::unique_ptr<OpenNetwork> network_;
  uint32_t link_ = 0;

  control::Hello hello_{};
  uint64_t session_ = (uint64_t{1} << 32) + 77, old_session_ = 77;
  uint64_t engine_session_ = 0, old_engine_session_ = 0;
  uint64_t next_seq_ = 1, taken_ = 0;
  uint64_t stamp_ = 0;
  std::deque<Asked> asked_;          ///< the latest first
  std::deque<Path> paths_;           ///< the latest first
  std::deque<Bytes> sent_;           ///< the latest first
  std::vector<CounterKey> learned_;  ///< counter keys of names
  const Hostile* accomplice_ = nullptr;
  uint32_t next_ref_ = 1;
  uint64_t counted_ = 0, paths_started_ = 0;
};

}  // namespace fabric::fuzz

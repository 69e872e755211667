#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "control/descriptor.h"
#include "control/message.h"
#include "harness/host.h"
#include "unit/providers/sim_harness.h"

// A peer without an engine: the test decides which frames it sends, and when.

namespace fabric::test {

struct ControlFrame {
  control::Header header{};
  std::vector<std::byte> body{};
};

/// A simulated world with engines and scripted peers.
class ScriptedWorld {
 public:
  explicit ScriptedWorld(const sim::WorldOptions& options = {}) : sim_world(options) {}

  Engine open(Config config = test_config()) {
    return *Engine::open(placed(config), sim_world.impl);
  }
  /// The same on a new node.
  Config placed(Config config) {
    config.networks = {{.provider = "sim", .name = "sim"}};
    config.networks[0].devices = {sim::world_token(*sim_world.impl, sim_world.add_node())};
    return config;
  }
  void run_for(Nanos time) { sim_world.run_for(time.count()); }

  sim::TestWorld sim_world;
};

/// Speaks the control protocol by hand, and accepts paths when it reads.
class ScriptedPeer {
 public:
  static constexpr uint64_t kMemoryBytes = 4096;

  ScriptedPeer(ScriptedWorld& world, std::span<const std::byte> engine, std::string job_key = "")
      : network_(world.sim_world.open_new()),
        memory_(network_->rail(0), kMemoryBytes),
        engine_(*control::decode_address(engine)),
        key_(std::move(job_key)) {
    address.engine_id = 0x9999;
    address.incarnation = 7;
    address.networks.push_back({.provider = "sim",
                                .name = "sim",
                                .rails = 1,
                                .fence = FenceKind::kLocal,
                                .memory_kinds = 1,
                                .address = network_->address()});
    hello = {.address = address,
             .to_incarnation = engine_.incarnation,
             .message_bytes_max = 1024,
             .message_credits = 4,
             .timeout_max_ns = 1'000'000'000,
             .drain_ns = 1'000'000'000,
             .lost_ns = 4'000'000'000};
    link_ = *network_->open_link(engine_.networks.at(0).address);
  }

  std::vector<std::byte> encoded_address() const { return control::encode(address); }
  std::vector<std::byte> desc() const {
    control::RegionDesc desc{.owner_engine = address.engine_id,
                             .owner_incarnation = address.incarnation,
                             .region = RegionId(1, 1),
                             .size_bytes = kMemoryBytes};
    desc.networks.push_back({.network = "sim", .rail_keys = {memory_.wire_rkey}});
    return *control::encode(desc);
  }
  std::span<const std::byte> memory() const { return memory_.bytes; }

  control::Header header(control::MessageType type) const {
    return {.type = type, .to_session = engine_session, .from_session = session, .ack = taken_};
  }
  void send(control::MessageType type, std::span<const std::byte> body = {}) {
    control::Header out = header(type);
    if (control::is_numbered(type)) out.seq = next_seq_++;
    post(control::encode_frame(out, body, key_));
  }
  void send_hello() { send(control::MessageType::kHello, control::encode(hello)); }
  void send_welcome() { send(control::MessageType::kWelcome, control::encode(hello)); }
  void send_pong(uint64_t stamp) {
    send(control::MessageType::kPong, control::encode(control::Ping{stamp}));
  }
  /// Any bytes at all.
  void post(std::span<const std::byte> datagram) { EXPECT_TRUE(network_->send(link_, datagram)); }

  /// Reads what has arrived, and accepts every path that is asked for.
  void read() {
    std::vector<std::byte> datagram(network_->control_bytes_max());
    while (const uint32_t size = network_->receive(datagram)) {
      const auto frame = control::decode_frame(std::span(datagram).first(size), key_);
      if (!frame) {
        undecodable.emplace_back(datagram.begin(), datagram.begin() + size);
        continue;
      }
      frames.push_back({frame->header, {frame->body.begin(), frame->body.end()}});
      engine_session = frame->header.from_session;
      taken_ = std::max(taken_, frame->header.seq);
      if (frame->header.type != control::MessageType::kPathOpen) continue;
      const auto asked = control::decode_path_open(frame->body);
      control::PathAnswer answer{.ref = asked->ref};
      EXPECT_TRUE(network_->rail(0).accept_path(asked->hello, answer.answer));
      send(control::MessageType::kPathAnswer, control::encode(answer));
    }
  }
  /// The frames of one type, taken out.
  std::vector<ControlFrame> take(control::MessageType type) {
    read();
    std::vector<ControlFrame> out;
    std::erase_if(frames, [&](ControlFrame& frame) {
      if (frame.header.type != type) return false;
      out.push_back(std::move(frame));
      return true;
    });
    return out;
  }
  std::vector<uint64_t> stamps() {
    std::vector<uint64_t> out;
    for (const ControlFrame& ping : take(control::MessageType::kPing)) {
      out.push_back(control::decode_ping(ping.body)->stamp);
    }
    return out;
  }

  control::Address address;
  control::Hello hello;
  uint64_t session = (uint64_t{1} << 32) + 77;
  uint64_t engine_session = 0;
  std::vector<ControlFrame> frames;
  std::vector<std::vector<std::byte>> undecodable;  ///< frames under another job key

 private:
  std::unique_ptr<OpenNetwork> network_;
  sim::Block memory_;
  control::Address engine_;
  std::string key_;
  uint32_t link_ = 0;
  uint64_t next_seq_ = 1, taken_ = 0;
};

}  // namespace fabric::test

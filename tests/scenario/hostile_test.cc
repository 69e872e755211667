#include <algorithm>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// A peer that breaks the protocol.

namespace fabric::test::hostile_test {
namespace {

using control::MessageType;

class HostilePeer : public testing::Test {
 protected:
  static Config config() {
    Config config = test_config();
    config.peer_timeout = 1s;
    config.lost_timeout = 4s;
    config.drain_timeout = 1s;
    return config;
  }
  void meet() {
    expect_log("a path broke");
    expect_log("a path was refused");
    expect_log("does not parse");
    peer = *engine.connect(scripted.encoded_address());
    world.run_for(1ms);
    scripted.read();
    scripted.send_welcome();
    world.run_for(1ms);
    ASSERT_EQ(state(), PeerState::kConnected);
  }
  PeerState state() const { return engine.peer_info(peer)->state; }
  void turn(Nanos time = 100us) {
    world.run_for(time);
    scripted.read();
    for (const uint64_t stamp : scripted.stamps()) scripted.send_pong(stamp);
    scripted.send(MessageType::kAck);
  }
  std::vector<std::byte> hello_of_path() {
    const auto address = *control::decode_address(engine.address());
    std::vector<std::byte> hello;
    EXPECT_TRUE(stranger->rail(0).open_path(address.networks[0].address, 0, hello));
    return hello;
  }
  void open(uint32_t ref, std::vector<std::byte> hello, uint8_t rail = 0) {
    control::PathOpen body{.ref = ref, .provider = "sim", .network = "sim"};
    body.rail = rail;
    body.hello = std::move(hello);
    scripted.send(MessageType::kPathOpen, control::encode(body));
  }
  uint32_t accepted() {
    uint32_t n = 0;
    for (const ControlFrame& frame : scripted.take(MessageType::kPathAnswer)) {
      n += control::decode_path_answer(frame.body)->code == Errc::kOk;
    }
    return n;
  }

  ScriptedWorld world;
  Engine engine = world.open(config());
  ScriptedPeer scripted{world, engine.address()};
  std::unique_ptr<OpenNetwork> stranger = world.sim_world.open_new();
  PeerId peer{};
};

TEST_F(HostilePeer, FloodOfPathOpensIsBounded) {
  ASSERT_NO_FATAL_FAILURE(meet());
  uint32_t ok = 0, closed = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    open(1'000'000 - i, hello_of_path());
    turn(20us);
    ok += accepted();
    closed += static_cast<uint32_t>(scripted.take(MessageType::kPathDrained).size());
    scripted.frames.clear();
    if (state() != PeerState::kConnected) break;
  }
  EXPECT_LT(ok - closed, 1000u) << ok << " ends were opened, " << closed << " closed again";
}

TEST_F(HostilePeer, TheSameHelloTwiceDoesNotStopAFenceOrClose) {
  ASSERT_NO_FATAL_FAILURE(meet());
  const auto hello = hello_of_path();
  open(10, hello);
  turn(1ms);
  open(11, hello);
  turn(1ms);
  EXPECT_EQ(accepted(), 1u) << "two paths were opened under one name";
  turn(5ms);
  EventRecorder fenced(&engine);
  ASSERT_TRUE(engine.submit(Fence{.peer = peer, .timeout = 3s, .notify = fenced.notify(1)}));
  for (int i = 0; i < 50; ++i) turn(100ms);
  ASSERT_NE(fenced.find(1), nullptr);
  EXPECT_EQ(fenced.find(1)->code, Errc::kOk) << "kLocal: only its inbound paths reach this engine";
  const Nanos began = engine.now();
  const auto closed = engine.close();
  EXPECT_TRUE(closed) << to_string(closed.error().code);
  EXPECT_LE(engine.now() - began, Nanos(2s));
}

// A path hello that is repeated after its inbound end broke must not open an end that is never
// closed.
TEST_F(HostilePeer, TheHelloOfABrokenEndDoesNotStopClose) {
  ASSERT_NO_FATAL_FAILURE(meet());
  const auto hello = hello_of_path();
  open(10, hello);
  turn(1ms);
  ASSERT_EQ(accepted(), 1u);
  scripted.send(MessageType::kPathClose, control::encode(control::PathClose{.ref = 10}));
  turn(1ms);
  ASSERT_EQ(scripted.take(MessageType::kPathDrained).size(), 1u);
  open(11, hello);
  turn(1ms);
  EXPECT_EQ(accepted(), 0u);
  const auto closed = engine.close();
  EXPECT_TRUE(closed) << to_string(closed.error().code);
}

// An end that two peers have a name for is closed with the first, and the second waits for it.
TEST_F(HostilePeer, TheHelloOfAnAccompliceDoesNotStopClose) {
  ASSERT_NO_FATAL_FAILURE(meet());
  const auto hello = hello_of_path();
  open(10, hello);
  turn(1ms);
  ASSERT_EQ(accepted(), 1u);

  ScriptedPeer accomplice(world, engine.address());
  accomplice.address.engine_id = accomplice.hello.address.engine_id = 0x8888;
  accomplice.send_hello();
  world.run_for(1ms);
  accomplice.read();
  accomplice.send(MessageType::kReady);
  control::PathOpen same{.ref = 20, .provider = "sim", .network = "sim"};
  same.hello = hello;
  accomplice.send(MessageType::kPathOpen, control::encode(same));
  world.run_for(1ms);
  const auto answers = accomplice.take(MessageType::kPathAnswer);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(control::decode_path_answer(answers[0].body)->code, Errc::kBadFormat);
  const auto closed = engine.close();
  EXPECT_TRUE(closed) << to_string(closed.error().code);
}

TEST_F(HostilePeer, CannotTouchTheOwnPath) {
  ASSERT_NO_FATAL_FAILURE(meet());
  MemoryRegion memory = *engine.allocate({.size_bytes = 8192});
  const PeerId self = *engine.connect(engine.address());
  const RemoteRegion region = *engine.import_region(self, *memory.desc());
  Counter counter = *engine.make_counter();
  EventRecorder ended;
  const auto copy = [&](uint64_t tag) {
    return engine.submit(Write{.source = memory.at(0),
                               .target = region.at(4096),
                               .size_bytes = 4096,
                               .imm = counter.key(),
                               .notify = ended.notify(tag)});
  };
  ASSERT_TRUE(copy(1));
  turn(1ms);
  ASSERT_EQ(counter.count(), 1u);
  const auto address = *control::decode_address(engine.address());
  uint32_t ok = 0;
  for (uint32_t number = 0; number < 4; ++number) {
    ByteWriter writer;
    writer.u64(address.engine_id);
    writer.u32(number);
    control::PathOpen body{.ref = 100 + number, .provider = "self", .network = "self"};
    body.hello = writer.take();
    scripted.send(MessageType::kPathOpen, control::encode(body));
    turn(1ms);
    ok += accepted();
  }
  EXPECT_EQ(ok, 0u) << "another peer holds an end of the engine's path to itself";
  for (uint32_t number = 0; number < 4; ++number) {
    scripted.send(MessageType::kPathClose,
                  control::encode(control::PathClose{.ref = 100 + number}));
  }
  turn(5ms);
  ASSERT_TRUE(copy(2));
  turn(5ms);
  EXPECT_EQ(counter.count(), 2u);
  const Nanos began = engine.now();
  const auto closed = engine.close();
  EXPECT_TRUE(closed) << to_string(closed.error().code);
  EXPECT_LE(engine.now() - began, Nanos(2s));
}

TEST_F(HostilePeer, NonsenseAboutPaths) {
  ASSERT_NO_FATAL_FAILURE(meet());
  MemoryRegion memory = *engine.allocate({.size_bytes = 4096});
  const RemoteRegion target = *engine.import_region(peer, scripted.desc());
  EventRecorder ended;
  for (uint32_t round = 0; round < 300; ++round) {
    ASSERT_TRUE(engine.submit(Write{.source = memory.at(0),
                                    .target = target.at(0),
                                    .size_bytes = 64,
                                    .imm = CounterKey::from_wire(round + 1),
                                    .timeout = 100ms,
                                    .notify = ended.notify(round)}));
    for (uint32_t ref = 0; ref < 8; ++ref) {
      const uint32_t at = round + ref - 4;
      switch ((round + ref) % 4) {
        case 0:
          scripted.send(
              MessageType::kPathDrained,
              control::encode(control::PathDrained{
                  .ref = at, .exact = round % 3 != 0, .imms_received = UINT64_MAX - ref}));
          break;
        case 1:
          scripted.send(MessageType::kPathClose, control::encode(control::PathClose{.ref = at}));
          break;
        case 2: {
          control::PathAnswer answer{.ref = at, .code = static_cast<Errc>(round % 20)};
          answer.answer.resize(round % 32);
          scripted.send(MessageType::kPathAnswer, control::encode(answer));
          break;
        }
        default:
          open(at, round % 2 != 0 ? hello_of_path() : std::vector<std::byte>(round % 40));
      }
    }
    turn(1ms);
    scripted.frames.clear();
    if (state() >= PeerState::kLost) break;
  }
  for (int i = 0; i < 30; ++i) turn(100ms);
  EXPECT_EQ(ended.count(), 300u) << "each write must complete once, whatever its path reported";
  const auto closed = engine.close();
  EXPECT_TRUE(closed) << to_string(closed.error().code);
}

// The engine's own path: the peer answers every open, and reports at once that the path is down.
TEST_F(HostilePeer, AReopenLoopBacksOff) {
  ASSERT_NO_FATAL_FAILURE(meet());
  MemoryRegion memory = *engine.allocate({.size_bytes = 4096});
  const RemoteRegion target = *engine.import_region(peer, scripted.desc());
  ASSERT_TRUE(engine.submit(
      Write{.source = memory.at(0), .target = target.at(0), .size_bytes = 64, .timeout = 2s}));
  uint32_t opens = 0;
  for (uint32_t i = 0; i < 20000; ++i) {  // one second
    turn(50us);
    for (const ControlFrame& frame : scripted.take(MessageType::kPathOpen)) {
      ++opens;
      const uint32_t ref = control::decode_path_open(frame.body)->ref;
      scripted.send(MessageType::kPathDrained,
                    control::encode(control::PathDrained{.ref = ref, .exact = true}));
    }
    scripted.frames.clear();
  }
  EXPECT_LT(opens, 200u) << "too many path requests in one second";
}

TEST_F(HostilePeer, BoundlessTimesInAHello) {
  scripted.hello.timeout_max_ns = INT64_MAX;
  scripted.hello.drain_ns = INT64_MAX;
  scripted.hello.lost_ns = INT64_MAX;
  ASSERT_NO_FATAL_FAILURE(meet());
  EXPECT_TRUE(engine.make_counter());
}

// Answers of the wrong kind for questions that exist.
TEST_F(HostilePeer, AnswersOfTheWrongKind) {
  ASSERT_NO_FATAL_FAILURE(meet());
  EventRecorder ended(&engine);
  const std::byte text[4]{};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine.submit(Send{
        .peer = peer, .channel = 1, .bytes = text, .timeout = 500ms, .notify = ended.notify(1)}));
  }
  ASSERT_TRUE(engine.submit(Fence{.peer = peer, .timeout = 3s, .notify = ended.notify(2)}));
  turn(1ms);
  for (const MessageType type : {MessageType::kFenced, MessageType::kMessageDone,
                                 MessageType::kRegionRevoked, MessageType::kKeyRevoked}) {
    for (uint32_t ref = 0; ref < 12; ++ref) {
      scripted.send(type, control::encode(control::Done{.ref = ref, .code = Errc::kOk}));
      turn(100us);
    }
  }
  for (int i = 0; i < 60; ++i) turn(100ms);
  for (const Event& e : ended.events) {
    if (e.tag != 1) continue;
    EXPECT_EQ(e.code, Errc::kPeerLost) << "the fence ended the session";
    EXPECT_EQ(e.remote, Remote::kUnknown) << "it was sent, and never answered";
  }
  EXPECT_EQ(ended.count(), 4u);
  EXPECT_TRUE(engine.close());
}

}  // namespace
}  // namespace fabric::test::hostile_test

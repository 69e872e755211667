#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// Messages of one session and channel arrive in the order sent (contracts.md P7), whatever happens
// to the control datagrams that carry them.

namespace fabric::test {
namespace {

using control::MessageType;
using sim::Fault;

uint32_t number_of(std::span<const std::byte> text) {
  uint32_t number = 0;
  EXPECT_GE(text.size(), sizeof number);
  std::memcpy(&number, text.data(), sizeof number);
  return number;
}

std::vector<std::byte> text_of(uint32_t number, size_t size = sizeof(uint32_t)) {
  std::vector<std::byte> text(size);
  fill(text, number);
  std::memcpy(text.data(), &number, sizeof number);
  return text;
}

/// Two connected hosts; b listens on some channels and records the numbers that arrive on each.
struct NumberedMessages {
  static constexpr uint16_t kChannels = 3;

  explicit NumberedMessages(const sim::WorldOptions& options,
                            const Config& config = short_timeouts_config())
      : world(options),
        a(open_host(world, world.add_node(), 4096, config)),
        b(open_host(world, world.add_node(), 4096, config)),
        to(connect(a, b)),
        batch(*a.engine.make_batch()) {
    received.then = [this](const Event& event) {
      if (event.kind != EventKind::kMessage) return;
      const auto& bytes = received.messages.back();
      const uint32_t number = number_of(bytes);
      EXPECT_EQ(bytes, text_of(number, bytes.size())) << "the bytes of message " << number;
      got[static_cast<uint16_t>(event.value)].push_back(number);
    };
    for (uint16_t channel = 1; channel <= kChannels; ++channel) {
      listeners.push_back(*b.engine.listen(channel, received.notify()));
    }
  }
  OpId send(uint16_t channel, uint32_t number, Timeout timeout = {}, size_t size = 4) {
    const auto text = text_of(number, size);
    auto op = a.engine.submit(Send{.peer = to.peer,
                                   .channel = channel,
                                   .bytes = text,
                                   .timeout = timeout,
                                   .batch = batch,
                                   .notify = ended.notify(number)});
    EXPECT_TRUE(op) << op.error().what;
    return op ? *op : OpId{};
  }
  void expect_in_order() const {
    for (const auto& [channel, numbers] : got) {
      EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end())) << "channel " << channel;
    }
  }
  size_t arrived() const {
    size_t sum = 0;
    for (const auto& [channel, numbers] : got) sum += numbers.size();
    return sum;
  }

  EventRecorder received, ended;
  std::map<uint16_t, std::vector<uint32_t>> got;
  sim::World world;
  Host a, b;
  RemoteHost to;
  std::vector<Subscription> listeners;
  Batch batch;
};

sim::WorldOptions hostile_control(uint64_t seed) {
  return {.seed = seed, .drop_control = 0.15, .duplicate_control = 0.15, .reorder_control = 0.5};
}

TEST(MessageOrder, HoldsWhenDatagramsAreLostRepeatedAndReordered) {
  for (const uint64_t seed : seeds(8)) {
    SCOPED_TRACE(replay(seed));
    NumberedMessages setup(hostile_control(seed));
    constexpr uint32_t kMessages = 150;
    for (uint32_t i = 0; i < kMessages; ++i) {
      setup.send(static_cast<uint16_t>(1 + i % NumberedMessages::kChannels), i);
      if (i % 10 == 0) setup.world.run_for(30us);
    }
    ASSERT_TRUE(setup.a.engine.wait(setup.batch, 60s));
    EXPECT_EQ(setup.arrived(), kMessages);
    setup.expect_in_order();
  }
}

TEST(MessageOrder, HoldsForAListenerThatHoldsItsSenderBack) {
  Config config = short_timeouts_config();
  config.message_buffers = 3;
  config.message_credits = 8;
  NumberedMessages setup(hostile_control(test_seed()), config);
  auto inbox = *setup.b.engine.make_inbox(2);
  const auto slow = *setup.b.engine.listen(9, Notify::inbox(inbox));
  for (uint32_t i = 0; i < 60; ++i) setup.send(9, i);
  std::vector<uint32_t> numbers;
  std::vector<Event> out(2);
  while (numbers.size() < 60) {
    ASSERT_TRUE(inbox.wait(5s)) << "stopped after " << numbers.size();
    const uint32_t n = inbox.poll(out);
    for (uint32_t i = 0; i < n; ++i) numbers.push_back(number_of(out[i].bytes()));
  }
  for (uint32_t i = 0; i < 60; ++i) ASSERT_EQ(numbers[i], i);
}

// Some are cancelled, some time out: in the queue of the sender, on the wire, or at the listener.
// They are skipped, the others arrive in order, and nothing waits for what was withdrawn.
TEST(MessageOrder, SkipsWhatWasWithdrawn) {
  for (const uint64_t seed : seeds(8)) {
    SCOPED_TRACE(replay(seed));
    expect_fault_logs();
    NumberedMessages setup(hostile_control(seed));
    await_connected(setup.world, setup.a, setup.to.peer);
    std::vector<OpId> ops;
    constexpr uint32_t kMessages = 120;
    for (uint32_t i = 0; i < kMessages; ++i) {
      const bool hasty = i % 7 == 3;
      ops.push_back(setup.send(1, i, hasty ? Timeout(Nanos(100us)) : Timeout(20s)));
      if (i == 20) {
        ASSERT_TRUE(setup.world.at(setup.world.now(), Fault::control_cut(0, 1)));
      }
      if (i % 5 == 0) setup.world.run_for(10us);
    }
    for (uint32_t i = 5; i < kMessages; i += 11) (void)setup.a.engine.cancel(ops[i]);
    setup.world.run_for(5ms);
    ASSERT_TRUE(setup.world.at(setup.world.now(), Fault::control_heal(0, 1)));
    (void)setup.a.engine.wait(setup.batch, 60s);
    setup.world.run_for(2s);
    EXPECT_EQ(setup.ended.count(), kMessages) << "each ends once";
    setup.expect_in_order();
    const std::set<uint32_t> got(setup.got[1].begin(), setup.got[1].end());
    EXPECT_EQ(got.size(), setup.got[1].size()) << "once";
    uint32_t withdrawn = 0;
    for (const Event& event : setup.ended.events) {
      const bool here = got.contains(static_cast<uint32_t>(event.tag));
      EXPECT_TRUE(here || event.code != Errc::kOk) << event.tag;
      if (event.remote == Remote::kNotDelivered) {
        EXPECT_FALSE(here) << event.tag;
        ++withdrawn;
      }
    }
    EXPECT_GT(withdrawn, 0u) << "a weak test";
    EXPECT_GT(got.size(), kMessages / 2);
  }
}

/// A peer that sends frames by hand, and an engine that listens on channel 1.
struct ScriptedSender {
  ScriptedSender() : engine(world.open()), scripted(world, engine.address()) {
    received.then = [this](const Event&) { got.push_back(number_of(received.messages.back())); };
    listener.emplace(*engine.listen(1, received.notify()));
    scripted.send_hello();
    turn();
    scripted.read();
    scripted.send(MessageType::kReady);
    turn();
  }
  void turn(Nanos time = 100us) { world.run_for(time); }
  /// A numbered frame with a number of the test's choice.
  void send(uint64_t seq, MessageType type, std::span<const std::byte> body) {
    control::Header header = scripted.header(type);
    header.seq = seq;
    scripted.post(control::encode_frame(header, body, ""));
    turn();
  }
  void send_message(uint64_t seq, uint32_t number, size_t size = 4) {
    send(seq, MessageType::kMessage,
         control::encode(
             control::UserMessage{.ref = number, .channel = 1, .bytes = text_of(number, size)}));
  }
  /// Every number that the engine has acknowledged so far.
  bool acknowledged(uint64_t seq) {
    scripted.read();
    const auto covers = [&](const ControlFrame& frame) {
      const uint64_t ahead = seq - frame.header.ack;
      return seq <= frame.header.ack ||
             (ahead >= 2 && ahead < 66 && (frame.header.ack_bits >> (ahead - 2) & 1) != 0);
    };
    return std::any_of(scripted.frames.begin(), scripted.frames.end(), covers);
  }

  EventRecorder received;
  std::vector<uint32_t> got;
  ScriptedWorld world;
  Engine engine;
  ScriptedPeer scripted;
  std::optional<Subscription> listener;
};

TEST(EarlyMessage, WaitsForTheNumbersBeforeIt) {
  ScriptedSender setup;
  setup.send_message(3, 30);
  setup.send_message(2, 20);
  setup.send_message(3, 30);  // again
  EXPECT_TRUE(setup.got.empty()) << "number 1 is missing";
  EXPECT_TRUE(setup.acknowledged(2));
  setup.send_message(1, 10);
  EXPECT_EQ(setup.got, (std::vector<uint32_t>{10, 20, 30}));
  setup.send_message(2, 20);
  setup.send_message(4, 40);
  EXPECT_EQ(setup.got, (std::vector<uint32_t>{10, 20, 30, 40}));
}

// The gap may be a control message of another kind.
TEST(EarlyMessage, WaitsForAnyKindOfNumber) {
  ScriptedSender setup;
  setup.send_message(2, 20);
  EXPECT_TRUE(setup.got.empty());
  setup.send(1, MessageType::kPathClose, control::encode(control::PathClose{.ref = 77}));
  EXPECT_EQ(setup.got, (std::vector<uint32_t>{20}));
}

// A peer that leaves a gap on purpose: what it sends beyond the bound is not acknowledged, and is
// accepted once the gap is closed.
TEST(EarlyMessage, IsRefusedBeyondTheBoundUntilTheGapIsClosed) {
  ScriptedSender setup;
  constexpr uint32_t kBytes = 60'000;
  uint64_t seq = 2;
  while (seq < 60) {
    setup.send_message(seq, static_cast<uint32_t>(seq), kBytes);
    if (!setup.acknowledged(seq)) break;
    ++seq;
  }
  EXPECT_LT(seq, 60u) << "60 messages of 60 kB would be kept";
  EXPECT_GT(seq, 4u);
  setup.send_message(1, 1);
  EXPECT_EQ(setup.got.size(), seq - 1);
  setup.send_message(seq, static_cast<uint32_t>(seq), kBytes);
  EXPECT_EQ(setup.got.size(), seq);
  EXPECT_TRUE(std::is_sorted(setup.got.begin(), setup.got.end()));
}

TEST(EarlyMessage, IsForgottenWithItsSession) {
  ScriptedSender setup;
  setup.send_message(2, 20);
  setup.scripted.send(MessageType::kBye, control::encode(control::Bye{.code = Errc::kPeerLost}));
  setup.turn(10ms);
  EXPECT_TRUE(setup.got.empty());
  EXPECT_TRUE(setup.engine.close());
}

}  // namespace
}  // namespace fabric::test

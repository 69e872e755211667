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

namespace fabric::test::messages_test {
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

// ---- Messages in parts --------------------------------------------------------------------------

constexpr size_t kMiB = 1u << 20;

TEST(LargeMessage, ArrivesWholeAndInOrder) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE(replay(seed));
    NumberedMessages setup(hostile_control(seed));
    const size_t sizes[] = {4, 65'536, 65'537, 100'000, 9, kMiB, 81'920, 4, kMiB, 300'001};
    uint32_t number = 0;
    for (const size_t size : sizes) {
      for (uint16_t channel = 1; channel <= 2; ++channel) {
        setup.send(channel, number++, 50s, size);
        if (number == 11) setup.world.run_for(1ms);
      }
    }
    ASSERT_TRUE(setup.a.engine.wait(setup.batch, 60s));
    EXPECT_EQ(setup.arrived(), number);
    setup.expect_in_order();
  }
}

TEST(LargeMessage, OfMoreCreditsThanThereAreGoesAlone) {
  Config config = short_timeouts_config();
  config.message_credits = 3;
  NumberedMessages setup({}, config);
  for (uint32_t i = 0; i < 6; ++i) setup.send(1, i, 20s, i % 2 == 0 ? kMiB : 100);
  ASSERT_TRUE(setup.a.engine.wait(setup.batch, 20s));
  EXPECT_EQ(setup.got[1], (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
}

// Withdrawn in the middle of its parts: it never arrives, the next ones do, and no credit is lost.
TEST(LargeMessage, IsSkippedWhenItIsWithdrawn) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE(replay(seed));
    expect_fault_logs();
    Config config = short_timeouts_config();
    config.message_credits = 17;
    NumberedMessages setup(hostile_control(seed), config);
    await_connected(setup.world, setup.a, setup.to.peer);
    uint32_t number = 0;
    for (uint32_t round = 0; round < 5; ++round) {
      const OpId op = setup.send(1, number++, 20s, kMiB);
      setup.send(1, number++, 20s);
      setup.world.run_for(Nanos(50us) * (round + 1));
      ASSERT_TRUE(setup.world.at(setup.world.now(), Fault::control_cut(0, 1)));
      setup.world.run_for(1ms);
      ASSERT_TRUE(setup.a.engine.cancel(op));
      ASSERT_TRUE(setup.world.at(setup.world.now(), Fault::control_heal(0, 1)));
    }
    ASSERT_TRUE(setup.world.run_until([&] { return setup.ended.count() == number; }, 20s));
    setup.world.run_for(1s);
    setup.expect_in_order();
    EXPECT_EQ(setup.got[1].size(), number / 2) << "the small ones";
    for (const Event& event : setup.ended.events) {
      EXPECT_EQ(event.code, event.tag % 2 == 0 ? Errc::kCancelled : Errc::kOk) << event.tag;
      if (event.tag % 2 == 0) {
        EXPECT_EQ(event.remote, Remote::kNotDelivered);
      }
    }
    setup.send(1, number, 20s, kMiB);
    ASSERT_TRUE(setup.world.run_until([&] { return setup.ended.count() == number + 1; }, 20s));
    EXPECT_EQ(setup.got[1].back(), number) << "all credits are back";
  }
}

TEST(LargeMessage, WithoutAListenerIsAnsweredOnce) {
  NumberedMessages setup({});
  setup.send(7, 0, 5s, kMiB);
  setup.send(7, 1, 5s, 100);
  setup.send(1, 2, 5s, kMiB);
  (void)setup.a.engine.wait(setup.batch, 10s);
  setup.world.run_for(1s);
  ASSERT_EQ(setup.ended.count(), 3u);
  EXPECT_EQ(setup.ended.find(0u)->code, Errc::kUnsupported);
  EXPECT_EQ(setup.ended.find(1u)->code, Errc::kUnsupported);
  EXPECT_EQ(setup.ended.find(2u)->code, Errc::kOk);
}

TEST(LargeMessage, AboveTheMaximumIsRefused) {
  Config small = short_timeouts_config();
  small.message_bytes_max = 70'000;
  NumberedMessages setup({}, small);
  await_connected(setup.world, setup.a, setup.to.peer);
  EXPECT_EQ(setup.a.engine.peer_info(setup.to.peer)->message_bytes_max, 70'000u);
  const auto too_large = text_of(1, 70'001);
  EXPECT_EQ(setup.a.engine.submit(Send{.peer = setup.to.peer, .channel = 1, .bytes = too_large})
                .error()
                .code,
            Errc::kTooLarge);
  setup.send(1, 1, 5s, 70'000);
  ASSERT_TRUE(setup.a.engine.wait(setup.batch, 5s));
  EXPECT_EQ(setup.arrived(), 1u);
}

/// Keeps `many` messages of `size` bytes in flight on a channel, from a to b. They are sent one
/// after another, so that at no time all of them are acknowledged.
struct Flood {
  Flood(NumberedMessages& messages, uint16_t on, uint32_t many, size_t bytes)
      : setup(messages), channel(on), size(bytes), batch(*messages.a.engine.make_batch()) {
    ended.then = [this](const Event& event) {
      EXPECT_TRUE(stopped || event.code == Errc::kOk) << to_string(event.code);
      if (!stopped) send();
    };
    for (uint32_t i = 0; i < many; ++i) {
      send();
      setup.world.run_for(Nanos(500));
    }
  }
  ~Flood() {
    stopped = true;
    EXPECT_TRUE(setup.a.engine.wait(batch, 10s));
    setup.world.run_for(1ms);
  }
  void send() {
    const auto text = text_of(next++, size);
    const auto op = setup.a.engine.submit(Send{.peer = setup.to.peer,
                                               .channel = channel,
                                               .bytes = text,
                                               .timeout = 10s,
                                               .batch = batch,
                                               .notify = ended.notify()});
    EXPECT_TRUE(op) << op.error().what;
  }
  NumberedMessages& setup;
  const uint16_t channel;
  const size_t size;
  uint32_t next = 0;
  bool stopped = false;
  EventRecorder ended;
  Batch batch;
};

/// Until a message of `size` bytes on the channel has been delivered.
Nanos time_of(NumberedMessages& setup, uint16_t channel, size_t size) {
  static constexpr uint32_t kNumber = 1'000'000;
  const Nanos begin = setup.world.now();
  const size_t before = setup.ended.count();
  setup.send(channel, kNumber, 20ms, size);
  EXPECT_TRUE(setup.world.run_until([&] { return setup.ended.count() > before; }, 40ms));
  EXPECT_EQ(setup.ended.events.back().code, Errc::kOk);
  return setup.world.now() - begin;
}

TEST(LargeMessage, GoesOnBesideSmallOnesThatAreAlwaysInFlight) {
  NumberedMessages setup({});
  await_connected(setup.world, setup.a, setup.to.peer);
  const Nanos alone = time_of(setup, 2, 256u << 10);
  const Flood flood(setup, 1, 32, 64);
  setup.world.run_for(1ms);
  EXPECT_LE(time_of(setup, 2, 256u << 10), 4 * alone);
  setup.expect_in_order();
}

// The answers to small messages are numbered messages too, but not parts.
TEST(LargeMessage, GoesOnBesideTheAnswersToAFlood) {
  NumberedMessages setup({});
  await_connected(setup.world, setup.a, setup.to.peer);
  EventRecorder back, ended;
  const auto listener = *setup.a.engine.listen(5, back.notify());
  const Flood flood(setup, 1, 32, 64);
  const Flood another(setup, 2, 32, 64);
  setup.world.run_for(1ms);
  const auto text = text_of(1, 256u << 10);
  ASSERT_TRUE(setup.b.engine.submit(Send{.peer = setup.b.engine.peers().at(0),
                                         .channel = 5,
                                         .bytes = text,
                                         .timeout = 20ms,
                                         .notify = ended.notify()}));
  ASSERT_TRUE(setup.world.run_until([&] { return ended.count() == 1; }, 40ms));
  EXPECT_EQ(ended.events[0].code, Errc::kOk);
  ASSERT_EQ(back.count(), 1u);
  EXPECT_EQ(back.messages[0], text);
}

// Whichever channel has the lower number.
TEST(LargeMessage, SharesTheSessionWithAStreamOnAnotherChannel) {
  for (const uint16_t channel : {uint16_t{1}, uint16_t{2}}) {
    SCOPED_TRACE(testing::Message() << "channel " << channel);
    NumberedMessages setup({});
    await_connected(setup.world, setup.a, setup.to.peer);
    const Nanos alone = time_of(setup, channel, kMiB);
    const Flood stream(setup, channel == 1 ? 2 : 1, 2, kMiB);
    setup.world.run_for(1ms);
    for (int i = 0; i < 3; ++i) EXPECT_LE(time_of(setup, channel, kMiB), 3 * alone);
    const uint32_t before = stream.next;
    time_of(setup, channel, kMiB);
    EXPECT_GT(stream.next, before) << "the stream must go on as well";
  }
}

TEST(LargeMessage, ManyOnAllChannelsEndTogether) {
  NumberedMessages setup(hostile_control(test_seed()));
  await_connected(setup.world, setup.a, setup.to.peer);
  for (uint32_t i = 0; i < 6; ++i) {
    for (uint16_t channel = 1; channel <= NumberedMessages::kChannels; ++channel) {
      setup.send(channel, i, 50s, i % 3 == 2 ? 100 : 300'000);
    }
  }
  ASSERT_TRUE(setup.a.engine.wait(setup.batch, 60s));
  EXPECT_EQ(setup.arrived(), 18u);
  setup.expect_in_order();
}

/// Sends the parts of a message of 70,000 bytes by hand.
struct ScriptedParts : ScriptedSender {
  static constexpr uint32_t kTotal = 70'000, kPart = 10'000;
  uint64_t seq = 0;

  void part(uint32_t ref, uint32_t offset, uint32_t size, uint32_t total = kTotal,
            uint16_t channel = 1) {
    const auto text = text_of(ref, total);
    send(++seq, MessageType::kMessagePart,
         control::encode(control::MessagePart{.ref = ref,
                                              .channel = channel,
                                              .total_bytes = total,
                                              .offset = offset,
                                              .bytes = std::span(text).subspan(offset, size)}));
  }
  void parts(uint32_t ref, uint32_t from, uint32_t upto) {
    for (uint32_t at = from; at < upto; at += kPart) part(ref, at, kPart);
  }
};

TEST(MessageParts, ThatDoNotContinueAreDropped) {
  expect_log("a control message does not parse");
  ScriptedParts setup;
  setup.parts(1, 0, 30'000);
  setup.part(1, 40'000, 30'000);  // a gap
  setup.parts(1, 30'000, 70'000);
  EXPECT_TRUE(setup.got.empty());
  setup.parts(2, 0, 30'000);
  setup.part(2, 20'000, 10'000);  // again
  setup.parts(3, 0, 30'000);
  setup.part(3, 30'000, 10'000, 80'000);  // another size
  setup.parts(4, 0, 30'000);
  setup.parts(5, 0, 30'000);  // another message before the end
  setup.parts(5, 30'000, 70'000);
  setup.part(6, 10'000, 10'000);  // no beginning
  EXPECT_TRUE(setup.got.empty());
  setup.parts(7, 0, 70'000);
  EXPECT_EQ(setup.got, (std::vector<uint32_t>{7}));
  EXPECT_EQ(setup.received.messages.back(), text_of(7, 70'000));
}

TEST(MessageParts, OfAWithdrawnMessageAreForgotten) {
  ScriptedParts setup;
  setup.parts(1, 0, 60'000);
  setup.part(1, 60'000, 0);
  setup.part(9, 60'000, 0);  // never begun
  setup.parts(2, 0, 70'000);
  EXPECT_EQ(setup.got, (std::vector<uint32_t>{2}));
}

// A peer that acknowledges nothing: the sender keeps few copies, and nothing waits beyond its
// deadline.
TEST(MessageParts, InFlightAreFew) {
  ScriptedWorld world;
  Engine engine = world.open();
  ScriptedPeer scripted(world, engine.address());
  scripted.hello.message_bytes_max = kMiB;
  scripted.hello.message_credits = 64;
  scripted.send_hello();
  world.run_for(1ms);
  scripted.read();
  scripted.send(MessageType::kReady);
  world.run_for(1ms);
  EventRecorder ended;
  const auto text = text_of(1, kMiB);
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine.submit(Send{.peer = engine.peers().at(0),
                                   .channel = static_cast<uint16_t>(i),
                                   .bytes = text,
                                   .timeout = 1s,
                                   .notify = ended.notify()}));
  }
  world.run_for(500ms);
  std::set<uint64_t> numbers;
  for (const ControlFrame& frame : scripted.take(MessageType::kMessagePart)) {
    numbers.insert(frame.header.seq);
  }
  EXPECT_GE(numbers.size(), 8u);
  EXPECT_LE(numbers.size(), 16u);
  world.run_for(1s);
  ASSERT_EQ(ended.count(), 3u);
  for (const Event& event : ended.events) {
    EXPECT_EQ(event.code, Errc::kTimeout);
    EXPECT_EQ(event.remote, Remote::kNotDelivered) << "its last part was never sent";
  }
}

}  // namespace
}  // namespace fabric::test::messages_test

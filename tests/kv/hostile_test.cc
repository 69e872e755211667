#include <gtest/gtest.h>

#include "harness/host.h"
#include "kv/kv_cluster.h"
#include "support/log_guard.h"
#include "workloads/kv/message.h"

// A prefiller and bytes that no Decoder would send: an engine without a Decoder encodes them by
// hand. Each is refused with a code that says why, and nothing is held for it.

namespace fabric::kv::test::hostile_test {
namespace {

using wire::MessageKind;

constexpr uint64_t kFirstSerial = (uint64_t{7} << wire::kIncarnationShift) + 1;
constexpr uint32_t kPages = 16, kLayers = 2;

struct Answer {
  MessageKind kind = MessageKind::kAccept;
  uint64_t serial = 0;
  RefuseCode refused = RefuseCode::kNone;
  uint64_t landed = 0, unknown = 0;
};

/// Two groups of one tensor each, with layers of their own.
Layout two_groups(const std::vector<uint32_t>& which) {
  Layout layout{.model_hash = 7};
  uint64_t bytes = 0;
  for (const uint32_t g : which) {
    CacheGroup group{.name = g == 0 ? "a" : "b", .page_tokens = kPageTokens, .pages = kPages};
    for (uint32_t i = 0; i < kLayers; ++i) group.layers.push_back(g * kLayers + i);
    Tensor tensor{.name = g == 0 ? "ka" : "kb", .dtype = "bf16", .element_bytes = 2};
    tensor.heads_total = kHeads;
    tensor.head_size = 4;
    tensor.offset_bytes = bytes;
    bytes += *place_tensor(
        tensor, {.page_tokens = kPageTokens, .tp_size = 1, .pages = kPages, .layers = kLayers});
    group.tensors.push_back(tensor);
    layout.groups.push_back(group);
  }
  layout.region_bytes = {bytes};
  return layout;
}

class BareDecoder {
 public:
  BareDecoder(sim::World& world, const Side& prefill, const Layout& decode,
              std::string_view address)
      : node(world.add_node()),
        layout(decode),
        engine(*world.open(node, fabric::test::short_timeouts_config())),
        memory(*engine.allocate({.size_bytes = decode.region_bytes[0]})),
        inbox(*engine.make_inbox(4096)),
        listening(*engine.listen(kDefaultDecodeChannel, Notify::inbox(inbox))),
        counter(*engine.make_counter()),
        peer(*engine.connect(address)),
        plan_(*plan(prefill, Side{{decode}})) {}

  void send(const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(
        engine.submit(Send{.peer = peer, .channel = kDefaultPrefillChannel, .bytes = bytes}));
  }
  void hello(uint64_t next_serial = kFirstSerial, uint16_t from = kDefaultDecodeChannel) {
    const auto encoded = *encode(layout);
    send(wire::encode_hello(from, {.next_serial = next_serial, .layout = encoded}));
  }
  void grants(std::span<const std::byte> desc, uint32_t generation = 1) {
    send(wire::encode_grants(kDefaultDecodeChannel,
                             {.generation = generation, .total = 1, .descs = {desc}}));
  }
  /// HELLO and a grant that is good.
  void introduce() {
    hello();
    granted.push_back(*memory.grant(peer));
    grants(granted.back().desc);
  }
  /// A dispatch that is accepted: one page, of the first group.
  wire::Dispatch good(const std::string& id, uint64_t number = 0) const {
    wire::Dispatch out{.serial = kFirstSerial + number, .id = id};
    out.plan_hash = plan_.target_hashes[0];
    out.prompt_tokens = kPageTokens;
    out.set_generation = 1;
    out.cached_tokens.assign(plan_.groups.size(), 0);
    out.counter_keys = {counter.key().wire()};
    out.pages.resize(plan_.groups.size());
    for (const PairGroup& group : plan_.pairs[0].groups) out.pages[group.group].ids = {3};
    return out;
  }
  void dispatch(const wire::Dispatch& one) {
    send(wire::encode_dispatch(kDefaultDecodeChannel, one));
  }
  std::vector<Answer> answers() {
    Event event;
    while (inbox.poll({&event, 1}) == 1) {
      if (event.kind != EventKind::kMessage) continue;
      Answer out;
      out.kind = wire::decode_head(event.bytes())->kind;
      if (const auto accept = wire::decode_accept(event.bytes())) out.serial = accept->serial;
      if (const auto refuse = wire::decode_refuse(event.bytes());
          out.kind == MessageKind::kRefuse && refuse) {
        out.serial = refuse->serial;
        out.refused = refuse->code;
      }
      if (const auto ended = wire::decode_ended(event.bytes());
          out.kind == MessageKind::kConfirm && ended) {
        out.serial = ended->serial;
        out.landed = ended->landed;
        out.unknown = ended->unknown;
      }
      seen_.push_back(out);
    }
    return seen_;
  }

  uint32_t node;
  Layout layout;
  Engine engine;
  MemoryRegion memory;
  Inbox inbox;
  Subscription listening;
  Counter counter;
  PeerId peer;
  std::vector<Grant> granted;

 private:
  TransferPlan plan_;
  std::vector<Answer> seen_;
};

class KvHostile : public testing::Test {
 protected:
  KvHostile() { open({two_groups({0})}, two_groups({0})); }
  void SetUp() override {
    for (const char* part : {"peer", "path", "rail", "drain"}) fabric::test::expect_log(part);
  }
  void open(const std::vector<Layout>& ranks, const Layout& decode,
            const PrefillerOptions& given = {}) {
    decoders.clear();
    prefiller.reset();
    memory.reset();
    engine.emplace(*world.open(world.add_node(), config()));
    memory.emplace(*engine->allocate({.size_bytes = ranks[0].region_bytes[0]}));
    fabric::test::fill(memory->bytes(), 3);
    options = given;
    options.side = Side{ranks};
    options.regions = {memory->id()};
    prefiller.emplace(*Prefiller::open(*engine, options));
    decode_layout = decode;
  }
  virtual Config config() const { return fabric::test::short_timeouts_config(); }
  BareDecoder& add_decoder() {
    decoders.push_back(
        std::make_unique<BareDecoder>(world, options.side, decode_layout, engine->address_text()));
    return *decoders.back();
  }
  void run(Nanos time = 20ms) {
    const Nanos end = world.now() + time;
    (void)world.run_until(
        [&] {
          poll();
          return world.now() >= end;
        },
        time);
    poll();
  }
  void poll() {
    PrefillEvent batch[8];
    for (uint32_t n = prefiller->poll(batch); n > 0; n = prefiller->poll(batch)) {
      events.insert(events.end(), batch, batch + n);
    }
  }
  uint32_t count(PrefillEvent::Kind kind, const std::string& id) const {
    uint32_t out = 0;
    for (const PrefillEvent& event : events) out += event.kind == kind && event.id == id;
    return out;
  }
  /// The only answer is a refusal with this code, and nothing is held.
  void expect_refused(BareDecoder& decoder, RefuseCode code) {
    run();
    const auto answers = decoder.answers();
    ASSERT_EQ(answers.size(), 1u) << to_string(code);
    EXPECT_EQ(answers[0].kind, MessageKind::kRefuse);
    EXPECT_EQ(answers[0].serial, kFirstSerial);
    EXPECT_STREQ(to_string(answers[0].refused), to_string(code));
    EXPECT_EQ(prefiller->stats().dispatches, 0u);
  }
  template <class Change>
  void refused(RefuseCode code, Change change) {
    BareDecoder& decoder = add_decoder();
    decoder.introduce();
    wire::Dispatch one = decoder.good("r" + std::to_string(decoders.size()));
    change(one);
    decoder.dispatch(one);
    expect_refused(decoder, code);
  }

  sim::World world;
  std::optional<Engine> engine;
  std::optional<MemoryRegion> memory;
  std::optional<Prefiller> prefiller;
  PrefillerOptions options;
  Layout decode_layout;
  std::vector<std::unique_ptr<BareDecoder>> decoders;
  std::vector<PrefillEvent> events;
};

TEST_F(KvHostile, AGoodDispatchIsAcceptedAndOneWithAnUnknownSessionIsNot) {
  BareDecoder& good = add_decoder();
  good.introduce();
  good.dispatch(good.good("r"));
  run();
  ASSERT_EQ(good.answers().size(), 1u);
  EXPECT_EQ(good.answers()[0].kind, MessageKind::kAccept);
  BareDecoder& silent = add_decoder();
  silent.dispatch(silent.good("s"));
  silent.send(wire::encode_cancel(kDefaultDecodeChannel, kFirstSerial + 5));
  run();
  ASSERT_EQ(silent.answers().size(), 2u);
  EXPECT_EQ(silent.answers()[0].refused, RefuseCode::kUnknownDecoder);
  EXPECT_EQ(silent.answers()[1].kind, MessageKind::kConfirm);
  EXPECT_EQ(silent.answers()[1].unknown, 1u) << "nothing is known of its writes";
  EXPECT_EQ(prefiller->stats().decoders, 1u) << "only HELLO makes a session";
}

// A page list is kept as long as its request: one that no write uses must be empty.
constexpr uint32_t kFarPage = 1u << 26;

TEST_F(KvHostile, PagesOfAGroupThatIsCachedAreRefused) {
  refused(RefuseCode::kPages, [](wire::Dispatch& d) {
    d.cached_tokens = {kPageTokens};
    d.pages = {{.first = kFarPage, .ids = {0}}};
  });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) {
    d.cached_tokens = {kPageTokens};
    d.pages = {{.first = kFarPage, .ids = {}}};
  });
}

TEST_F(KvHostile, PagesOfAGroupThatThisRankDoesNotHaveAreRefused) {
  Layout first = two_groups({0}), second = two_groups({1});
  first.pp_size = second.pp_size = 2;
  second.pp_rank = 1;
  open({first, second}, two_groups({0, 1}));
  refused(RefuseCode::kPages,
          [](wire::Dispatch& d) { d.pages[1] = {.first = kFarPage, .ids = {0}}; });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages[1].ids.assign(1000, 0); });
}

TEST_F(KvHostile, PageListsThatDoNotFitThePromptAreRefused) {
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages[0].ids.clear(); });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages[0].ids = {3, 4}; });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages[0].first = 1; });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages[0].ids = {kPages}; });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.pages.clear(); });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.prompt_tokens = UINT32_MAX; });
  refused(RefuseCode::kPages, [](wire::Dispatch& d) { d.counter_keys.clear(); });
  refused(RefuseCode::kPlanDiffers, [](wire::Dispatch& d) { ++d.plan_hash; });
}

/// The pages before the first one that is sent are not in the dispatch.
TEST_F(KvHostile, PagesAfterACachedPrefixGoWhereTheyBelong) {
  BareDecoder& decoder = add_decoder();
  decoder.introduce();
  wire::Dispatch one = decoder.good("r");
  one.prompt_tokens = 3 * kPageTokens;
  one.cached_tokens = {2 * kPageTokens};
  one.pages = {{.first = 2, .ids = {5}}};
  decoder.dispatch(one);
  ASSERT_TRUE(
      prefiller->offer({.id = "r", .prompt_tokens = 3 * kPageTokens, .pages = {{7, 8, 9}}}));
  run();
  const PassEntry entry{.id = "r", .tokens = {0, 3 * kPageTokens}};
  ASSERT_TRUE(prefiller->layer_done(*prefiller->pass({&entry, 1}) + kLayers));
  ASSERT_TRUE(prefiller->finish("r", 0));
  run();
  EXPECT_EQ(decoder.counter.count(), uint64_t{kLayers});
  for (uint32_t l = 0; l < kLayers; ++l) {
    EXPECT_TRUE(std::ranges::equal(head_bytes(decoder.layout, decoder.memory.bytes(), 0, l, 5, 1),
                                   head_bytes(decoder.layout, memory->bytes(), 0, l, 9, 1)));
  }
  EXPECT_EQ(count(PrefillEvent::Kind::kSourceFree, "r"), 1u);
}

TEST_F(KvHostile, DescriptorsThatAreForgedStaleOrOfAnotherPeerAreRefused) {
  BareDecoder& forged = add_decoder();
  forged.hello();
  std::vector<std::byte> desc = forged.memory.grant(forged.peer)->desc;
  for (std::byte& byte : desc) byte ^= std::byte{0x5a};
  forged.grants(desc);
  forged.dispatch(forged.good("forged"));
  expect_refused(forged, RefuseCode::kGrants);

  BareDecoder& foreign = add_decoder();
  foreign.hello();
  foreign.grants(forged.memory.grant(forged.peer)->desc);
  foreign.dispatch(foreign.good("foreign"));
  expect_refused(foreign, RefuseCode::kGrants);

  BareDecoder& stale = add_decoder();
  stale.introduce();
  wire::Dispatch other = stale.good("stale");
  other.set_generation = 2;
  stale.dispatch(other);
  expect_refused(stale, RefuseCode::kGrants);

  BareDecoder& revoked = add_decoder();
  revoked.hello();
  const Grant grant = *revoked.memory.grant(revoked.peer);
  revoked.grants(grant.desc);
  run();
  ASSERT_TRUE(revoked.engine.submit(Revoke{.grant = grant.id}));
  run();
  revoked.grants(grant.desc, 2);
  wire::Dispatch late = revoked.good("revoked");
  late.set_generation = 2;
  revoked.dispatch(late);
  expect_refused(revoked, RefuseCode::kGrants);
}

TEST_F(KvHostile, ADispatchThatIsTruncatedIsRefusedAndNotForgotten) {
  BareDecoder& decoder = add_decoder();
  decoder.introduce();
  auto bytes = wire::encode_dispatch(kDefaultDecodeChannel, decoder.good("r"));
  bytes.resize(bytes.size() - 3);
  decoder.send(bytes);
  expect_refused(decoder, RefuseCode::kBadMessage);
  EXPECT_EQ(prefiller->stats().bad_messages, 1u);
  bytes.resize(9);  // not even a serial number
  decoder.send(bytes);
  decoder.dispatch(decoder.good("r", 1));
  run();
  ASSERT_EQ(decoder.answers().size(), 2u);
  EXPECT_EQ(decoder.answers()[1].kind, MessageKind::kAccept);
}

TEST_F(KvHostile, AFullPrefillerSaysSo) {
  PrefillerOptions small;
  small.requests_max = 1;
  open({two_groups({0})}, two_groups({0}), small);
  BareDecoder& decoder = add_decoder();
  decoder.introduce();
  decoder.dispatch(decoder.good("a"));
  decoder.dispatch(decoder.good("b", 1));
  run();
  ASSERT_EQ(decoder.answers().size(), 2u);
  EXPECT_EQ(decoder.answers()[0].kind, MessageKind::kAccept);
  EXPECT_EQ(decoder.answers()[1].refused, RefuseCode::kCapacity);
}

TEST_F(KvHostile, ADecoderTooManyIsRefusedAndNotIgnored) {
  PrefillerOptions small;
  small.decoders_max = 1;
  open({two_groups({0})}, two_groups({0}), small);
  BareDecoder& first = add_decoder();
  first.introduce();
  run();
  BareDecoder& second = add_decoder();
  second.introduce();
  second.dispatch(second.good("r"));
  expect_refused(second, RefuseCode::kCapacity);
}

TEST_F(KvHostile, ASerialNumberIsServedOnce) {
  BareDecoder& decoder = add_decoder();
  decoder.introduce();
  decoder.dispatch(decoder.good("r"));
  run();
  decoder.dispatch(decoder.good("r"));
  decoder.dispatch(decoder.good("other"));
  run();
  EXPECT_EQ(prefiller->stats().accepted, 1u);
  EXPECT_EQ(prefiller->stats().duplicates, 2u);
  EXPECT_EQ(prefiller->stats().dispatches, 1u);
  decoder.hello();  // it may come again
  wire::Dispatch foreign = decoder.good("foreign");
  foreign.serial += uint64_t{1} << wire::kIncarnationShift;
  decoder.dispatch(foreign);
  run();
  EXPECT_EQ(prefiller->stats().dispatches, 1u) << "the same HELLO changes nothing";
  EXPECT_EQ(decoder.answers().back().refused, RefuseCode::kUnknownDecoder);
}

/// Layouts that peers invent must not be planned and kept without end.
TEST_F(KvHostile, PlansInUseAreBounded) {
  BareDecoder& decoder = add_decoder();
  for (uint32_t i = 0; i < 257; ++i) {
    decoder.layout.groups[0].pages = kPages - 8 + i % 8;
    decoder.layout.groups[0].layers.resize(kLayers);
    decoder.layout.region_bytes[0] = two_groups({0}).region_bytes[0] + 16 * i;
    decoder.hello(kFirstSerial, static_cast<uint16_t>(1000 + i));
    if (i % 32 == 0) run(1ms);
  }
  run();
  wire::Dispatch one = decoder.good("r");
  decoder.send(wire::encode_dispatch(1000 + 256, one));
  EXPECT_EQ(prefiller->stats().decoders, 257u);
  run();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().refused, RefuseCode::kCapacity);
}

// ---- One decoder that has stopped ---------------------------------------------------------------

class KvStoppedDecoder : public KvHostile {
 protected:
  KvStoppedDecoder() { open({two_groups({0})}, two_groups({0})); }
  Config config() const override {
    Config config = fabric::test::short_timeouts_config();
    config.ops_max = 64;
    return config;
  }
  static constexpr uint32_t kRequests =
      40;  ///< of one page and two writes: more than there is room
  void ask(BareDecoder& decoder, const std::string& name) {
    decoder.introduce();
    for (uint32_t i = 0; i < kRequests; ++i) {
      const std::string id = name + std::to_string(i);
      decoder.dispatch(decoder.good(id, i));
      ASSERT_TRUE(
          prefiller->offer({.id = id, .prompt_tokens = kPageTokens, .pages = {{i % kPages}}}));
      run(1ms);
    }
    run();
  }
  void compute(const std::string& name) {
    for (uint32_t i = 0; i < kRequests; ++i) {
      const std::string id = name + std::to_string(i);
      const PassEntry entry{.id = id, .tokens = {0, kPageTokens}};
      ASSERT_TRUE(prefiller->layer_done(*prefiller->pass({&entry, 1}) + kLayers));
      ASSERT_TRUE(prefiller->finish(id, 0));
    }
  }
};

TEST_F(KvStoppedDecoder, HoldsUpNoOtherDecoder) {
  BareDecoder& stopped = add_decoder();
  BareDecoder& runs = add_decoder();
  ask(stopped, "stopped");
  ask(runs, "runs");
  ASSERT_TRUE(world.at(world.now(), sim::Fault::stop(stopped.node)));
  run(100us);
  compute("stopped");
  EXPECT_GT(prefiller->stats().blocked, 0u);
  const uint64_t exhausted = prefiller->stats().exhausted;
  compute("runs");
  EXPECT_GT(prefiller->stats().exhausted, exhausted) << "it has to wait for room too";
  run(20ms);
  for (uint32_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(count(PrefillEvent::Kind::kSourceFree, "runs" + std::to_string(i)), 1u) << i;
  }
  EXPECT_GT(prefiller->stats().blocked, 0u) << "the other one still waits";
  // Nothing of it was sent: its pages are free as soon as it is cancelled.
  const std::string last = "stopped" + std::to_string(kRequests - 1);
  ASSERT_TRUE(prefiller->cancel(last, 0));
  run(5ms);
  EXPECT_EQ(count(PrefillEvent::Kind::kSourceFree, last), 1u);
  ASSERT_TRUE(world.at(world.now(), sim::Fault::resume(stopped.node)));
  run(5s);
}

}  // namespace
}  // namespace fabric::kv::test::hostile_test

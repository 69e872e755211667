#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"
#include "workloads/kv/message.h"

// A decoder that asks for what it must not get: other layouts, descriptors that are stale, forged
// or missing, page lists that do not fit, requests that are known already. The prefiller refuses
// each with a code and words that say why, keeps nothing of it, and serves others as before. What
// the callers of this process get wrong is in api_test.cc.

namespace fabric::kv::test::bad_input_test {
namespace {

constexpr uint32_t kPrompt = 90, kPool = 32, kLayers = 4;

class KvBadInput : public testing::Test {
 protected:
  KvBadInput()
      : cluster({.retry = false}),
        node(cluster.world.add_node(1, cluster.options.model)),
        engine(*cluster.world.open(node, engine_config(cluster.options, node))),
        memory(*engine.allocate({.size_bytes = layout().region_bytes[0]})),
        tail(*engine.allocate({.size_bytes = kPool * kTailBytes})),
        inbox(*engine.make_inbox(256)),
        listener(*engine.listen(kDefaultDecodeChannel, Notify::inbox(inbox))),
        counter(*engine.make_counter()),
        prefill(*engine.connect(cluster.prefill(0).engine->address_text())) {
    cluster.prefill(0).computes = false;
    cluster.world.run_for(10ms);
  }
  /// An honest decoder is served, and what was refused has left nothing.
  void TearDown() override {
    cluster.prefill(0).computes = true;
    ASSERT_TRUE(cluster.start("honest", kPrompt));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }, 5s));
    EXPECT_TRUE(cluster.attempt("honest").count(DecodeEvent::Kind::kComplete));
    cluster.run_until([&] { return cluster.prefills_idle(); }, 10s);
    cluster.expect_all_back();
  }
  static Layout layout() { return cache_layout(0, 1, kPool, kLayers); }

  void send(std::span<const std::byte> bytes) {
    ASSERT_TRUE(
        engine.submit(Send{.peer = prefill, .channel = kDefaultPrefillChannel, .bytes = bytes}));
  }
  void send_hello(const Layout& layout) {
    const auto bytes = encode(layout);
    ASSERT_TRUE(bytes) << bytes.error().what;
    send(wire::encode_hello(kDefaultDecodeChannel, {.layout = *bytes}));
  }
  void send_grants(const std::vector<std::vector<std::byte>>& descs, uint32_t generation = 1) {
    wire::Grants grants{.generation = generation,
                        .total = static_cast<uint32_t>(descs.size()),
                        .has_tail = descs.size() > 1};
    for (const auto& desc : descs) grants.descs.push_back(desc);
    send(wire::encode_grants(kDefaultDecodeChannel, grants));
  }
  void introduce() {
    send_hello(layout());
    send_grants({memory.grant(prefill)->desc, tail.grant(prefill)->desc});
  }
  wire::Dispatch good(const std::string& id = "bad") {
    const auto planned = plan(cache_side(1, kPool, kLayers), Side{{layout()}});
    wire::Dispatch dispatch{.serial = ++serial, .id = id};
    dispatch.plan_hash = planned->target_hashes[0];
    dispatch.prompt_tokens = kPrompt;
    dispatch.set_generation = 1;
    dispatch.cached_tokens = {0};
    dispatch.counter_keys = {counter.key().wire()};
    dispatch.pages = {{.ids = {0, 1, 2, 3, 4, 5}}};
    return dispatch;
  }
  struct Answer {
    wire::MessageKind kind{};
    std::vector<std::byte> bytes{};
  };
  std::optional<Answer> next_answer(Nanos limit = 1s) {
    Event event;
    std::optional<Answer> answer;
    cluster.run_until(
        [&] {
          if (inbox.poll({&event, 1}) == 0) return false;
          const auto bytes = event.bytes();
          answer = Answer{wire::decode_head(bytes)->kind, {bytes.begin(), bytes.end()}};
          return true;
        },
        limit);
    return answer;
  }
  template <class Change>
  wire::Dispatch with(Change change) {
    wire::Dispatch dispatch = good();
    change(dispatch);
    return dispatch;
  }
  /// The dispatch is refused with this code, in words that contain `why`, at both sides.
  void refused(const wire::Dispatch& dispatch, RefuseCode code, const std::string& why) {
    SCOPED_TRACE(why);
    send(wire::encode_dispatch(kDefaultDecodeChannel, dispatch));
    const auto answer = next_answer();
    ASSERT_TRUE(answer) << "no answer";
    const auto refuse = wire::decode_refuse(answer->bytes);
    ASSERT_TRUE(refuse) << "not a refusal";
    EXPECT_EQ(refuse->serial, dispatch.serial);
    EXPECT_EQ(refuse->code, code) << to_string(refuse->code);
    EXPECT_NE(refuse->text.find(why), std::string::npos) << refuse->text;
    const PrefillEvent& event = cluster.prefill(0).events.back();
    EXPECT_EQ(event.kind, PrefillEvent::Kind::kRefused);
    EXPECT_EQ(event.text, refuse->text);
    EXPECT_EQ(cluster.prefill(0).prefiller->stats().dispatches, 0u);
    EXPECT_EQ(cluster.prefill(0).prefiller->stats().requests, 0u);
  }
  void accepted(const wire::Dispatch& dispatch) {
    send(wire::encode_dispatch(kDefaultDecodeChannel, dispatch));
    const auto answer = next_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->kind, wire::MessageKind::kAccept);
  }
  /// The prefiller computes the request, and gives up: nothing could be written.
  void fails(const wire::Dispatch& dispatch) {
    accepted(dispatch);
    cluster.prefill(0).computes = true;
    cluster.prefill(0).offer(dispatch.id, dispatch.attempt, dispatch.prompt_tokens);
    const auto answer = next_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->kind, wire::MessageKind::kFailed);
    const auto ended = wire::decode_ended(answer->bytes);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->landed, 0u);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.prefill(0).idle(); }, 5s));
  }

  KvCluster cluster;
  uint32_t node;
  Engine engine;
  MemoryRegion memory, tail;
  Inbox inbox;
  Subscription listener;
  Counter counter;
  PeerId prefill;
  uint64_t serial = 0;
};

TEST_F(KvBadInput, ALayoutThatNeverCame) {
  refused(good(), RefuseCode::kUnknownDecoder, "does not know the decoder's layout");
}

TEST_F(KvBadInput, AnUnknownModel) {
  Layout other = layout();
  other.model_hash = 8;
  send_hello(other);
  refused(good(), RefuseCode::kLayout, "model_hash");
}

TEST_F(KvBadInput, ALayoutWithoutAPlan) {
  Layout other = layout();
  other.groups[0].tensors[1].name = "value";
  send_hello(other);
  refused(good(), RefuseCode::kLayout, "has tensor \"v\"");
}

TEST_F(KvBadInput, ALayoutThatCannotBeRead) {
  send(wire::encode_hello(kDefaultDecodeChannel,
                          {.layout = std::vector<std::byte>(100, std::byte{7})}));
  refused(good(), RefuseCode::kLayout, "layout: ");
}

TEST_F(KvBadInput, AnotherPlan) {
  introduce();
  refused(with([](wire::Dispatch& d) { ++d.plan_hash; }), RefuseCode::kPlanDiffers,
          "the two sides have different plans");
}

TEST_F(KvBadInput, DescriptorsThatNeverCameOrAreOfAnEarlierSet) {
  send_hello(layout());
  refused(good(), RefuseCode::kGrants, "descriptors");
  send_grants({memory.grant(prefill)->desc, tail.grant(prefill)->desc}, 2);
  refused(good(), RefuseCode::kGrants, "descriptors");
  refused(with([](wire::Dispatch& d) { d.set = 1, d.set_generation = 2; }), RefuseCode::kGrants,
          "descriptors");
}

TEST_F(KvBadInput, AForgedDescriptor) {
  send_hello(layout());
  auto desc = memory.grant(prefill)->desc;
  const auto tail_desc = tail.grant(prefill)->desc;
  uint32_t generation = 0;
  for (size_t at : {size_t{0}, desc.size() / 2, desc.size() - 1}) {
    auto forged = desc;
    forged[at] ^= std::byte{0x20};
    forged.resize(forged.size() - 1);  // whatever that byte meant, the length is wrong
    send_grants({forged, tail_desc}, ++generation);
    refused(with([&](wire::Dispatch& d) { d.set_generation = generation; }), RefuseCode::kGrants,
            "descriptors");
  }
  send_grants({std::vector<std::byte>(99, std::byte{0x5a}), tail_desc}, ++generation);
  refused(with([&](wire::Dispatch& d) { d.set_generation = generation; }), RefuseCode::kGrants,
          "descriptors");
}

TEST_F(KvBadInput, TooFewDescriptorsOrNoTailRegion) {
  send_hello(layout());
  send_grants({memory.grant(prefill)->desc});
  refused(with([](wire::Dispatch& d) { d.has_tail = true; }), RefuseCode::kGrants, "tail");
  const auto one = memory.grant(prefill)->desc;
  send_grants({one, one, one}, 2);
  refused(with([](wire::Dispatch& d) { d.set_generation = 2; }), RefuseCode::kGrants,
          "descriptors");
}

/// It was good when it was imported: the writes are refused by the NIC, or by the engine.
TEST_F(KvBadInput, AStaleDescriptor) {
  fabric::test::expect_log("path");
  fabric::test::expect_log("rail");
  send_hello(layout());
  const auto grant = memory.grant(prefill);
  send_grants({grant->desc, tail.grant(prefill)->desc});
  cluster.world.run_for(1ms);
  ASSERT_TRUE(engine.submit(Revoke{.grant = grant->id}));
  cluster.world.run_for(10ms);
  fails(good());
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{}; }));
}

/// The region is smaller than the layout said.
TEST_F(KvBadInput, ADescriptorOfLessMemoryThanTheLayoutSays) {
  send_hello(layout());
  const MemoryRegion small = *engine.allocate({.size_bytes = 64});
  send_grants({small.grant(prefill)->desc, tail.grant(prefill)->desc});
  fails(good());
}

TEST_F(KvBadInput, PagesThatDoNotFit) {
  introduce();
  using D = wire::Dispatch&;
  refused(with([](D d) { d.pages[0].ids.push_back(6); }), RefuseCode::kPages, "page lists");
  refused(with([](D d) { d.pages[0].ids.pop_back(); }), RefuseCode::kPages, "page lists");
  refused(with([](D d) { d.pages[0].ids[3] = kPool; }), RefuseCode::kPages, "past the pool");
  refused(with([](D d) { d.pages[0].ids[3] = UINT32_MAX; }), RefuseCode::kPages, "past the pool");
  refused(with([](D d) { d.pages[0].first = 1; }), RefuseCode::kPages, "page lists");
  refused(with([](D d) { d.pages.clear(); }), RefuseCode::kPages, "one list for each group");
  refused(with([](D d) { d.cached_tokens = {0, 0}; }), RefuseCode::kPages, "one list");
  refused(with([](D d) { d.cached_tokens = {3}; }), RefuseCode::kPages, "cached_tokens");
  refused(with([](D d) { d.counter_keys.clear(); }), RefuseCode::kPages, "counter keys");
  refused(with([](D d) { d.per_layer = true; }), RefuseCode::kPages, "counter keys");
  refused(with([](D d) { d.prompt_tokens = UINT32_MAX; }), RefuseCode::kPages, "prompt_tokens");
}

TEST_F(KvBadInput, ARequestThatIsKnownAlready) {
  introduce();
  const wire::Dispatch first = good("r");
  accepted(first);
  // The same message again is answered again; a new one of the same attempt is refused.
  accepted(first);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().duplicates, 1u);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().dispatches, 1u);
  send(wire::encode_dispatch(kDefaultDecodeChannel, good("r")));
  auto answer = next_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(wire::decode_refuse(answer->bytes)->code, RefuseCode::kDuplicate);
  EXPECT_NE(wire::decode_refuse(answer->bytes)->text.find("attempt"), std::string::npos);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().dispatches, 1u) << "the first one is held";
  send(wire::encode_cancel(kDefaultDecodeChannel, first.serial));
  answer = next_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, wire::MessageKind::kConfirm);
  refused(good("r"), RefuseCode::kNotOffered, "this attempt is over");
}

/// Answers to requests that were never made. Numbers past what was asked for are in KvScripted.
TEST_F(KvBadInput, AnswersToNothingAreCountedAndChangeNothing) {
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.prefill(0).prefiller->stats().accepted == 1; }, 1s));
  const PeerId decode = cluster.prefill(0).engine->peers().at(0);
  const auto answer = [&](std::span<const std::byte> bytes) {
    const PeerId to = cluster.prefill(0).engine->peer_info(decode)->engine_id == 100
                          ? decode
                          : cluster.prefill(0).engine->peers().at(1);
    ASSERT_TRUE(cluster.prefill(0).engine->submit(
        Send{.peer = to, .channel = kDefaultDecodeChannel, .bytes = bytes}));
    cluster.world.run_for(1ms);
  };
  answer(wire::encode_ended(kDefaultPrefillChannel, wire::MessageKind::kConfirm,
                            {.serial = 999, .landed = 1}));
  answer(wire::encode_quiet(kDefaultPrefillChannel, 1000, 0));
  EXPECT_EQ(cluster.decoder->stats().stale_messages, 2u);
  EXPECT_FALSE(cluster.attempt("r").count(DecodeEvent::Kind::kFailed));
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
  ASSERT_TRUE(cluster.prefill(0).prefiller->cancel("r", 0));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.over("r"); }, 5s));
}

}  // namespace
}  // namespace fabric::kv::test::bad_input_test

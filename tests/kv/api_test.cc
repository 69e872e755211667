#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// What callers get wrong, and what a peer may send: each is refused with an error that names the
// argument, and nothing is leased. And the calls that are not about one request.

namespace fabric::kv::test::api_test {
namespace {

using Kind = DecodeEvent::Kind;

constexpr uint32_t kPrompt = 90;

class KvApi : public testing::Test {
 protected:
  KvApi() : cluster({.retry = false}), good(sample("r")) {}
  DecodeRequest sample(const std::string& id) {
    return cluster.request(id, kPrompt, 0, 0, {0, 1, 2, 3, 4, 5});
  }
  /// The request is refused with this code, and Error::what begins with the argument's name.
  void refused(const DecodeRequest& request, Errc code, const std::string& argument,
               int32_t native = -1) {
    const auto started = cluster.decoder->start(request);
    ASSERT_FALSE(started) << argument;
    EXPECT_EQ(started.error().code, code) << started.error().what;
    EXPECT_EQ(std::string(started.error().what).rfind(argument, 0), 0u) << started.error().what;
    if (native >= 0) {
      EXPECT_EQ(started.error().native, native) << argument;
    }
    EXPECT_EQ(cluster.decoder->stats().pages_leased, 0u) << argument;
    EXPECT_EQ(cluster.decoder->stats().requests, 0u) << argument;
  }
  template <class Change>
  DecodeRequest with(Change change) {
    DecodeRequest request = good;
    change(request);
    return request;
  }
  KvCluster cluster;
  DecodeRequest good;
};

TEST_F(KvApi, BadRequestsAreRefusedAndNothingIsLeased) {
  using R = DecodeRequest&;
  refused(with([](R r) { r.id = ""; }), Errc::kInvalidArgument, "id", 0);
  refused(with([](R r) { r.id = std::string(257, 'x'); }), Errc::kInvalidArgument, "id", 257);
  refused(with([](R r) { r.info.resize(kInfoBytesMax + 1); }), Errc::kInvalidArgument, "info");
  refused(with([](R r) { r.prefill = 7; }), Errc::kNotFound, "prefill", 7);
  refused(with([](R r) { r.prompt_tokens = 0; }), Errc::kInvalidArgument, "prompt_tokens");
  refused(with([](R r) { r.cached_tokens = {3}; }), Errc::kInvalidArgument, "cached_tokens", 16);
  refused(with([](R r) { r.cached_tokens = {0, 0}; }), Errc::kInvalidArgument, "cached_tokens", 1);
  refused(with([](R r) { r.pages.clear(); }), Errc::kInvalidArgument, "pages", 1);
  refused(with([](R r) { r.pages[0].pop_back(); }), Errc::kInvalidArgument, "pages", 6);
  refused(with([](R r) { r.pages[0][2] = 32; }), Errc::kOutOfBounds, "pages", 32);
  refused(with([](R r) { r.pages[0][2] = r.pages[0][4]; }), Errc::kInvalidArgument, "pages", 4);
  refused(with([](R r) { r.sources.clear(); }), Errc::kInvalidArgument, "sources", 1);
  refused(with([](R r) { r.sources[0].rank = 1; }), Errc::kInvalidArgument, "sources", 0);
  refused(with([](R r) { r.sources[0].address = ""; }), Errc::kInvalidArgument, "sources");
  refused(with([](R r) { r.sources[0].peer = PeerId(900, 1); }), Errc::kNotFound, "peer");
  refused(with([](R r) { r.tail_slot = 32; }), Errc::kInvalidArgument, "tail_slot", 32);
  refused(with([](R r) { r.tail_rank = 3; }), Errc::kInvalidArgument, "tail_rank", 3);
  ASSERT_TRUE(cluster.decoder->start(good)) << "and the good one is not";
}

TEST_F(KvApi, PagesAndTailSlotsOfALeaseAreNotLentAgain) {
  ASSERT_TRUE(cluster.start("r", kPrompt));
  const std::vector<uint32_t> held = cluster.attempt("r").pages;
  DecodeRequest other = cluster.request("other", 20, 0, 0, {20, held[3]});
  EXPECT_EQ(cluster.decoder->start(other).error().code, Errc::kBusy);
  other.pages = {{20, 21}};
  other.tail_slot = held[0];
  EXPECT_EQ(cluster.decoder->start(other).error().code, Errc::kBusy);
  EXPECT_EQ(cluster.decoder->stats().pages_leased, 6u);
  // A cached page is read only: any number of requests may share it.
  DecodeRequest cached = cluster.request("cached", 32, 0, 0, {held[0], 22});
  cached.tail_slot = 22;
  cached.cached_tokens = {16};
  EXPECT_TRUE(cluster.decoder->start(cached));
}

TEST_F(KvApi, AnAttemptMustBeLargerThanTheOneBefore) {
  ASSERT_TRUE(cluster.decoder->start(with([](DecodeRequest& r) { r.attempt = 4; })));
  DecodeRequest other = sample("r");
  other.pages = {{10, 11, 12, 13, 14, 15}};
  other.tail_slot = 10;
  other.attempt = 3;
  EXPECT_EQ(cluster.decoder->start(other).error().code, Errc::kInvalidArgument);
  other.attempt = 5;
  EXPECT_EQ(cluster.decoder->start(other).error().code, Errc::kBusy) << "the first one is running";
  EXPECT_EQ(cluster.decoder->cancel("unknown").error().code, Errc::kNotFound);
}

TEST_F(KvApi, EverythingCachedCompletesWithoutASource) {
  DecodeRequest cached = sample("r");
  cached.cached_tokens = {kPrompt};
  cached.tail_slot = DecodeRequest::kNoTail;
  EXPECT_EQ(*cluster.decoder->count(cached), 0u);
  ASSERT_TRUE(cluster.decoder->start(cached));
  DecodeEvent events[4];
  ASSERT_EQ(cluster.decoder->poll(events), 2u);
  EXPECT_EQ(events[0].kind, Kind::kComplete);
  EXPECT_EQ(events[1].kind, Kind::kMayWrite);
}

TEST_F(KvApi, APrefixThatIsHereIsNeitherCountedNorSent) {
  DecodeRequest cached = sample("r");
  cached.cached_tokens = {48};
  EXPECT_EQ(*cluster.decoder->count(good), 6u * 4 * 2 + 1);
  EXPECT_EQ(*cluster.decoder->count(cached), 3u * 4 * 2 + 1);
}

TEST_F(KvApi, OtherLayoutsAreRefusedByName) {
  Side side = cache_side(1, 32, 4);
  side.ranks[0].model_hash = 8;
  Refusal refusal;
  EXPECT_EQ(cluster.decoder->add_prefill(side, &refusal).error().code, Errc::kUnsupported);
  EXPECT_EQ(refusal.code, RefusalCode::kModelDiffers);
  EXPECT_EQ(cluster.decoder->source_ranks(5).error().code, Errc::kNotFound);
  EXPECT_EQ(*cluster.decoder->add_prefill(cache_side(1, 32, 4)), cluster.side) << "known already";
}

/// The decoder was given another Side than the prefiller has.
TEST_F(KvApi, APlanThatDiffersIsRefusedByThePrefiller) {
  const uint32_t other = *cluster.decoder->add_prefill(cache_side(1, 64, 4));
  const std::vector<uint32_t> pages = *cluster.pool.allocate(6);
  DecodeRequest request = cluster.request("r", kPrompt, 0, 0, pages);
  request.prefill = other;
  ASSERT_TRUE(cluster.decoder->start(request));
  cluster.adopt("r", 0, pages, kPrompt);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  ASSERT_NE(cluster.attempt("r").find(Kind::kFailed), nullptr);
  EXPECT_EQ(cluster.attempt("r").find(Kind::kFailed)->refused, RefuseCode::kPlanDiffers);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kPagesFree));
}

TEST_F(KvApi, BadOffersAndPassesAreRefused) {
  Prefiller& prefiller = *cluster.prefill(0).prefiller;
  const OfferRequest offer{.id = "r", .prompt_tokens = kPrompt, .pages = {{0, 1, 2, 3, 4, 5}}};
  const auto offered = [&](auto change) {
    OfferRequest changed = offer;
    change(changed);
    return prefiller.offer(changed).error().code;
  };
  EXPECT_EQ(offered([](OfferRequest& o) { o.id = ""; }), Errc::kInvalidArgument);
  EXPECT_EQ(offered([](OfferRequest& o) { o.prompt_tokens = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(offered([](OfferRequest& o) { o.pages.clear(); }), Errc::kInvalidArgument);
  EXPECT_EQ(offered([](OfferRequest& o) { o.pages[0][1] = 32; }), Errc::kOutOfBounds);
  EXPECT_EQ(offered([](OfferRequest& o) { o.targets = 0; }), Errc::kInvalidArgument);
  ASSERT_TRUE(prefiller.offer(offer));
  EXPECT_EQ(offered([](OfferRequest&) {}), Errc::kBusy);
  const auto passed = [&](const PassEntry& entry) {
    const auto begun = prefiller.pass({&entry, 1});
    return begun ? Errc::kOk : begun.error().code;
  };
  EXPECT_EQ(passed({.id = "other", .tokens = {0, 10}}), Errc::kNotFound);
  EXPECT_EQ(passed({.id = "r", .tokens = {16, 32}}), Errc::kInvalidArgument) << "a gap";
  EXPECT_EQ(passed({.id = "r", .tokens = {0, kPrompt + 1}}), Errc::kInvalidArgument);
  EXPECT_EQ(prefiller.layer_done(1).error().code, Errc::kInvalidArgument) << "no pass yet";
  EXPECT_EQ(prefiller.finish("r", 0).error().code, Errc::kInvalidArgument) << "no chunk yet";
  EXPECT_EQ(passed({.id = "r", .tokens = {0, 50}}), Errc::kOk);
  EXPECT_EQ(passed({.id = "r", .tokens = {32, 60}}), Errc::kInvalidArgument);
  EXPECT_EQ(prefiller.cancel("other", 0).error().code, Errc::kNotFound);
  ASSERT_TRUE(prefiller.cancel("r", 0));
  EXPECT_EQ(offered([](OfferRequest&) {}), Errc::kCancelled) << "this attempt is over";
  EXPECT_EQ(passed({.id = "r", .tokens = {50, 60}}), Errc::kOk) << "skipped";
}

TEST_F(KvApi, AnOfferThatNoDispatchComesForEndsInTime) {
  cluster.prefill(0).computes = false;
  cluster.prefill(0).offer("alone", 0, 20);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.prefill(0).idle(); }, 10s));
  EXPECT_EQ(cluster.prefill(0).events.back().code, Errc::kTimeout);
}

TEST_F(KvApi, ADispatchThatNoOfferComesForIsRefusedInTime) {
  cluster.prefill(0).then = {};
  KvCluster silent({.retry = false, .deadline = 60s});
  PrefillerOptions options{.side = cache_side(1, 32, 4), .regions = {silent.memory->id()}};
  options.offer_wait = 1s;
  options.channel = 99;
  auto prefiller = Prefiller::open(*silent.prefill(0).engine, options);
  ASSERT_TRUE(prefiller);
  const std::vector<uint32_t> pages = *silent.pool.allocate(6);
  DecodeRequest request = silent.request("r", kPrompt, 0, 0, pages);
  request.sources[0].channel = 99;
  ASSERT_TRUE(silent.decoder->start(request));
  silent.adopt("r", 0, pages, kPrompt);
  PrefillEvent events[8];
  ASSERT_TRUE(silent.run_until(
      [&] {
        (void)prefiller->poll(events);
        return silent.all_over();
      },
      10s));
  ASSERT_NE(silent.attempt("r").find(Kind::kFailed), nullptr);
  EXPECT_EQ(silent.attempt("r").find(Kind::kFailed)->refused, RefuseCode::kNotOffered);
}

TEST_F(KvApi, GarbageOnTheChannelsIsCountedAndChangesNothing) {
  ASSERT_TRUE(cluster.start("first", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  const PeerId prefill = cluster.engine->peers().at(0);
  const PeerId decode = cluster.prefill(0).engine->peers().at(0);
  const std::vector<std::byte> garbage(40, std::byte{0x4b});
  for (size_t size : {size_t{0}, size_t{1}, size_t{5}, size_t{40}}) {
    const std::span<const std::byte> bytes(garbage.data(), size);
    ASSERT_TRUE(cluster.engine->submit(
        Send{.peer = prefill, .channel = kDefaultPrefillChannel, .bytes = bytes}));
    ASSERT_TRUE(cluster.prefill(0).engine->submit(
        Send{.peer = decode, .channel = kDefaultDecodeChannel, .bytes = bytes}));
  }
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kComplete));
  EXPECT_EQ(cluster.decoder->stats().bad_messages, 4u);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().bad_messages, 4u);
}

/// Armed expectations hold slots of the inbox. With all of them nothing could be answered.
TEST_F(KvApi, AQuarterOfTheInboxIsLeftForAnswers) {
  KvCluster small({.model = sim::NicModel::efa_200g(), .retry = false, .inbox_depth = 8});
  uint32_t started = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    const auto one = small.start("r" + std::to_string(i), 20);
    if (one) {
      ++started;
      continue;
    }
    EXPECT_EQ(one.error().code, Errc::kExhausted);
    EXPECT_EQ(std::string(one.error().what).rfind("inbox_depth", 0), 0u) << one.error().what;
    EXPECT_EQ(one.error().native, 6);
  }
  EXPECT_EQ(started, 6u);
  ASSERT_TRUE(small.run_until([&] { return small.all_over(); }, 500ms));
  EXPECT_EQ(small.decoder->stats().completed, started);
  ASSERT_TRUE(small.start("again", 20)) << "there is room again";
  ASSERT_TRUE(small.run_until([&] { return small.all_over(); }, 500ms));
  small.expect_all_back();
}

TEST_F(KvApi, TheLoadOfAPrefillerComesWithItsAnswers) {
  cluster.prefill(0).computes = false;
  cluster.prefill(0).prefiller->set_load(7000);
  EXPECT_FALSE(cluster.decoder->load(PeerId(900, 1)));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kAccepted); }));
  const PeerId peer = cluster.engine->peers().at(0);
  ASSERT_TRUE(cluster.decoder->load(peer));
  EXPECT_EQ(cluster.decoder->load(peer)->queued, 7000u);
  EXPECT_EQ(cluster.decoder->load(peer)->requests, 1u);
  EXPECT_EQ(cluster.decoder->load(peer)->requests_max, PrefillerOptions{}.requests_max);
  cluster.prefill(0).prefiller->set_load(9000);
  cluster.prefill(0).prefiller->drain();
  ASSERT_TRUE(cluster.start("late", 20));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.over("late"); }));
  EXPECT_EQ(cluster.attempt("late").find(Kind::kFailed)->refused, RefuseCode::kDraining);
  EXPECT_EQ(cluster.decoder->load(peer)->queued, 9000u) << "a refusal has it too";
}

TEST_F(KvApi, DrainingEndsWhenTheLastPageIsBack) {
  ASSERT_TRUE(cluster.start("r", kPrompt));
  cluster.then = [&](const DecodeEvent&) { EXPECT_FALSE(cluster.drained) << "too early"; };
  cluster.decoder->drain();
  EXPECT_EQ(cluster.start("late", 20).error().code, Errc::kClosed);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kComplete));
  EXPECT_TRUE(cluster.drained);
  cluster.prefill(0).prefiller->drain();
  cluster.world.run_for(10ms);
  EXPECT_EQ(cluster.prefill(0).events.back().kind, PrefillEvent::Kind::kDrained);
}

TEST_F(KvApi, AWaitForALayerReturnsWhenItMayBeRead) {
  KvCluster layers({.per_layer = true, .retry = false});
  ASSERT_TRUE(layers.start("r", kPrompt));
  layers.decoder_polls = false;  // the waits do the work
  EXPECT_EQ(layers.decoder->layer_ready("r", 9).error().code, Errc::kNotFound);
  EXPECT_FALSE(*layers.decoder->layer_ready("r", 0));
  for (uint32_t layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(layers.decoder->wait_layer("r", layer, 1s)) << layer;
    EXPECT_TRUE(*layers.decoder->layer_ready("r", layer));
  }
  EXPECT_EQ(layers.decoder->wait_layer("unknown", 0, 1s).error().code, Errc::kNotFound);
  layers.decoder_polls = true;
  ASSERT_TRUE(layers.run_until([&] { return layers.all_over(); }));
  layers.expect_all_back();
}

TEST(KvPagePool, GivesEachPageToOneOwner) {
  PagePool pool(4);
  const auto first = pool.allocate(3);
  ASSERT_TRUE(first);
  EXPECT_EQ(pool.allocate(2).error().code, Errc::kExhausted);
  EXPECT_EQ(pool.free(), 1u);
  const std::vector<uint32_t> twice{(*first)[0], (*first)[0]};
  EXPECT_EQ(pool.release(twice).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pool.free(), 1u) << "nothing was released";
  ASSERT_TRUE(pool.release(*first));
  EXPECT_EQ(pool.release(*first).error().code, Errc::kInvalidArgument);
  const auto all = pool.allocate(4);
  ASSERT_TRUE(all);
  EXPECT_EQ((*all)[0], 3u) << "released longest ago";
}

}  // namespace
}  // namespace fabric::kv::test::api_test

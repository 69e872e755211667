#include <poll.h>

#include <optional>

#include <gtest/gtest.h>

#include "harness/pattern.h"
#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// The same objects on engines with threads of their own: layers are pushed from the callback
// thread, and a program sleeps on the descriptor.

namespace fabric::kv::test::threads_test {
namespace {

constexpr uint32_t kPages = 8, kLayers = 4, kPrompt = 60;

class KvThreads : public testing::Test {
 protected:
  KvThreads()
      : world({.realtime = true}),
        layout(cache_layout(0, 1, kPages, kLayers)),
        here(*world.open(world.add_node(), fabric::test::test_config())),
        there(*world.open(world.add_node(), fabric::test::test_config())),
        target(*here.allocate({.size_bytes = layout.region_bytes[0]})),
        source(*there.allocate({.size_bytes = layout.region_bytes[0]})),
        decoder(*Decoder::open(here, {.layout = layout, .regions = {&target}})),
        prefiller(*Prefiller::open(there, prefiller_options())) {
    fabric::test::fill(source.bytes(), 3);
  }
  PrefillerOptions prefiller_options() const {
    PrefillerOptions options{.side = Side{{layout}}, .regions = {source.id()}};
    options.watch_word = true;
    options.polled_word = false;
    return options;
  }
  void start() {
    const uint32_t side = *decoder.add_prefill(Side{{layout}});
    ASSERT_TRUE(decoder.start({.id = "r",
                               .prefill = side,
                               .sources = {{.rank = 0, .address = there.address_text()}},
                               .prompt_tokens = kPrompt,
                               .pages = {{0, 1, 2, 3}}}));
    ASSERT_TRUE(prefiller.offer({.id = "r", .prompt_tokens = kPrompt, .pages = {{0, 1, 2, 3}}}));
  }
  /// Waits for an event of the prefiller, at most some seconds.
  bool prefiller_says(PrefillEvent::Kind kind) {
    PrefillEvent event;
    for (uint32_t i = 0; i < 1000; ++i) {
      while (prefiller.poll({&event, 1}) == 1) {
        if (event.kind == kind) return true;
      }
      (void)decoder.poll({});  // sends the dispatch when the session is up
      (void)prefiller.wait(10ms);
    }
    return false;
  }
  bool holds_everything() const {
    for (uint32_t page = 0; page < 4; ++page) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        const auto a = head_bytes(layout, target.bytes(), 1, l, page, kHeads - 1);
        const auto b = head_bytes(layout, source.bytes(), 1, l, page, kHeads - 1);
        if (!std::ranges::equal(a, b)) return false;
      }
    }
    return true;
  }
  sim::World world;
  Layout layout;
  Engine here, there;
  MemoryRegion target, source;
  Decoder decoder;
  Prefiller prefiller;
};

TEST_F(KvThreads, AWordPushesLayersWhileTheProgramSleepsOnTheDescriptor) {
  const auto fd = decoder.fd();
  ASSERT_TRUE(fd);
  start();
  ASSERT_TRUE(prefiller_says(PrefillEvent::Kind::kDispatched));
  const PassEntry entry{.id = "r", .tokens = {0, kPrompt}};
  const uint64_t begin = *prefiller.pass({&entry, 1});
  prefiller.word_store(begin + 1);
  prefiller.word_store(begin + kLayers);  // steps may be merged
  ASSERT_TRUE(prefiller.finish("r", 0));
  bool complete = false, over = false;
  for (uint32_t i = 0; i < 1000 && !over; ++i) {
    pollfd waits{.fd = *fd, .events = POLLIN, .revents = 0};
    ASSERT_GE(::poll(&waits, 1, 10'000), 1) << "nothing came for ten seconds";
    DecodeEvent event;
    while (decoder.poll({&event, 1}) == 1) {
      complete = complete || event.kind == DecodeEvent::Kind::kComplete;
      over = event.kind == DecodeEvent::Kind::kMayWrite;
    }
  }
  EXPECT_TRUE(complete && over);
  EXPECT_TRUE(holds_everything());
  EXPECT_TRUE(prefiller_says(PrefillEvent::Kind::kSourceFree));
}

TEST_F(KvThreads, EventsThatWaitForPollMakeTheDescriptorReadable) {
  const auto fd = decoder.fd();
  start();
  ASSERT_TRUE(decoder.cancel("r"));
  bool over = false;
  for (uint32_t i = 0; i < 1000 && !over; ++i) {
    pollfd waits{.fd = *fd, .events = POLLIN, .revents = 0};
    ASSERT_GE(::poll(&waits, 1, 10'000), 1) << "nothing came for ten seconds";
    (void)prefiller.poll({});  // its answers
    DecodeEvent one;           // room for one event only
    over = decoder.poll({&one, 1}) == 1 && one.kind == DecodeEvent::Kind::kPagesFree;
  }
  EXPECT_TRUE(over);
}

}  // namespace
}  // namespace fabric::kv::test::threads_test

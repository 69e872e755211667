#include <optional>

#include "threads/engine_harness.h"

// Prepared lists that are destroyed while other threads submit them.

namespace fabric::test::engine_lists_test {
namespace {

constexpr uint32_t kPages = 64;
constexpr uint64_t kPage = 64;

/// The handles that submitters name. One thread replaces them all the time.
struct Current {
  std::mutex mutex;
  PageListId pages;
  WriteListId writes;
};

PagedWrite paged(Area& source, RemoteRegion target, PageListId pages, CounterKey imm,
                 const Notify& notify) {
  const Pages both{.stride_bytes = kPage, .list = pages};
  return {.source = source.region().id(),
          .source_pages = both,
          .target = target,
          .target_pages = both,
          .page_bytes = kPage,
          .imm = imm,
          .notify = notify};
}

ListedWrites listed(Area& source, RemoteRegion target, WriteListId writes, CounterKey imm,
                    const Notify& notify) {
  return {.list = writes,
          .count = kPages,
          .source = source.region().at(0),
          .target = target.at(0),
          .imm = imm,
          .notify = notify};
}

/// Makes, publishes and destroys lists, all of which send page i to page i, in another order.
void replace_lists(Engine& engine, Current& current, uint32_t rounds) {
  std::vector<uint32_t> order(kPages);
  for (uint32_t i = 0; i < kPages; ++i) order[i] = i;
  Rng rng(test_seed());
  for (uint32_t round = 0; round < rounds; ++round) {
    std::swap(order[rng.below(kPages)], order[rng.below(kPages)]);
    std::vector<ListedWrite> writes;
    for (const uint32_t page : order) writes.push_back({page * kPage, page * kPage, kPage});
    const PageList pages = *engine.make_page_list(order);
    const WriteList list = *engine.make_write_list(writes);
    {
      const std::lock_guard lock(current.mutex);
      current.pages = pages;
      current.writes = list;
    }
    // Sometimes they live for a submit or two, sometimes hardly at all.
    if (round % 4 == 0) std::this_thread::sleep_for(100us);
  }
}

// Every submit either uses a list that holds together, or is refused: a list is never half of one
// and half of the next.
TEST(EngineLists, AreDestroyedWhileOthersSubmitThem) {
  Cluster cluster(2);
  Area source(cluster[0], kPages * kPage), target(cluster[1], kPages * kPage);
  for (size_t i = 0; i < source.bytes.size(); ++i) {
    source.bytes[i] = static_cast<std::byte>(1 + i / kPage);
  }
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  Counter counter = *cluster[1].make_counter();
  Current current;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> sent{0}, not_found{0};
  ReportAudit audit(400'000);
  ScopedThreads submitters;
  for (uint32_t t = 0; t < 3; ++t) {
    submitters.add([&, t] {
      Inbox inbox = *cluster[0].make_inbox(8);
      std::array<Event, 8> events;
      std::optional<uint64_t> refused;  // its tag is used again: a busy machine refuses very many
      for (uint32_t i = t; !stop.load() && audit.opened() < 390'000; ++i) {
        PageListId pages;
        WriteListId writes;
        {
          const std::lock_guard lock(current.mutex);
          pages = current.pages;
          writes = current.writes;
        }
        if (!pages) continue;
        const uint64_t tag = refused ? *refused : audit.open();
        refused.reset();
        const Notify notify = Notify::inbox(inbox, tag);
        const auto op =
            i % 2 == 0 ? cluster[0].submit(paged(source, remote, pages, counter.key(), notify))
                       : cluster[0].submit(listed(source, remote, writes, counter.key(), notify));
        if (!op) {
          refused = tag;
          ASSERT_TRUE(op.error().code == Errc::kNotFound || op.error().code == Errc::kExhausted)
              << to_string(op.error().code);
          not_found.fetch_add(op.error().code == Errc::kNotFound);
          continue;
        }
        sent.fetch_add(kPages);
        ASSERT_TRUE(inbox.wait(20s));
        const uint32_t n = inbox.poll(events);
        for (uint32_t at = 0; at < n; ++at) {
          ASSERT_EQ(events[at].code, Errc::kOk);
          audit.report(events[at]);
        }
      }
      if (refused) audit.refused(*refused);
    });
  }
  replace_lists(cluster[0], current, 3000);
  // What the submitters still name is gone: wait until they have seen that.
  const uint64_t before = not_found.load();
  EXPECT_TRUE(eventually([&] { return not_found.load() > before; }));
  stop.store(true);
  submitters.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_GT(sent.load(), 0u);
  EXPECT_TRUE(eventually([&] { return counter.count() == sent.load(); }));
  EXPECT_EQ(source.bytes, target.bytes);
  EXPECT_NE(cluster[0].dump_json().find("\"prepared_lists\":0"), std::string::npos)
      << cluster[0].dump_json();
}

TEST(EngineLists, CloseWhileOthersMakeSubmitAndDestroyThem) {
  for (uint32_t round = 0; round < 10; ++round) {
    Cluster cluster(2);
    Area source(cluster[0], kPages * kPage), target(cluster[1], kPages * kPage);
    const RemoteRegion remote = target.seen_by(cluster[0], cluster.connect(0, 1));
    const PageRange all{0, kPages};
    std::atomic<uint32_t> rounds{0};
    ScopedThreads threads;
    for (uint32_t t = 0; t < 3; ++t) {
      threads.add([&] {
        for (;;) {
          const auto list = cluster[0].make_page_list({&all, 1});
          if (!list) {
            ASSERT_EQ(list.error().code, Errc::kClosed);
            return;
          }
          const Pages both{.stride_bytes = kPage, .list = *list};
          const auto op = cluster[0].submit(PagedWrite{.source = source.region().id(),
                                                       .source_pages = both,
                                                       .target = remote,
                                                       .target_pages = both,
                                                       .page_bytes = kPage});
          // A submit that the close overtakes may find its regions or its peer gone, never its
          // list, whose handle exists.
          if (!op) {
            ASSERT_STRNE(op.error().what, "source_pages.list");
            ASSERT_STRNE(op.error().what, "target_pages.list");
          }
          rounds.fetch_add(1);
        }
      });
    }
    ASSERT_TRUE(eventually([&] { return rounds.load() > 20; }));
    EXPECT_TRUE(cluster[0].close(20s));
    threads.join();
  }
}

}  // namespace
}  // namespace fabric::test::engine_lists_test

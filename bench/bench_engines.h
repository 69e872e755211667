#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fabric/fabric.h>

// A sender and its receivers, all on one thread with the inline runtime and on the shm network, and
// the operations to measure. Each operation runs from submit() until it is complete on both sides,
// and throws when a step fails.

namespace fabric::bench {

template <class T>
T need(Result<T> result, const char* doing) {
  if (!result) throw std::runtime_error(std::string(doing) + ": " + result.error().what);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

inline void need(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

/// One sending engine and its receivers, connected; single-threaded.
class BenchEngines {
 public:
  static constexpr uint32_t kSpan = 64;
  static constexpr uint32_t kPages = 1024;
  static constexpr uint32_t kPageBytes = 64;
  static constexpr uint32_t kWriteBytes = 8;
  static constexpr uint16_t kChannel = 1;

  /// Who allocates the memory: the engines, or the program (then the target copies it by pull).
  enum class Of : uint8_t { kEngines, kProgram };

  explicit BenchEngines(uint32_t receivers = 1, const LogSink& log = {}, Of memory = Of::kEngines)
      : sender_(open(runtime_, log)), source_(memory_of(sender_, heap_, memory)) {
    receivers_.reserve(receivers);
    for (uint32_t i = 0; i < receivers; ++i) {
      receivers_.emplace_back(open(runtime_, log), memory);
      Receiver& to = receivers_.back();
      offers_.push_back(need(
          sender_.accept(need(to.engine.offer(to.region, to.counter.key()), "offer")), "accept"));
      targets_.push_back({.target = offers_[i].region.at(0),
                          .source_offset = 0,
                          .size_bytes = kWriteBytes,
                          .imm = offers_[i].key});
    }
    writes_.fill(a_write());
    for (Write& write : writes_) write.batch = batch_;
    // Reversed, so that no two adjacent pages can be merged.
    std::iota(source_pages_.begin(), source_pages_.end(), 0u);
    std::iota(target_pages_.rbegin(), target_pages_.rend(), 0u);
    make_lists();
  }

  /// One write, submitted, counted and reported.
  void write() {
    Write write = a_write();
    write.notify = Notify::inbox(inbox_);
    need(sender_.submit(write), "submit");
    await_event(inbox_, EventKind::kDone);
    await_counts(receivers_[0], 1);
  }

  /// kSpan writes of one submit().
  void span() {
    submit_span();
    finish_span();
  }

  /// One write to each receiver.
  void scatter() {
    submit_scatter();
    await_event(inbox_, EventKind::kDone);
    take_scatter();
  }
  // Its steps, to count the sender alone: only the sender makes turns until it has the completion.
  void send_scatter() {
    submit_scatter();
    Event event;
    for (uint32_t turns = 0; inbox_.poll({&event, 1}) == 0; ++turns) {
      need(turns < kTurnsMax, "the scatter needs its receivers to complete");
      sender_.progress();
    }
    need(event.kind == EventKind::kDone && event.code == Errc::kOk, "an operation failed");
  }
  void take_scatter() {
    for (Receiver& receiver : receivers_) await_counts(receiver, 1);
  }

  /// kPages pages of one submit().
  void paged() {
    need(sender_.submit(
             PagedWrite{.source = source_.id(),
                        .source_pages = {.indices = source_pages_, .stride_bytes = kPageBytes},
                        .target = offers_[0].region,
                        .target_pages = {.indices = target_pages_, .stride_bytes = kPageBytes},
                        .page_bytes = kPageBytes,
                        .imm = offers_[0].key,
                        .notify = Notify::inbox(inbox_)}),
         "paged write");
    await_event(inbox_, EventKind::kDone);
    await_counts(receivers_[0], kPages);
  }

  /// The same by prepared lists: of indices, or of ranges of 16 pages.
  void listed_pages() { prepared_pages(source_list_, target_list_); }
  void ranged_pages() { prepared_pages(source_ranges_, target_ranges_); }

  /// kPages writes of a prepared list, of different sizes.
  void listed_writes() {
    need(sender_.submit(ListedWrites{.list = write_list_,
                                     .first = 0,
                                     .count = kPages,
                                     .source = source_.at(0),
                                     .target = offers_[0].region.at(0),
                                     .imm = offers_[0].key,
                                     .notify = Notify::inbox(inbox_)}),
         "listed writes");
    await_event(inbox_, EventKind::kDone);
    await_counts(receivers_[0], kPages);
  }

  /// A message, received by the listener and reported to the sender.
  void message() {
    const std::array<std::byte, 64> bytes{};
    need(sender_.submit(Send{.peer = offers_[0].peer,
                             .channel = kChannel,
                             .bytes = bytes,
                             .notify = Notify::inbox(inbox_)}),
         "send");
    await_event(receivers_[0].inbox, EventKind::kMessage);
    await_event(inbox_, EventKind::kDone);
  }

  /// A write that the receiver gets by an expectation; without a notification for the sender.
  void expectation() {
    Receiver& to = receivers_[0];
    need(to.counter.expect(1, Notify::inbox(to.inbox)), "expect");
    need(sender_.submit(a_write()), "submit");
    await_event(to.inbox, EventKind::kDone);
  }

  // The steps of span(), to time them separately.
  void submit_span() {
    need(need(sender_.submit(std::span<const Write>(writes_)), "submit") == kSpan, "a short span");
  }
  void submit_singly() {
    for (const Write& write : writes_) need(sender_.submit(write), "submit");
  }
  void turn_sender() { sender_.progress(); }
  void turn_receiver() { receivers_[0].engine.progress(); }
  void finish_span() {
    while (batch_.pending() != 0) runtime_->turn();
    await_counts(receivers_[0], kSpan);
  }

 private:
  static constexpr uint32_t kRange = 16;
  static constexpr uint64_t kRegionBytes = uint64_t{kPages} * kPageBytes;
  static constexpr uint32_t kTurnsMax = 1000;

  void submit_scatter() {
    need(sender_.submit(
             Scatter{.source = source_.id(), .targets = targets_, .notify = Notify::inbox(inbox_)}),
         "scatter");
  }

  /// A small engine, because there may be many of them in one process.
  static Engine open(const std::shared_ptr<InlineRuntime>& runtime, const LogSink& log) {
    Config config;
    config.log_sink = log;
    config.networks = {{.provider = "shm"}};
    config.peer_timeout = config.lost_timeout =
        std::chrono::hours(1);  // no heartbeats during a measurement
    config.counters_max = 64;
    config.ops_max = 1024;
    return need(Engine::open(config, runtime), "open");
  }

  using Heap = std::unique_ptr<std::byte[]>;
  static MemoryRegion memory_of(Engine& engine, Heap& heap, Of memory) {
    if (memory == Of::kEngines) {
      return need(engine.allocate({.size_bytes = kRegionBytes}), "allocate");
    }
    heap = std::make_unique<std::byte[]>(kRegionBytes);
    return need(engine.register_memory({.address = heap.get(), .size_bytes = kRegionBytes}),
                "register_memory");
  }

  struct Receiver {
    Receiver(Engine opened, Of memory)
        : engine(std::move(opened)), region(memory_of(engine, heap, memory)) {}
    Engine engine;
    Heap heap{};
    MemoryRegion region;
    Counter counter = need(engine.make_counter(), "make_counter");
    Inbox inbox = need(engine.make_inbox(64), "make_inbox");
    Subscription listening = need(engine.listen(kChannel, Notify::inbox(inbox)), "listen");
  };

  Write a_write() const {
    return {.source = source_.at(0),
            .target = offers_[0].region.at(0),
            .size_bytes = kWriteBytes,
            .imm = offers_[0].key};
  }
  void make_lists() {
    source_list_ = need(sender_.make_page_list(source_pages_), "make_page_list");
    target_list_ = need(sender_.make_page_list(target_pages_), "make_page_list");
    std::vector<PageRange> ranges;
    for (uint32_t first = 0; first < kPages; first += kRange) ranges.push_back({first, kRange});
    source_ranges_ = need(sender_.make_page_list(ranges), "make_page_list");
    std::reverse(ranges.begin(), ranges.end());
    target_ranges_ = need(sender_.make_page_list(ranges), "make_page_list");
    std::vector<ListedWrite> writes(kPages);
    for (uint32_t i = 0; i < kPages; ++i) {
      writes[i] = {.source_offset = source_pages_[i] * uint64_t{kPageBytes},
                   .target_offset = target_pages_[i] * uint64_t{kPageBytes},
                   .size_bytes = 8 + i % (kPageBytes - 8)};
    }
    write_list_ = need(sender_.make_write_list(writes), "make_write_list");
  }
  void prepared_pages(PageListId from, PageListId to) {
    need(sender_.submit(PagedWrite{.source = source_.id(),
                                   .source_pages = {.stride_bytes = kPageBytes, .list = from},
                                   .target = offers_[0].region,
                                   .target_pages = {.stride_bytes = kPageBytes, .list = to},
                                   .page_bytes = kPageBytes,
                                   .imm = offers_[0].key,
                                   .notify = Notify::inbox(inbox_)}),
         "paged write");
    await_event(inbox_, EventKind::kDone);
    await_counts(receivers_[0], kPages);
  }
  void await_event(Inbox& inbox, EventKind kind) {
    Event event;
    while (inbox.poll({&event, 1}) == 0) runtime_->turn();
    need(event.kind == kind && event.code == Errc::kOk, "an operation failed");
  }
  void await_counts(Receiver& receiver, uint64_t n) {
    while (!receiver.counter.try_take(n)) runtime_->turn();
  }

  std::shared_ptr<InlineRuntime> runtime_ = std::make_shared<InlineRuntime>();
  Engine sender_;
  Heap heap_{};
  MemoryRegion source_;
  Batch batch_ = need(sender_.make_batch(), "make_batch");
  Inbox inbox_ = need(sender_.make_inbox(64), "make_inbox");
  std::vector<Receiver> receivers_;
  std::vector<Offer> offers_;
  std::vector<ScatterTarget> targets_;
  std::array<Write, kSpan> writes_{};
  std::array<uint32_t, kPages> source_pages_{}, target_pages_{};
  PageList source_list_{}, target_list_{}, source_ranges_{}, target_ranges_{};
  WriteList write_list_{};
};

}  // namespace fabric::bench

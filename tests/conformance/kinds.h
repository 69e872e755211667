#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "conformance/conformance.h"

namespace fabric::test {

/// One request of every kind that succeeds, and what its completion reports.
class Kinds {
 public:
  struct Kind {
    const char* name;
    uint64_t parts, value;
    std::function<Result<OpId>(Notify, BatchId)> submit;
  };

  static constexpr uint64_t kName = 77;
  static constexpr uint16_t kChannel = 5;

  Kinds(DuplexHost& from, DuplexHost& to, const RemoteHost& remote)
      : counter_(*to.engine.make_counter()),
        listener_(*to.engine.listen(kChannel, messages_.notify())),
        peers_{remote.peer},
        group_(*from.engine.make_group(peers_)),
        page_list_(*from.engine.make_page_list(std::span(pages_).first(2))),
        write_list_(*from.engine.make_write_list(writes_)) {
    Engine& e = from.engine;
    key_ = counter_.key();
    targets_ = {ScatterTarget{remote.region.at(0), 0, 700, key_},
                ScatterTarget{remote.region.at(1000), 1000, 300, key_}};
    kinds_ = {
        {"write", 1, 100'000,
         [=, this, &e, &from](Notify n, BatchId batch) {
           return e.submit(Write{.source = from.out.at(0),
                                 .target = remote.region.at(0),
                                 .size_bytes = 100'000,
                                 .imm = key_,
                                 .batch = batch,
                                 .notify = n});
         }},
        {"paged write", 3, 3 * 512,
         [=, this, &e, &from](Notify n, BatchId batch) {
           return e.submit(PagedWrite{.source = from.out.region.id(),
                                      .source_pages = {.indices = pages_, .stride_bytes = 512},
                                      .target = remote.region,
                                      .target_pages = {.indices = pages_, .stride_bytes = 512},
                                      .page_bytes = 512,
                                      .imm = key_,
                                      .batch = batch,
                                      .notify = n});
         }},
        {"scatter", 2, 1000,
         [=, this, &e, &from](Notify n, BatchId batch) {
           return e.submit(Scatter{
               .source = from.out.region.id(), .targets = targets_, .batch = batch, .notify = n});
         }},
        {"signal", 1, 0,
         [=, this, &e](Notify n, BatchId batch) {
           return e.submit(
               Signal{.group = group_, .keys = {&key_, 1}, .batch = batch, .notify = n});
         }},
        {"send", 1, sizeof kName,
         [=, &e](Notify n, BatchId batch) {
           return e.submit(Send{.peer = remote.peer,
                                .channel = kChannel,
                                .bytes = std::as_bytes(std::span(&kName, 1)),
                                .batch = batch,
                                .notify = n});
         }},
        {"timer", 1, 0,
         [=, &e](Notify n, BatchId batch) {
           return e.submit(Timer{.after = 3us, .batch = batch, .notify = n});
         }},
        {"resolve", 1, 1,
         [=, this, &e](Notify n, BatchId batch) {
           return e.submit(Resolve{.peer = remote.peer,
                                   .names = {&kName, 1},
                                   .out = {&resolved_, 1},
                                   .batch = batch,
                                   .notify = n});
         }},
    };
    add_prepared(from, remote);
  }

  const std::vector<Kind>& all() const { return kinds_; }
  /// How often the target must have counted after each kind was sent once.
  static constexpr uint64_t kCounts = 1 + 3 + 4 + 2 + 2 + 1;
  Counter& counter() { return counter_; }
  uint32_t messages() const { return messages_.count(); }
  CounterKey resolved() const { return resolved_; }

 private:
  void add_prepared(DuplexHost& from, const RemoteHost& remote) {
    Engine& e = from.engine;
    const std::vector<Kind> prepared{
        {"paged write by a list", 4, 4 * 128,
         [=, this, &e, &from](Notify n, BatchId batch) {
           const Pages pages{.stride_bytes = 512, .list = page_list_, .inner_stride_bytes = 200};
           return e.submit(PagedWrite{.source = from.out.region.id(),
                                      .source_pages = pages,
                                      .target = remote.region,
                                      .target_pages = pages,
                                      .page_bytes = 128,
                                      .inner_count = 2,
                                      .imm = key_,
                                      .batch = batch,
                                      .notify = n});
         }},
        {"listed writes", 2, 500, [=, this, &e, &from](Notify n, BatchId batch) {
           return e.submit(ListedWrites{.list = write_list_,
                                        .first = 1,
                                        .count = 2,
                                        .source = from.out.at(0),
                                        .target = remote.region.at(0),
                                        .imm = key_,
                                        .batch = batch,
                                        .notify = n});
         }}};
    kinds_.insert(kinds_.begin() + 2, prepared.begin(), prepared.end());
  }

  EventRecorder messages_;  ///< dies after the listener
  Counter counter_;
  Subscription listener_;
  std::array<PeerId, 1> peers_;
  PeerGroup group_;
  CounterKey key_, resolved_;
  std::array<uint32_t, 3> pages_{4, 2, 9};
  std::array<ListedWrite, 3> writes_{{{0, 0, 1}, {100, 900, 400}, {0, 2000, 100}}};
  PageList page_list_;
  WriteList write_list_;
  std::array<ScatterTarget, 2> targets_;
  std::vector<Kind> kinds_;
};

}  // namespace fabric::test

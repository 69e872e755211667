#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "base/rng.h"
#include "swarm/coverage.h"
#include "swarm/plan.h"
#include "swarm/model.h"
#include "swarm/run_result.h"

namespace fabric::swarm {

/// Plays one story and watches.
///
/// deeds.cc does what the story says, ends.cc takes down what is reported and what arrives,
/// checks.cc holds one against the other, stage.cc has the clock and the lives of the nodes.
class Stage {
 public:
  static constexpr Nanos kDrain{300'000'000};  ///< of every engine

  explicit Stage(const Story& story);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage();

  void play();

  const Verdict& verdict() const noexcept { return verdict_; }
  const Coverage& coverage() const noexcept { return coverage_; }
  uint64_t trace_hash() const noexcept { return world_.trace_hash(); }
  Nanos now() const noexcept { return world_.now(); }
  uint64_t ended() const noexcept { return ended_; }
  uint64_t bytes_checked() const noexcept { return bytes_checked_; }

 private:
  struct Source {
    std::unique_ptr<std::byte[]> bytes{};
    std::optional<MemoryRegion> region{};
    uint64_t used = 0;
  };
  /// Where the events of one engine come in.
  struct Ear {
    Stage* stage = nullptr;
    uint32_t node = 0, life = 0;
    static void on_end(void* self, const Event& event);
    static void on_news(void* self, const Event& event);
    static void on_message(void* self, const Event& event);
    static void on_watch(void* self, const Event& event);
    static void on_misuse(void* self, const Event& event);
  };
  /// A process: from open() to close() or a crash.
  struct Life {
    uint32_t number = 0, node = 0;
    std::unique_ptr<Ear> ear{};
    std::optional<Engine> engine{};
    std::optional<Inbox> inbox{};
    Subscription news{}, listener{};
    std::optional<Watcher> watcher{};
    std::vector<Source> sources{};
    std::map<uint32_t, uint32_t> ways{};  ///< by node
    uint64_t stored = 0, watched = 0;
    bool wants_room = false;
  };
  struct OldDesc {
    uint32_t life = 0;
    std::vector<std::byte> bytes{};
  };
  struct Spot {
    LocalRef ref{};
    std::span<std::byte> bytes{};
  };

  // stage.cc
  void act_until(Nanos time);
  void make_trouble(const Trouble& trouble);
  void open(uint32_t node);
  void close(uint32_t node);
  void crash(uint32_t node);
  void bury(uint32_t node, bool politely);
  void reopen_later(uint32_t node, Nanos when);
  Life* life(uint32_t node) noexcept;
  bool alive(uint32_t node, uint32_t number) const noexcept;
  Nanos paused(uint32_t node, Nanos since) const;

  // deeds.cc
  Nanos patience(Rng& dice) const;
  void perform(const Deed& deed);
  void write(Life& life, uint32_t to, Rng& dice, uint32_t how_many);
  void paged(Life& life, uint32_t to, Rng& dice);
  void scatter(Life& life, Rng& dice);
  void signal(Life& life, Rng& dice);
  void send(Life& life, uint32_t to, Rng& dice);
  void greet(Life& life, Way& way);
  void alarm(Life& life, Rng& dice);
  void watch(Life& life);
  void expect(Tally& tally, Rng& dice);
  void expect_some(Life& life, Rng& dice);
  void take_some(Life& life);
  void round(Life& life, Rng& dice);
  void ask(uint32_t round, Nanos timeout);
  void cancel(Life& life, Rng& dice);
  void wait(Life& life, Rng& dice);
  void release(Life& life, Rng& dice);
  void fence(Life& life, uint32_t other, Rng& dice);
  void deregister(Life& life, Rng& dice);
  void disconnect(Life& life, uint32_t other);
  void resolve(Life& life, const Way& way, Tally& tally, Rng& dice);
  Way* reach(Life& life, uint32_t to);
  /// A field of the way's target with that much room; kNobody when there is none to be had.
  uint32_t field_for(Way& way, uint64_t size);
  RemoteRegion region_of(Way& way, uint32_t field);
  Tally* tally_for(Life& life, Way& way, Rng& dice, uint32_t counts);
  Tally* make_tally(uint32_t node, uint64_t wanted, uint64_t name);
  Spot source_for(Life& life, uint64_t size, uint64_t content);
  uint32_t add_part(Task& task, const Way& way, uint32_t field, uint64_t size, uint64_t content,
                    Tally* tally, uint64_t gap);
  Task begin(Life& life, Task::Kind kind, Nanos timeout);
  Notify notify(Life& life, Task& task, Rng& dice, bool may_be_silent);
  void refused(Life& life, Task& task, const Error& error);
  void accepted(Task task, OpId id);
  template <class Request>
  void submit(Life& life, Task task, Request request, Rng& dice);

  // misuse.cc
  void misuse(Life& life, uint32_t other, Rng& dice);
  void misfit(Life& life, uint32_t other, Rng& dice);
  void stranger(Life& life, uint32_t other);
  void must_refuse(std::string_view what, Errc wanted, const Error& error);

  // ends.cc
  void on_arrival(const sim::Arrival& arrival);
  void on_end(const Event& event, uint32_t node, uint32_t life);
  void on_news(const Event& event, uint32_t node, uint32_t life);
  void on_message(const Event& event, uint32_t node, uint32_t life);
  void ended(Task& task, const Event& event);
  bool has_reason(const Task& task, Errc code) const;
  void message_ended(const Task& task, const Event& event);
  void transfer_ended(Task& task, const Event& event);
  void part_ended(Part& part, Remote remote);
  void expectation_ended(Task& task, const Event& event);
  void round_ended(Task& task, const Event& event);
  void fence_ended(uint32_t way);
  void field_ended(uint32_t field);
  void fire(Tally& tally);
  void all_there(Tally& tally);
  void poll_inboxes();
  bool sender_may_be_lost(const Tally& tally) const;
  bool lost(const Way& way) const;

  // checks.cc
  void each_step();
  void check_bounds();
  void check_count(const Tally& tally);
  void check_place();
  void rest();
  void settle_silent();
  void check_rest();
  void check_fields();
  void check_spoiled();
  void check_old_desc(const Way& way);
  void check_leaks();
  std::string find_leak(const Life& life);
  void everything_works();
  std::string try_write(uint32_t from, uint32_t to);
  Way* reach_surely(uint32_t from, uint32_t to);
  void broken(std::string_view invariant, std::string detail);
  std::string describe(const Task& task) const;
  std::string describe(const Tally& tally) const;

  const Story& story_;
  Verdict verdict_;
  Coverage coverage_;
  std::deque<OwnedField> fields_;
  std::deque<Part> parts_;
  std::deque<Way> ways_;
  std::deque<Tally> tallies_;
  std::deque<Round> rounds_;
  std::map<uint64_t, Task> tasks_;
  std::set<std::pair<Nanos, uint64_t>> bounds_;          ///< when each task must have ended
  std::map<std::pair<uint32_t, CounterKey>, uint32_t> by_key_;  ///< live tallies by node and key
  std::set<std::pair<uint32_t, CounterKey>> quiet_;             ///< keys that were proved to be at rest
  std::map<const std::byte*, uint32_t> by_address_;      ///< parts by the place of their bytes
  std::map<uint32_t, OldDesc> old_descs_;                ///< the first one of each node
  std::map<std::pair<uint32_t, uint64_t>, bool> said_;   ///< messages by way and number: heard?
  std::set<std::pair<uint32_t, uint64_t>> must_hear_, must_not_hear_;
  std::set<std::pair<uint32_t, uint32_t>> fencing_;  ///< lives of which one shuts the other out
  std::multimap<Nanos, uint32_t> reopenings_;
  std::vector<Trouble> pauses_;
  std::set<uint32_t> touched_;  ///< tallies since the last look
  std::set<uint32_t> late_;     ///< nodes whose NIC hands counts over late
  std::set<uint32_t> losing_;   ///< nodes whose NIC has lost counts
  uint64_t next_tag_ = 0, next_content_ = 0, next_message_ = 0, next_name_ = 0;
  uint32_t next_life_ = 0;
  uint64_t ended_ = 0, bytes_checked_ = 0, looked_ = 0;
  bool submitting_ = false;
  Nanos strict_since_{};
  bool strict_ = false;         ///< the faults are over: everything must succeed
  uint32_t closing_ = kNobody;  ///< the life that is being closed
  bool lands_twice_ = false;    ///< in this story, data may land a second time
  sim::World world_;
  std::vector<std::optional<Life>> lives_;  ///< by node
};

}  // namespace fabric::swarm

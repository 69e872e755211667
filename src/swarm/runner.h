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
#include "swarm/model.h"
#include "swarm/plan.h"
#include "swarm/run_result.h"

namespace fabric::swarm {

/// Runs one Plan on the simulator and checks every promise of the library while it runs.
///
/// A Plan lists Actions (what a node calls) and PlannedFaults (what breaks), each with its time.
/// The Runner advances the simulated World to that time, performs the action through the public API
/// and records in a model (model.h) what must follow from it:
///
///   Process       one run of a node: its Engine, Inbox, subscriptions and source memory. A restart
///                 makes a new Process with the next incarnation number.
///   Session       a connection from one Process to another, with the regions imported through it.
///   OwnedArena    memory that peers write: a TargetArena, which gives each write a Slot of its own
///                 and knows what every byte may hold, and the region that exposes it.
///   GrantModel    access of a Session to an OwnedArena that can be revoked alone.
///   CounterModel  a Counter, the counts that were sent to it and the counts that have arrived.
///   GroupWait     a CounterGroup with one CounterModel for each peer.
///   PendingOp     an accepted operation whose completion has not been reported. It has one Part
///                 for every count (and byte range) that it sends.
///   EventSink     the context pointer of an engine's callbacks: leads them back to the Runner.
///
/// The model is compared with what engines report (completions), with what simulated NICs deliver
/// (arrivals) and, after every step of the World, with counters and memory. The first contradiction
/// is kept as the Violation; RunResult (run_result.h) carries it out.
///
/// Ownership: the Runner owns everything above. Model objects name each other by index into the
/// Runner's deques, which only grow, so an index outlives the process and the session it came from.
/// Threads: one. World, engines, callbacks and checks all run on the thread that called run().
///
/// Files: runner.cc has the schedule, faults and processes; actions.cc, group_actions.cc and
/// list_actions.cc perform the actions; grants.cc revokes grants; misuse.cc makes calls that must
/// be refused; completions.cc updates the model from arrivals and completions; checks.cc has the
/// checks after each step and after the drain.
class Runner {
 public:
  static constexpr Nanos kDrain{300'000'000};  ///< Config::drain_timeout of every engine

  explicit Runner(const Plan& plan);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

  void run();

  const ViolationRecord& violation() const noexcept { return violation_; }
  const Coverage& coverage() const noexcept { return coverage_; }
  uint64_t trace_hash() const noexcept { return world_.trace_hash(); }
  Nanos now() const noexcept { return world_.now(); }
  uint64_t ops_completed() const noexcept { return ops_completed_; }
  uint64_t bytes_checked() const noexcept { return bytes_checked_; }

 private:
  struct SourceBuffer {
    std::unique_ptr<std::byte[]> bytes{};
    std::optional<MemoryRegion> region{};
    uint64_t used = 0;
  };
  /// The callback context of one engine. Owned by its Process, so that its address is stable.
  struct EventSink {
    Runner* runner = nullptr;
    uint32_t node = 0, incarnation = 0;
    static void on_completion(void* self, const Event& event);
    static void on_event(void* self, const Event& event);
    static void on_message(void* self, const Event& event);
    static void on_watch(void* self, const Event& event);
    static void on_misuse(void* self, const Event& event);
    static void on_foreign_revoke(void* self, const Event& event);
  };
  /// One run of a node's engine, from open() to close() or a crash.
  struct Process {
    uint32_t incarnation = 0, node = 0;
    std::unique_ptr<EventSink> sink{};
    std::optional<Engine> engine{};
    std::optional<Inbox> inbox{};
    Subscription events{}, listener{};
    std::optional<Watcher> watcher{};
    std::vector<SourceBuffer> sources{};
    std::vector<PageList> page_lists{};  ///< handles that outlive their operation
    std::vector<WriteList> write_lists{};
    std::map<uint32_t, uint32_t> sessions{};  ///< index by target node
    uint64_t stored = 0, watched = 0;  ///< last value stored to the watcher, last one reported
    bool wants_room = false;           ///< saw kExhausted, and no kRoom since
  };
  /// A region descriptor, kept to be tried against later incarnations of its owner.
  struct StaleDescriptor {
    uint32_t incarnation = 0;
    std::vector<std::byte> bytes{};
  };
  /// Registered source bytes for one operation.
  struct SourceRange {
    LocalRef ref{};
    std::span<std::byte> bytes{};
  };

  // runner.cc
  void advance_to(Nanos time);
  void inject(const PlannedFault& planned);
  void open(uint32_t node);
  void close(uint32_t node);
  void crash(uint32_t node);
  void forget_process(uint32_t node, bool closed_cleanly);
  void reopen_later(uint32_t node, Nanos when);
  Process* process_on(uint32_t node) noexcept;
  bool is_running(uint32_t node, uint32_t incarnation) const noexcept;
  Nanos paused(uint32_t node, Nanos since) const;

  // actions.cc
  Nanos draw_op_timeout(Rng& rng) const;
  void perform(const Action& action);
  void write(Process& process, uint32_t to, Rng& rng, uint32_t how_many);
  void scatter(Process& process, Rng& rng);
  void signal(Process& process, Rng& rng);
  void send(Process& process, uint32_t to, Rng& rng);
  void send_session_number(Process& process, Session& session);
  void start_timer(Process& process, Rng& rng);
  void store_watched(Process& process);
  void expect(CounterModel& model, Rng& rng);
  void expect_one(Process& process, Rng& rng);
  void take_one(Process& process);
  void start_group_wait(Process& process, Rng& rng);
  void arm_group_wait(uint32_t group_wait, Nanos timeout);
  void cancel(Process& process, Rng& rng);
  void wait_for_batch(Process& process, Rng& rng);
  void release_counter(Process& process, Rng& rng);
  void fence(Process& process, uint32_t other, Rng& rng);
  void drop(Process& process, uint32_t other, Rng& rng);
  void disarm_one(Process& process, Rng& rng);
  void member_masked(GroupWait& group_wait, PeerId peer);
  void deregister(Process& process, Rng& rng);
  void disconnect(Process& process, uint32_t other);
  void resolve(Process& process, const Session& session, CounterModel& model, Rng& rng);
  /// The session to node `to`, connecting if there is no usable one; null if the node is down.
  Session* session_to(Process& process, uint32_t to);
  /// An arena of the session's target with `size` free bytes, made if need be; kNone at the limit.
  uint32_t arena_for(Session& session, uint64_t size);
  /// The arena as the session's initiator sees it, imported at first use; empty if that fails.
  RemoteRegion remote_region(Session& session, uint32_t arena);
  CounterModel* counter_for(Process& process, Session& session, Rng& rng, uint32_t counts);
  CounterModel* make_counter_model(uint32_t node, uint64_t wanted, uint64_t name);
  /// Fresh source bytes, filled with `content_seed`; never reused, so that a late read is detected.
  SourceRange source_for(Process& process, uint64_t size, uint64_t content_seed);
  uint32_t add_part(PendingOp& op, const Session& session, uint32_t arena, uint64_t size,
                    uint64_t content_seed, CounterModel* model, uint64_t gap);
  // An operation: begin(), add_part() for each write, then submit(), which calls either accepted()
  // or refused(). The exceptions make the engine's call themselves: expect(), arm_group_wait(),
  // send_session_number(), and write() for a list.
  PendingOp begin(Process& process, PendingOp::Kind kind, Nanos timeout);
  Notify notify(Process& process, PendingOp& op, Rng& rng, bool may_be_silent);
  void refused(Process& process, PendingOp& op, const Error& error);
  void accepted(PendingOp op, OpId id);
  template <class Request>
  void submit(Process& process, PendingOp op, Request request, Rng& rng);

  // list_actions.cc
  void paged(Process& process, uint32_t to, Rng& rng);
  void listed(Process& process, uint32_t to, Rng& rng);
  std::optional<PageList> list_of(Process& process, std::span<const uint32_t> pages, Rng& rng);

  // grants.cc
  void revoke(Process& process, Rng& rng);
  /// A descriptor of the arena for the session: open, or of a new grant.
  Result<std::vector<std::byte>> describe_arena(Session& session, uint32_t arena);
  void revoke_completed(const PendingOp& op, const Event& event);
  void grant_fenced(uint32_t grant);
  bool grant_revoked(const Part& part) const;
  bool delivered_after_revoke(const Part& part) const;

  // misuse.cc
  void misuse(Process& process, uint32_t other, Rng& rng);
  void misuse_grants(Process& process, Rng& rng);
  void misuse_lists(Process& process, const SourceRange& source, RemoteRegion region, Rng& rng);
  void misuse_environment(Process& process, uint32_t other, Rng& rng);
  void connect_from_other_job(Process& process, uint32_t other);
  void must_fail(std::string_view what, Errc wanted, const Error& error);

  // completions.cc
  void on_arrival(const sim::Arrival& arrival);
  void on_completion(const Event& event, uint32_t node, uint32_t incarnation);
  void on_event(const Event& event, uint32_t node, uint32_t incarnation);
  void on_message(const Event& event, uint32_t node, uint32_t incarnation);
  void op_completed(PendingOp& op, const Event& event);
  bool has_cause(const PendingOp& op, Errc code) const;
  void message_completed(const PendingOp& op, const Event& event);
  void transfer_completed(PendingOp& op, const Event& event);
  void part_completed(Part& part, Remote remote);
  void expectation_completed(PendingOp& op, const Event& event);
  void group_wait_completed(PendingOp& op, const Event& event);
  void session_fenced(uint32_t session);
  void arena_fenced(uint32_t arena);
  void mark_met(CounterModel& model);
  void check_all_landed(CounterModel& model);
  void poll_inboxes();
  bool sender_may_be_lost(const CounterModel& model) const;
  bool is_lost(const Session& session) const;

  // checks.cc
  void after_step();
  void check_report_deadlines();
  void check_count(const CounterModel& model);
  void check_one_slot();
  void drain();
  void complete_silent();
  void check_drained();
  void check_unseen();
  void check_arenas();
  void check_poisoned();
  void check_stale_descriptor(const Session& session);
  void check_leaks();
  std::string find_leak(const Process& process);
  void check_new_work_succeeds();
  std::string try_write(uint32_t from, uint32_t to);
  Session* established_session(uint32_t from, uint32_t to);
  void violated(std::string_view invariant, std::string detail);
  std::string describe(const PendingOp& op) const;
  std::string describe(const CounterModel& model) const;

  const Plan& plan_;
  ViolationRecord violation_;
  Coverage coverage_;
  std::deque<OwnedArena> arenas_;
  std::deque<GrantModel> grants_;
  std::deque<Part> parts_;
  std::deque<Session> sessions_;
  std::deque<CounterModel> counters_;
  std::deque<GroupWait> group_waits_;
  std::map<uint64_t, PendingOp> pending_ops_;
  std::set<std::pair<Nanos, uint64_t>> report_deadlines_;  ///< by time: ops to be reported by then
  std::map<std::pair<uint32_t, CounterKey>, uint32_t> by_key_;  ///< unreleased counters
  std::set<std::pair<uint32_t, CounterKey>> quiescent_keys_;    ///< closed with Quiescence::kProved
  std::map<const std::byte*, uint32_t> by_address_;         ///< parts by the address of their slot
  std::map<uint32_t, StaleDescriptor> stale_descriptors_;   ///< the first of each node
  std::map<std::pair<uint32_t, uint64_t>, bool> received_;  ///< messages by session and number
  std::set<std::pair<uint32_t, uint64_t>> must_receive_, must_not_receive_;
  std::set<std::pair<uint32_t, uint32_t>>
      fencing_;  ///< pairs of incarnations, one fencing the other
  std::multimap<Nanos, uint32_t> reopenings_;
  std::vector<PlannedFault> pauses_;        ///< faults that stop or slow a process
  std::set<uint32_t> changed_counters_;     ///< since the last check
  std::set<uint32_t> late_counting_nodes_;  ///< the NIC delays counts
  std::set<uint32_t> late_storing_nodes_;   ///< the NIC acknowledges bytes before they are visible
  std::vector<uint32_t> unseen_;            ///< delivered parts there, to be checked when idle
  std::set<uint32_t> count_losing_nodes_;   ///< the NIC has lost counts
  uint64_t next_tag_ = 0, next_content_seed_ = 0, next_message_ = 0, next_name_ = 0;
  uint32_t next_incarnation_ = 0;
  uint64_t ops_completed_ = 0, bytes_checked_ = 0, check_cursor_ = 0;
  bool submitting_ = false;  ///< inside a submitting call: no callback may run
  Nanos strict_since_{};
  bool strict_ = false;          ///< no fault is left: operations submitted since then must succeed
  uint32_t closing_ = kNone;     ///< incarnation inside close()
  bool may_land_twice_ = false;  ///< the plan has a fault that duplicates data
  sim::World world_;
  sim::Hook arrivals_, steps_;  ///< destroyed after the engines, whose destructors still step
  std::vector<std::optional<Process>> processes_;  ///< by node
};

template <class Request>
void Runner::submit(Process& process, PendingOp op, Request request, Rng& rng) {
  request.notify = notify(process, op, rng, true);
  if (op.batch) request.batch = *op.batch;
  submitting_ = true;
  const auto id = process.engine->submit(request);
  submitting_ = false;
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    return refused(process, op, id.error());
  }
  accepted(std::move(op), *id);
}

}  // namespace fabric::swarm

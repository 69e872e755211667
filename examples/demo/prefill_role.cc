#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fabric/kv.h>

#include "clock.h"
#include "member.h"
#include "page_pool.h"
#include "prefix_index.h"
#include "side_memory.h"
#include "workload.h"

// A prefiller: all tensor parallel ranks of one prefill engine in one process. A dispatch brings
// the prompt; after every layer of every chunk each rank pushes its part of the cache.

namespace demo {

namespace {

namespace kv = fabric::kv;
using Kind = MessageHeader::Kind;
using transformer::ForwardPass;
using transformer::Sequence;

/// One attempt of a request. The network reads its pages until every decode rank is quiet.
struct Job {
  std::string id{};
  uint32_t attempt = 0;
  Sequence sequence{};
  uint32_t sent = 0;  ///< tokens of the chunks that were announced
  uint32_t tail_slot = 0;
  uint32_t ranks_free = 0;  ///< that have reported kSourceFree
  bool offered = false;
  bool computed = false;
  bool cancelled = false;
};

class PrefillRole {
 public:
  PrefillRole(const ControlSocket& control, const RoleOptions& options)
      : member_(control, options, kv::Role::kPrefill),
        workload_(make_workload(options.attention)),
        model_(need(transformer::Transformer::make(workload_.model), "Transformer::make")),
        memory_(member_.engine(), workload_.model, workload_.prefill),
        pool_(memory_.cache()),
        index_(pool_, workload_.prefill.page_tokens) {
    const kv::Side side = prefill_side(workload_.model, workload_.prefill);
    for (uint32_t rank = 0; rank < side.ranks.size(); ++rank) {
      ranks_.push_back(
          need(kv::Prefiller::open(member_.engine(), {.side = side,
                                                      .rank = rank,
                                                      .regions = {memory_.regions()[rank].id()},
                                                      .channel = static_cast<uint16_t>(
                                                          kv::kDefaultPrefillChannel + rank)}),
               "Prefiller::open"));
      fds_.push_back(need(ranks_.back().fd(), "fd"));
    }
    member_.join_directory(kv::layout_hash(side.ranks[0]), 16);
  }

  int run() {
    for (;;) {
      poll();
      if (finishing_ && jobs_.empty()) return finish();
      if (!compute_next()) member_.wait(fds_, 20);
    }
  }

 private:
  /// All work except computing; also called between layers.
  void poll() {
    while (const auto command = member_.control().try_read()) take(*command);
    member_.directory().poll();
    std::array<kv::PrefillEvent, 16> events;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      while (const uint32_t count = ranks_[rank].poll(events)) {
        for (const kv::PrefillEvent& event : std::span(events).first(count)) take(event);
      }
    }
    if (now_ns() >= status_ns_) send_status();
  }

  void take(const Message& command) {
    switch (command.header.kind) {
      case Kind::kKill:
        signal_ = SIGKILL;
        break;
      case Kind::kStop:
        signal_ = SIGSTOP;
        break;
      case Kind::kSeed:
        member_.follow_router(command.text);
        break;
      case Kind::kFinish:
        finishing_ = true;
        member_.leave_directory();
        break;
      case Kind::kClosed:
        std::_Exit(1);  // the parent has died
      default:
        break;
    }
  }

  void take(const kv::PrefillEvent& event) {
    const std::string key = event.id + "/" + std::to_string(event.attempt);
    const auto at = jobs_.find(key);
    switch (event.kind) {
      case kv::PrefillEvent::Kind::kDispatched:
        // The first rank to receive the dispatch starts the attempt for all of them.
        if (at != jobs_.end() || over_.contains(key)) return;
        jobs_[key] = {.id = event.id,
                      .attempt = event.attempt,
                      .sequence = {.tokens = decode_tokens(event.info)}};
        queue_.push_back(key);
        break;
      case kv::PrefillEvent::Kind::kCancelled:
      case kv::PrefillEvent::Kind::kDecoderLost:
        if (at != jobs_.end()) cancel(at->second);
        break;
      case kv::PrefillEvent::Kind::kSourceFree:
        if (at == jobs_.end()) return;
        if (event.code != fabric::Errc::kOk) cancel(at->second);
        ++at->second.ranks_free;
        if (at->first != computing_) end_if_free(at);  // a pass may still write its pages
        break;
      default:
        break;
    }
  }

  /// One rank was cancelled or has failed: the other ranks stop as well.
  void cancel(Job& job) {
    if (job.cancelled) return;
    job.cancelled = true;
    for (kv::Prefiller& rank : ranks_) {
      const auto done = rank.cancel(job.id, job.attempt);
      if (!done && done.error().code != fabric::Errc::kNotFound) need(done, "cancel");
    }
  }

  void end_if_free(std::map<std::string, Job>::iterator at) {
    Job& job = at->second;
    if (job.ranks_free < ranks_.size()) return;
    pool_.give_back(job.sequence.pages);
    memory_.give_back_slot(job.tail_slot);
    over_[at->first] = true;
    std::erase(queue_, at->first);
    jobs_.erase(at);
  }

  /// Computes one chunk of the oldest prompt. False: there is nothing to compute.
  bool compute_next() {
    while (!queue_.empty()) {
      const auto at = jobs_.find(queue_.front());
      if (at == jobs_.end() || at->second.cancelled || at->second.computed) {
        // Cancelled before its offer: no rank will report it.
        if (at != jobs_.end() && !at->second.offered) jobs_.erase(at);
        queue_.pop_front();
        continue;
      }
      if (!at->second.offered && !offer(at->second)) return false;
      computing_ = at->first;
      if (!at->second.cancelled) compute_chunk(at->second);
      computing_.clear();
      end_if_free(at);
      return true;
    }
    return false;
  }

  /// False: no pages are free yet.
  bool offer(Job& job) {
    Sequence& sequence = job.sequence;
    const auto length = static_cast<uint32_t>(sequence.tokens.size());
    const uint32_t needed = memory_.cache().pages_for(length);
    sequence.pages = index_.find(sequence.tokens);
    const auto known = static_cast<uint32_t>(sequence.pages.size());
    index_.make_room(needed - known);
    const auto more = pool_.take(needed - known);
    if (!more) {
      pool_.give_back(sequence.pages);
      return false;
    }
    sequence.cached = known * workload_.prefill.page_tokens;
    sequence.pages.insert(sequence.pages.end(), more->begin(), more->end());
    job.tail_slot = memory_.take_slot();
    job.offered = true;
    for (kv::Prefiller& rank : ranks_) {
      const auto offered = rank.offer({.id = job.id,
                                       .attempt = job.attempt,
                                       .prompt_tokens = length,
                                       .pages = {sequence.pages}});
      if (offered) continue;
      // Already cancelled: the rank will not report it.
      if (offered.error().code != fabric::Errc::kCancelled) need(offered, "offer");
      ++job.ranks_free;
      job.cancelled = true;
    }
    if (std::exchange(job.cancelled, false)) cancel(job);
    return true;
  }

  void compute_chunk(Job& job) {
    Sequence& sequence = job.sequence;
    ForwardPass pass(model_, memory_.cache(), sequence, {.tokens = workload_.chunk_tokens});
    const kv::PassEntry entry{
        .id = job.id, .attempt = job.attempt, .tokens = {job.sent, pass.end()}};
    std::vector<uint64_t> steps;
    for (kv::Prefiller& rank : ranks_) {
      const auto first = rank.pass(std::span(&entry, 1));
      // kNotFound: it has ended at this rank, which has reported that or will.
      steps.push_back(first ? *first : UINT64_MAX);
      if (!first && first.error().code != fabric::Errc::kNotFound) need(first, "pass");
    }
    while (!pass.done() && !job.cancelled) {
      const int64_t begun_ns = now_ns();
      const uint32_t layer = pass.compute_layer();
      report_layer(job, layer, pass.end(), begun_ns);
      for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
        if (steps[rank] == UINT64_MAX) continue;
        need(ranks_[rank].layer_done(steps[rank] + layer + 1), "layer_done");
      }
      if (signal_ != 0 && layer == workload_.model.layers / 2) raise_signal(job, layer);
      poll();
    }
    if (job.cancelled) return skip_layers(steps);
    sequence.cached = job.sent = pass.end();
    if (sequence.cached == sequence.tokens.size()) finish_job(job, pass.next_token());
  }

  /// The steps of a pass that ends early: there is nothing left to push for its only request.
  void skip_layers(const std::vector<uint64_t>& steps) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (steps[rank] == UINT64_MAX) continue;
      need(ranks_[rank].layer_done(steps[rank] + workload_.model.layers), "layer_done");
    }
  }

  void finish_job(Job& job, uint32_t first_token) {
    job.computed = true;
    index_.add(job.sequence.tokens, job.sequence.pages);
    std::memcpy(memory_.tail(job.tail_slot).data(), &first_token, sizeof(first_token));
    const kv::PrefillTail tail{.source = memory_.tails().at(job.tail_slot * SideMemory::kTailBytes),
                               .size_bytes = SideMemory::kTailBytes};
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto done =
          ranks_[rank].finish(job.id, job.attempt, rank == 0 ? tail : kv::PrefillTail{});
      if (!done && done.error().code != fabric::Errc::kNotFound) need(done, "finish");
    }
  }

  /// Kills or stops its own process in the middle of a prompt: the parent could not time that
  /// precisely. Nothing is closed or shut down before.
  void raise_signal(const Job& job, uint32_t layer) {
    const int number = std::exchange(signal_, 0);
    member_.control().send({.kind = Kind::kStopping,
                            .code = layer,
                            .request = std::stoull(job.id),
                            .attempt = job.attempt,
                            .at_ns = now_ns()});
    ::kill(::getpid(), number);
  }

  void report_layer(const Job& job, uint32_t layer, uint32_t end, int64_t begun_ns) const {
    member_.control().send({.kind = Kind::kComputed,
                            .code = layer,
                            .request = std::stoull(job.id),
                            .attempt = job.attempt,
                            .count = end - job.sent,
                            .extra = job.sent,
                            .since_ns = begun_ns,
                            .at_ns = now_ns()});
  }

  void send_status() {
    status_ns_ = now_ns() + 200'000'000;
    kv::PrefillerStats sum;
    for (const kv::Prefiller& rank : ranks_) {
      const kv::PrefillerStats stats = rank.stats();
      sum.sent += stats.sent;
      sum.failed += stats.failed + stats.cancelled;
    }
    member_.control().send({.kind = Kind::kStatus,
                            .count = pool_.size(),
                            .wrong = sum.sent / ranks_.size(),
                            .extra = pool_.free() + index_.size()});
  }

  int finish() {
    index_.make_room(pool_.size());
    pool_.check_free_pages();
    member_.control().send({.kind = Kind::kFinished,
                            .count = pool_.size(),
                            .wrong = pool_.touched(),
                            .extra = pool_.free()});
    return 0;
  }

  Member member_;
  const Workload workload_;
  const transformer::Transformer model_;
  SideMemory memory_;
  transformer::PagePool pool_;
  transformer::PrefixIndex index_;
  std::vector<kv::Prefiller> ranks_{};
  std::vector<int> fds_{};
  std::map<std::string, Job> jobs_{};
  std::map<std::string, bool> over_{};  ///< attempts whose second dispatch may come late
  std::deque<std::string> queue_{};     ///< oldest first
  std::string computing_{};             ///< the attempt of the present pass
  int signal_ = 0;
  bool finishing_ = false;
  int64_t status_ns_ = 0;
};

}  // namespace

int run_prefiller(const ControlSocket& control, const RoleOptions& options) {
  return PrefillRole(control, options).run();
}

}  // namespace demo

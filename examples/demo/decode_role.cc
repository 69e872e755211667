#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
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

// A decoder: asks for the cache of each request that the router sends, and generates once it is
// there. Pages go back to the pool when the library has proved that no write can land in them,
// never before.

namespace demo {

namespace {

namespace kv = fabric::kv;
using Kind = MessageHeader::Kind;
using transformer::ForwardPass;
using transformer::Sequence;

/// One attempt of a request, until its pages are back.
struct Attempt {
  ServeMessage asked{};
  Sequence sequence{};
  uint32_t cached_pages = 0;  ///< of sequence.pages, shared with earlier requests
  uint32_t tail_slot = 0;
  int64_t first_token_ns = 0;
  std::vector<uint32_t> out{};  ///< generated tokens
  bool writable = false;
};

class DecodeRole {
 public:
  DecodeRole(const ControlSocket& control, const RoleOptions& options)
      : member_(control, options, kv::Role::kDecode),
        workload_(make_workload(options.attention)),
        model_(need(transformer::Transformer::make(workload_.model), "Transformer::make")),
        memory_(member_.engine(), workload_.model, workload_.decode),
        pool_(memory_.cache()),
        index_(pool_, workload_.decode.page_tokens),
        decoder_(
            need(kv::Decoder::open(member_.engine(), decoder_options(options)), "Decoder::open")) {
    fds_.push_back(need(decoder_.fd(), "fd"));
    kv::Refusal refusal;
    const auto prefill =
        decoder_.add_prefill(prefill_side(workload_.model, workload_.prefill), &refusal);
    if (!prefill) std::fprintf(stderr, "demo: %s\n", refusal.reason.c_str());
    prefill_ = need(prefill, "add_prefill");
    sources_ = need(decoder_.source_ranks(prefill_), "source_ranks");
    member_.join_directory(memory_.cache().ranks()[0].layout().model_hash, 64);
  }

  int run() {
    for (;;) {
      poll();
      if (leaving_ == Leaving::kNoMore && backlog_.empty() && attempts_.empty()) {
        leaving_ = Leaving::kDraining;
        decoder_.drain();
      }
      if (leaving_ == Leaving::kDrained) return finish();
      if (!generate_next()) member_.wait(fds_, 20);
    }
  }

 private:
  enum class Leaving { kNo, kAsked, kNoMore, kDraining, kDrained };

  kv::DecoderOptions decoder_options(const RoleOptions& options) {
    return {.layout = memory_.cache().ranks()[0].layout(),
            .regions = {&memory_.regions()[0]},
            .tail_region = &memory_.tails(),
            .tail_slot_bytes = SideMemory::kTailBytes,
            .patience = options.peer_timeout};
  }

  /// All work except computing; also called between layers.
  void poll() {
    while (const auto command = member_.control().try_read()) take(*command);
    member_.directory().poll();
    for (const ServeMessage& message : member_.take_messages().messages) take(message);
    std::array<kv::DecodeEvent, 32> events;
    while (const uint32_t count = decoder_.poll(events)) {
      for (const kv::DecodeEvent& event : std::span(events).first(count)) take(event);
    }
    while (!backlog_.empty() && start(backlog_.front())) backlog_.pop_front();
    if (now_ns() >= status_ns_) send_status();
  }

  void take(const Message& command) {
    if (command.header.kind == Kind::kClosed) std::_Exit(1);  // the parent has died
    if (command.header.kind == Kind::kSeed) member_.follow_router(command.text);
    if (command.header.kind == Kind::kDrain) leave();
    // No request is open, and the router that sent the last one may be gone.
    if (command.header.kind == Kind::kFinish && leaving_ == Leaving::kNo) no_more_requests();
  }

  /// Asks the router to send no more requests, then leaves the directory: the router considers a
  /// decoder that vanishes dead, and sends its requests again.
  void leave() {
    if (leaving_ != Leaving::kNo) return;
    leaving_ = Leaving::kAsked;
    if (!router_) return no_more_requests();  // none has arrived yet
    member_.send(router_, {.kind = ServeMessage::Kind::kLeaving});
  }

  void no_more_requests() {
    leaving_ = Leaving::kNoMore;
    member_.leave_directory();
  }

  void take(const ServeMessage& message) {
    router_ = message.from;
    if (message.kind == ServeMessage::Kind::kServe) backlog_.push_back(message);
    if (message.kind == ServeMessage::Kind::kNoMore) no_more_requests();
  }

  static std::string key_of(const std::string& id, uint32_t attempt) {
    return id + "/" + std::to_string(attempt);
  }

  /// False: there are no pages for it yet.
  bool start(const ServeMessage& asked) {
    auto attempt = std::make_unique<Attempt>();
    attempt->asked = asked;
    Sequence& sequence = attempt->sequence;
    sequence.tokens = asked.tokens;
    const auto prompt = static_cast<uint32_t>(asked.tokens.size());
    const uint32_t needed = memory_.cache().pages_for(prompt + workload_.new_tokens);
    sequence.pages = index_.find(sequence.tokens);
    attempt->cached_pages = static_cast<uint32_t>(sequence.pages.size());
    const uint32_t new_pages = needed - attempt->cached_pages;
    index_.make_room(new_pages);
    const auto more = pool_.take(new_pages);
    if (!more) {
      pool_.give_back(sequence.pages);
      return false;
    }
    sequence.pages.insert(sequence.pages.end(), more->begin(), more->end());
    attempt->tail_slot = memory_.take_slot();
    const std::string id = std::to_string(asked.request);
    give_up_others(id);
    const auto started = connect_and_start(id, *attempt);
    report(*attempt, Kind::kStarted, asked.prefiller);
    if (!started) {
      // Nothing is leased: the pages are still ours.
      report_failure(*attempt, started.error().what);
      give_back(*attempt);
      return true;
    }
    attempts_[key_of(id, asked.attempt)] = std::move(attempt);
    return true;
  }

  /// A router that is new, or was stopped, may not know that an earlier attempt is running here.
  void give_up_others(const std::string& id) {
    const auto done = decoder_.cancel(id);
    if (!done && done.error().code != fabric::Errc::kNotFound) need(done, "cancel");
  }

  fabric::Result<void> connect_and_start(const std::string& id, const Attempt& attempt) {
    const auto peer = member_.engine().connect(attempt.asked.address);
    if (!peer) return peer.error();
    return decoder_.start(decode_request(id, *peer, attempt));
  }

  kv::DecodeRequest decode_request(const std::string& id, fabric::PeerId peer,
                                   const Attempt& attempt) const {
    kv::DecodeRequest request{
        .id = id,
        .attempt = attempt.asked.attempt,
        .prefill = prefill_,
        .prompt_tokens = static_cast<uint32_t>(attempt.asked.tokens.size()),
        .cached_tokens = {attempt.cached_pages * workload_.decode.page_tokens},
        .pages = {attempt.sequence.pages},
        .tail_slot = attempt.tail_slot,
        .tail_rank = 0,
        .per_layer = true,
        .info = encode_tokens(attempt.asked.tokens)};
    for (const uint32_t rank : sources_) {
      request.sources.push_back(
          {.rank = rank,
           .peer = peer,
           .channel = static_cast<uint16_t>(kv::kDefaultPrefillChannel + rank)});
    }
    return request;
  }

  void take(const kv::DecodeEvent& event) {
    if (event.kind == kv::DecodeEvent::Kind::kDrained) leaving_ = Leaving::kDrained;
    const auto at = attempts_.find(key_of(event.id, event.attempt));
    if (at == attempts_.end()) return;
    Attempt& attempt = *at->second;
    switch (event.kind) {
      case kv::DecodeEvent::Kind::kLayer:
        report(attempt, Kind::kLayer, {}, event.layer);
        break;
      case kv::DecodeEvent::Kind::kComplete:
        take_first_token(attempt);
        break;
      case kv::DecodeEvent::Kind::kMayWrite:
        attempt.writable = true;
        ready_.push_back(at->first);
        break;
      case kv::DecodeEvent::Kind::kFailed:
        report_failure(attempt, to_string(event.fail));
        break;
      case kv::DecodeEvent::Kind::kQuarantined:
        ++quarantined_;
        break;
      case kv::DecodeEvent::Kind::kPagesFree:
        report(attempt, Kind::kPagesFree);
        give_back(attempt);
        attempts_.erase(at);
        break;
      default:
        break;
    }
  }

  void take_first_token(Attempt& attempt) {
    uint32_t token = 0;
    std::memcpy(&token, memory_.tail(attempt.tail_slot).data(), sizeof(token));
    attempt.first_token_ns = now_ns();
    attempt.out.push_back(token);
    const auto prompt = static_cast<uint32_t>(attempt.asked.tokens.size());
    attempt.sequence.cached = prompt;
    attempt.sequence.tokens.push_back(token);
    const uint32_t moved = prompt - attempt.cached_pages * workload_.decode.page_tokens;
    report(attempt, Kind::kComplete, {}, 0, cache_bytes(workload_, moved));
  }

  /// One token for the request that has waited longest. False: none is ready.
  bool generate_next() {
    if (ready_.empty()) return false;
    const std::string key = ready_.front();
    ready_.pop_front();
    Attempt& attempt = *attempts_[key];
    if (attempt.out.size() < workload_.new_tokens) {
      ForwardPass pass(model_, memory_.cache(), attempt.sequence, {});
      while (!pass.done()) {
        pass.compute_layer();
        poll();
      }
      attempt.sequence.cached = pass.end();
      attempt.out.push_back(pass.next_token());
      attempt.sequence.tokens.push_back(attempt.out.back());
    }
    if (attempt.out.size() < workload_.new_tokens) {
      ready_.push_back(key);
      return true;
    }
    const auto bytes = encode_tokens(attempt.out);
    report(attempt, Kind::kDone,
           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    member_.send(attempt.asked.from, {.kind = ServeMessage::Kind::kDone,
                                      .attempt = attempt.asked.attempt,
                                      .request = attempt.asked.request});
    ++done_;
    index_.add(attempt.asked.tokens, attempt.sequence.pages);
    give_back(attempt);
    attempts_.erase(key);
    return true;
  }

  void give_back(const Attempt& attempt) {
    pool_.give_back(attempt.sequence.pages);
    memory_.give_back_slot(attempt.tail_slot);
  }

  void report_failure(const Attempt& attempt, const std::string& why) {
    report(attempt, Kind::kFailed, why);
    member_.send(attempt.asked.from, {.kind = ServeMessage::Kind::kFailed,
                                      .attempt = attempt.asked.attempt,
                                      .request = attempt.asked.request,
                                      .code = 1});
  }

  void report(const Attempt& attempt, Kind kind, const std::string& text = {}, uint32_t code = 0,
              uint64_t count = 0) const {
    member_.control().send({.kind = kind,
                            .code = code,
                            .request = attempt.asked.request,
                            .attempt = attempt.asked.attempt,
                            .count = count,
                            .since_ns = attempt.first_token_ns,
                            .at_ns = now_ns()},
                           text);
  }

  void send_status() {
    status_ns_ = now_ns() + 200'000'000;
    uint64_t flowing = 0;
    uint64_t fenced = 0;
    for (uint32_t page = 0; page < pool_.size(); ++page) {
      const kv::PageState state = decoder_.page_state(0, page);
      if (state == kv::PageState::kInFlight || state == kv::PageState::kReadable) ++flowing;
      if (state == kv::PageState::kFencing || state == kv::PageState::kQuarantined) ++fenced;
    }
    const kv::DecoderStats stats = decoder_.stats();
    member_.control().send({.kind = Kind::kStatus,
                            .code = static_cast<uint32_t>(flowing),
                            .request = stats.fences_proved + stats.revokes,
                            .attempt = static_cast<uint32_t>(fenced),
                            .count = pool_.size(),
                            .wrong = done_,
                            .extra = pool_.free() + index_.size()});
  }

  int finish() {
    send_status();
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
  kv::Decoder decoder_;
  uint32_t prefill_ = 0;
  std::vector<uint32_t> sources_{};
  std::vector<int> fds_{};
  fabric::PeerId router_{};
  Leaving leaving_ = Leaving::kNo;
  std::deque<ServeMessage> backlog_{};
  std::map<std::string, std::unique_ptr<Attempt>> attempts_{};
  std::deque<std::string> ready_{};
  uint64_t done_ = 0;
  uint64_t quarantined_ = 0;
  int64_t status_ns_ = 0;
};

}  // namespace

int run_decoder(const ControlSocket& control, const RoleOptions& options) {
  return DecodeRole(control, options).run();
}

}  // namespace demo

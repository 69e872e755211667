#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fabric/kv_router.h>

#include "clock.h"
#include "member.h"
#include "workload.h"

// The router: the seed of the directory, and the source of the requests. For each it picks a
// prefiller, by load and by the prefix of the prompt, and the decoder with the fewest requests.
// When a decoder reports that an attempt has failed, the router picks again.

namespace demo {

namespace {

namespace kv = fabric::kv;
using Kind = MessageHeader::Kind;

/// An answer is lost when its session is, even if both sides continue: much longer than one takes.
constexpr int kLostTimeoutsPerAnswer = 4;

struct OpenRequest {
  uint32_t prompt = 0;
  uint32_t attempt = 0;
  bool placed = false;  ///< false: no prefiller or decoder was available
  int64_t due_ns = 0;   ///< when it is sent again without an answer
  kv::Member prefiller{};
  kv::Member decoder{};
  std::vector<uint64_t> tried{};  ///< prefillers that failed
};

class RouterRole {
 public:
  RouterRole(const ControlSocket& control, const RoleOptions& options)
      : member_(control, options, kv::Role::kRouter),
        workload_(make_workload(options.attention)),
        answer_ns_(kLostTimeoutsPerAnswer * options.lost_timeout.count()),
        picker_(need(kv::Router::make(), "Router::make")) {
    for (uint32_t i = 0; i < kPrompts; ++i) prompts_.push_back(make_prompt(workload_, i));
    member_.serve_directory();
  }

  int run() {
    for (;;) {
      while (const auto command = member_.control().try_read()) {
        if (command->header.kind == Kind::kFinish) {
          member_.control().send({.kind = Kind::kFinished});
          return 0;
        }
        if (command->header.kind == Kind::kClosed) return 1;
        take(command->header);
      }
      if (member_.directory().poll()) take_view();
      take_messages();
      const int64_t now = now_ns();
      for (auto& [number, request] : open_) {
        if (request.placed && now >= request.due_ns) {
          send_again(number, request);
        } else if (!request.placed) {
          place(number, request);
        }
      }
      submit_new();
      if (stopped_ && open_.empty()) {
        stopped_ = false;
        member_.control().send({.kind = Kind::kIdle});
      }
      member_.wait({}, wait_ms());
    }
  }

 private:
  void take(const MessageHeader& command) {
    if (command.kind == Kind::kPace) {
      interval_ns_ = command.at_ns;
      open_max_ = command.count;
      submitted_ = std::max(submitted_, command.request);
      last_ = command.extra;
      stopped_ = open_max_ == 0 || (last_ > 0 && submitted_ >= last_);
    } else if (command.kind == Kind::kResume) {
      open_[command.request] = {.prompt = command.code, .attempt = command.attempt};
    }
  }

  int wait_ms() const {
    const int64_t left_ms = (next_ns_ - now_ns()) / 1'000'000 + 1;
    return open_max_ == 0 ? 50 : static_cast<int>(std::clamp<int64_t>(left_ms, 1, 50));
  }

  void take_view() {
    const kv::View view = member_.directory().members();
    for (const kv::Change& change : kv::changes(view_, view)) {
      if (change.kind == kv::Change::Kind::kChanged && !change.restarted) continue;
      const bool joined = change.kind != kv::Change::Kind::kLeft;
      member_.control().send({.kind = Kind::kListed, .code = joined, .at_ns = now_ns()},
                             change.member.label);
      if (joined) leaving_.erase(change.member.engine_id);
    }
    view_ = view;
    picker_.update(view);
    // A decoder that vanished without a leave has lost its requests: send them again.
    for (auto& [number, request] : open_) {
      if (request.placed && view_.find(request.decoder.engine_id) == nullptr &&
          !leaving_.contains(request.decoder.engine_id)) {
        send_again(number, request);
      }
    }
  }

  void take_messages() {
    const Member::Arrivals arrivals = member_.take_messages();
    for (const ServeMessage& message : arrivals.messages) take(message);
    for (const uint64_t number : arrivals.undelivered) {
      const auto at = open_.find(number);
      if (at != open_.end()) send_again(number, at->second);
    }
  }

  void take(const ServeMessage& message) {
    if (message.kind == ServeMessage::Kind::kLeaving) {
      const auto info = member_.engine().peer_info(message.from);
      if (info) leaving_.insert(info->engine_id);
      member_.send(message.from, {.kind = ServeMessage::Kind::kNoMore});
      return;
    }
    const auto at = open_.find(message.request);
    if (at == open_.end() || message.attempt != at->second.attempt) return;  // an earlier attempt
    OpenRequest& request = at->second;
    const uint64_t prefiller = request.prefiller.engine_id;
    if (message.kind == ServeMessage::Kind::kDone) {
      open_.erase(at);
      picker_.report(prefiller, open_at(prefiller));
    } else if (message.kind == ServeMessage::Kind::kFailed) {
      if (message.code == 1) {
        picker_.lost(prefiller);
        request.tried.push_back(prefiller);
      }
      send_again(message.request, request);
    }
  }

  void submit_new() {
    if (open_.size() >= open_max_ || now_ns() < next_ns_) return;
    if (last_ > 0 && submitted_ >= last_) return;
    next_ns_ = now_ns() + interval_ns_;
    const uint64_t number = ++submitted_;
    stopped_ = number == last_;
    OpenRequest& request = open_[number];
    request.prompt = prompt_of(number);
    member_.control().send(
        {.kind = Kind::kSubmitted, .code = request.prompt, .request = number, .at_ns = now_ns()});
    place(number, request);
  }

  void send_again(uint64_t number, OpenRequest& request) {
    ++request.attempt;
    request.placed = false;
    place(number, request);
  }

  void place(uint64_t number, OpenRequest& request) {
    const kv::Member* decoder = least_busy_decoder();
    if (decoder == nullptr) return;
    // Three of four are sent to where their prefix is cached; the others go by load alone, so that
    // every prefiller gets requests even when there are few prefixes.
    const std::string beginning = number % 4 == 0 ? "" : std::to_string(request.prompt / kGroup);
    auto pick = picker_.pick({.prefix = beginning, .except = request.tried});
    if (!pick) {
      request.tried.clear();  // all have been tried: the next pick may take any of them again
      return;
    }
    const auto peer = member_.engine().connect(decoder->address);
    if (!peer) return;
    request.placed = true;
    request.due_ns = now_ns() + answer_ns_;
    request.prefiller = std::move(pick->member);
    request.decoder = *decoder;
    ++placed_[decoder->engine_id];
    if (request.attempt > 0) {
      member_.control().send({.kind = Kind::kSentAgain,
                              .request = number,
                              .attempt = request.attempt,
                              .at_ns = now_ns()},
                             request.prefiller.label + " " + request.decoder.label);
    }
    member_.send(*peer, {.kind = ServeMessage::Kind::kServe,
                         .attempt = request.attempt,
                         .request = number,
                         .prefiller = request.prefiller.label,
                         .address = request.prefiller.address,
                         .tokens = prompts_[request.prompt]});
  }

  /// Of equal ones, the one that got the fewest so far.
  const kv::Member* least_busy_decoder() const {
    const kv::Member* best = nullptr;
    std::pair<uint64_t, uint64_t> best_load;
    for (const kv::Member& member : view_.members) {
      if (member.role != kv::Role::kDecode || leaving_.contains(member.engine_id)) continue;
      const auto open = std::ranges::count_if(open_, [&](const auto& request) {
        return request.second.placed && request.second.decoder.engine_id == member.engine_id;
      });
      const auto total = placed_.find(member.engine_id);
      const std::pair<uint64_t, uint64_t> load{open, total == placed_.end() ? 0 : total->second};
      if (best != nullptr && load >= best_load) continue;
      best = &member;
      best_load = load;
    }
    return best;
  }

  uint32_t open_at(uint64_t prefiller) const {
    return static_cast<uint32_t>(std::ranges::count_if(open_, [&](const auto& request) {
      return request.second.placed && request.second.prefiller.engine_id == prefiller;
    }));
  }

  Member member_;
  const Workload workload_;
  const int64_t answer_ns_;
  std::vector<std::vector<uint32_t>> prompts_{};
  kv::Router picker_;
  kv::View view_{};
  std::set<uint64_t> leaving_{};  ///< decoders
  std::map<uint64_t, OpenRequest> open_{};
  std::map<uint64_t, uint64_t> placed_{};  ///< requests of each decoder so far
  uint64_t submitted_ = 0;
  uint64_t last_ = 0;  ///< the number after which no request comes; 0: none
  int64_t next_ns_ = 0;
  int64_t interval_ns_ = 0;
  uint64_t open_max_ = 0;
  bool stopped_ = false;
};

}  // namespace

int run_router(const ControlSocket& control, const RoleOptions& options) {
  return RouterRole(control, options).run();
}

}  // namespace demo

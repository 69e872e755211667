#include "process/stress_member.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"

namespace fabric::stress {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kChannel = 1;
constexpr uint64_t kPeerTag = 0;
/// Long enough for a proof; half of it is the grace for a peer that does not answer.
constexpr auto kFenceTimeout = 400ms;
constexpr size_t kFencedMemoryMax = 6;

std::string text_of(const MemberId& member) {
  return std::to_string(member.slot) + " " + std::to_string(member.generation);
}

std::optional<MemberId> member_of(const Engine& engine, PeerId peer) {
  auto info = engine.peer_info(peer);
  if (!info) return std::nullopt;
  std::istringstream words(info->app_info);
  MemberId member;
  if (!(words >> member.slot >> member.generation) || member.slot >= kSlotsMax) return std::nullopt;
  return member;
}

}  // namespace

LogSink Member::Log::sink() {
  return {[](void* context, const LogRecord& record) {
            if (record.level < LogLevel::kWarning) return;
            std::string line = std::string(record.area) + ": " + std::string(record.text);
            for (const LogField& field : record.fields) {
              line.append(" ").append(field.key).append("=").append(field.value);
            }
            auto& log = *static_cast<Log*>(context);
            const std::scoped_lock lock(log.mutex);
            log.lines.push_back(std::move(line));
          },
          this};
}

Member::Member(Engine engine, const MemberOptions& options, Scoreboard& scoreboard,
               UniqueFd channel)
    : engine_(std::move(engine)),
      options_(options),
      scoreboard_(scoreboard),
      channel_(std::move(channel)),
      rng_(options.seed * 1000 + options.self.slot * 100 + options.self.generation) {}

bool Member::begin() {
  auto inbox = engine_.make_inbox(2048);
  if (!inbox) return false;
  inbox_.emplace(*std::move(inbox));
  auto subscription = engine_.subscribe(Notify::inbox(*inbox_, kPeerTag));
  auto listener = engine_.listen(kChannel, Notify::inbox(*inbox_, kPeerTag));
  if (!subscription || !listener) return false;
  subscription_.emplace(*std::move(subscription));
  listener_.emplace(*std::move(listener));
  report("ready " + engine_.address_text());
  return true;
}

bool Member::step() {
  std::array<char, 8192> text;
  ssize_t n = 0;
  while ((n = ::recv(channel_.get(), text.data(), text.size(), MSG_DONTWAIT)) > 0) {
    if (!on_command(std::string(text.data(), static_cast<size_t>(n)))) return false;
  }
  if (n == 0) return false;
  // Short, because commands arrive on another channel.
  (void)inbox_->wait(2ms);
  std::array<Event, 64> events;
  const uint32_t count = inbox_->poll(events);
  for (const Event& event : std::span(events).first(count)) on_event(event);
  for (auto& [peer, session] : sessions_) {
    advance_outbound(session);
    send_credits(session);
    if (!session.in.closed) check_count(session.in);
    std::erase_if(session.old, [&](const Inbound& in) { return in.closed && reconciled(in); });
  }
  end_sessions();
  check_fenced_memory(draining_ || footprint_asked_ ? 0 : kFencedMemoryMax);
  report_reconciled();
  if (footprint_asked_ && sessions_.empty() && deregistering_.empty()) {
    footprint_asked_ = false;
    report("footprint " + footprint(false));
  }
  if (log_ != nullptr) {
    const std::scoped_lock lock(log_->mutex);
    for (const std::string& logged : log_->lines) report("log " + logged);
    log_->lines.clear();
  }
  return true;
}

bool Member::finish() {
  if (auto closed = engine_.close(); !closed) violation("close");
  std::array<Event, 64> events;
  while (const uint32_t n = inbox_->poll(events)) {
    for (const Event& event : std::span(events).first(n)) {
      if (event.kind == EventKind::kDone) ops_.erase(event.tag);
    }
  }
  if (!ops_.empty()) violation(std::to_string(ops_.size()) + " operations were never reported");
  report("closed " + std::to_string(rounds_) + " " + std::to_string(counts_) + " " +
         std::to_string(bytes_));
  return violations_ == 0;
}

void Member::report(const std::string& text) {
  // A failure means that the cluster has exited; the next step() sees it.
  (void)::send(channel_.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

void Member::violation(const std::string& what) {
  // A few are enough, and the buffer of the channel is bounded.
  if (++violations_ <= 8) report("violation " + what);
}

bool Member::on_command(const std::string& text) {
  std::istringstream words(text);
  std::string verb, address;
  uint32_t slot = 0;
  words >> verb;
  if (verb == "meet") {
    MemberId member;
    words >> member.slot >> member.generation >> address;
    auto peer = engine_.connect(address);
    if (!peer) {
      // It may have died in the meantime; the cluster knows.
      lost_before_meeting(member, peer.error().code);
    } else if (!sessions_.contains(*peer)) {
      connecting_[*peer] = member;
    }
  } else if (verb == "fence" || verb == "revoke") {
    words >> slot;
    fence(verb, slot);
  } else if (verb == "drain") {
    draining_ = true;
  } else if (verb == "footprint") {
    footprint_asked_ = true;
  } else if (verb == "list") {
    report("list " + footprint(true));
  } else if (verb == "dump") {
    std::string dump = engine_.dump();
    for (const auto& [tag, op] : ops_) {
      dump += "op " + std::to_string(tag) + " kind " + std::to_string(static_cast<int>(op.kind)) +
              " buffer " + std::to_string(op.buffer) + "\n";
    }
    for (const auto& [peer, session] : sessions_) {
      dump += "session " + text_of(session.member) + " in " + std::to_string(session.in.number) +
              " taken " + std::to_string(session.in.taken) + " of " +
              std::to_string(session.in.round.writes.size()) + " out " +
              std::to_string(session.out.number) + " pending " +
              std::to_string(session.out.pending) + " credits " +
              std::to_string(session.credits_received) + (session.out.aborted ? " aborted" : "") +
              (session.lost ? " lost" : "") + "\n";
    }
    report("dump " + dump.substr(0, 60'000));
  }
  return verb != "close";
}

/// Numbers of descriptors, memfd mappings, regions and peers; or a list of the first two.
std::string Member::footprint(bool listed) const {
  uint64_t fds = 0, mappings = 0;
  std::string list;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_fd;  // the descriptor of this iteration itself
    list += std::filesystem::read_symlink(entry.path(), closed_fd).string() + "\n";
    ++fds;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") == std::string::npos) continue;
    list += line + "\n";
    ++mappings;
  }
  if (listed) return list.substr(0, 60'000);
  const EngineStats stats = engine_.stats();
  return std::to_string(fds) + " " + std::to_string(mappings) + " " +
         std::to_string(stats.regions) + " " + std::to_string(stats.peers);
}

// Events

void Member::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::kDone:
      return on_done(event);
    case EventKind::kPeer:
      return on_peer(event);
    case EventKind::kMessage:
      return on_message(event);
    case EventKind::kFenceProved:
      for (auto& [peer, session] : sessions_) {
        if (session.fence_pending && session.fence_op == event.op) fence_proved(session);
        for (Inbound& in : session.old) {
          if (!in.closed && in.revocation == event.op) revocation_proved(session, in);
        }
      }
      return;
    case EventKind::kUnhandled:
      return violation("an operation with a notify went to the subscribers");
    default:
      return;
  }
}

void Member::on_done(const Event& event) {
  const auto it = ops_.find(event.tag);
  if (it == ops_.end()) return violation("reported twice: " + std::string(to_string(event.code)));
  const PendingOp op = it->second;
  ops_.erase(it);
  if (op.kind == MemberOpKind::kRelease) return release_completed(op, event);
  MemberSession* session = op.peer ? session_of(op.peer) : nullptr;
  if (session == nullptr) return violation("an operation outlived its peer");
  --session->ops;
  switch (op.kind) {
    case MemberOpKind::kWrite:
      return write_completed(*session, op, event);
    case MemberOpKind::kAwaitRound:
      return round_completed(*session, op, event);
    case MemberOpKind::kAwaitCredit:
      return credit_received(*session, event);
    case MemberOpKind::kFence:
      return fence_completed(*session, event);
    case MemberOpKind::kRevoke:
      return revoked(*session, op, event);
    case MemberOpKind::kMessage:
    case MemberOpKind::kCredit:
      if (event.code != Errc::kOk && event.code != Errc::kPeerLost) {
        violation("a message or a credit completed with " + std::string(to_string(event.code)));
      }
      return;
    case MemberOpKind::kRelease:
      return;
  }
}

void Member::on_peer(const Event& event) {
  const auto state = static_cast<PeerState>(event.value);
  const auto before = event.previous_state;
  if (state == PeerState::kConnected && before != PeerState::kStalled) {
    // It may be lost already; then the next event reports it.
    if (session_of(event.peer) != nullptr) connecting_.erase(event.peer);
    return;
  }
  const auto started = connecting_.find(event.peer);
  if (started != connecting_.end()) {
    if (state < PeerState::kLost) return;
    lost_before_meeting(started->second, event.code);
    connecting_.erase(started);
    return;
  }
  const auto it = sessions_.find(event.peer);
  if (it == sessions_.end()) return;
  MemberSession& session = it->second;
  if (state >= PeerState::kLost) {
    if (session.lost) violation("two events for one loss");
    session.lost = true;
    if (state == PeerState::kFenced) return;
    report("lost " + text_of(session.member) + " " + std::to_string(monotonic_ns()) + " " +
           to_string(event.code));
  } else {
    report((state == PeerState::kStalled ? "stalled " : "recovered ") + text_of(session.member));
  }
}

void Member::lost_before_meeting(const MemberId& member, Errc code) {
  report("lost " + text_of(member) + " " + std::to_string(monotonic_ns()) + " " + to_string(code));
  report("released " + text_of(member));
}

void Member::on_message(const Event& event) {
  PeerMessage message;
  if (event.size_bytes < sizeof message) return violation("a message of a wrong size");
  std::memcpy(&message, event.data, sizeof message);
  MemberSession* session = session_of(event.peer);
  // It may have been lost between the message and now.
  if (session == nullptr || session->lost) return;
  session->credit_key = CounterKey::from_wire(message.credit_key);
  if (message.kind == PeerMessage::kBuffer)
    return new_buffer(*session, message, event.bytes().subspan(sizeof message));
  Inbound* in = inbound(*session, message.number);
  if (in == nullptr || in->reported) return violation("totals of an unknown buffer");
  in->reported = true;
  in->delivered = message.delivered;
  in->unknown = message.unknown;
}

// Links

/// The session to a connected peer, created on first use.
Member::MemberSession* Member::session_of(PeerId peer) {
  if (const auto it = sessions_.find(peer); it != sessions_.end()) return &it->second;
  auto info = engine_.peer_info(peer);
  const auto member = member_of(engine_, peer);
  if (!info || info->state >= PeerState::kLost || !member) return nullptr;
  auto group = engine_.make_group({&peer, 1});
  auto go = engine_.make_counter();
  if (!group || !go) return nullptr;
  MemberSession& session = sessions_[peer];
  session.peer = peer;
  session.member = *member;
  session.group = *group;
  session.credits.emplace(*std::move(go));
  if (auto bound = session.credits->bind(peer); !bound) violation("bind");
  const auto kind = static_cast<MemberMemory::Kind>(rng_.below(3));
  session.source = make_memory(kind, options_.buffer_bytes, false);
  report("met " + text_of(session.member));
  await_credit(session);
  open_buffer(session);
  return &session;
}

Member::MemberSession* Member::session_to(uint32_t slot) {
  const auto it = std::ranges::find_if(sessions_, [&](const auto& entry) {
    const MemberSession& session = entry.second;
    return session.member.slot == slot && !session.lost && !session.fence_asked &&
           !session.in.closed;
  });
  return it == sessions_.end() ? nullptr : &it->second;
}

Notify Member::track(const PendingOp& op) {
  ops_[next_tag_] = op;
  return Notify::inbox(*inbox_, next_tag_++);
}

/// Evaluates the submission of the operation that was just tracked. If it was refused, stops
/// tracking it; only a lost peer may cause that.
bool Member::accepted(const Result<OpId>& op, const char* what) {
  const auto it = ops_.find(next_tag_ - 1);
  if (op) {
    if (it->second.peer) ++sessions_.at(it->second.peer).ops;
    return true;
  }
  ops_.erase(it);
  const Errc code = op.error().code;
  if (code != Errc::kPeerLost && code != Errc::kNotFound) {
    violation(std::string(what) + " refused: " + to_string(code) + " " + op.error().what);
  }
  return false;
}

void Member::send(MemberSession& session, PeerMessage message, std::span<const std::byte> tail) {
  message.credit_key = session.credits->key().wire();
  std::vector<std::byte> bytes(sizeof message + tail.size());
  std::memcpy(bytes.data(), &message, sizeof message);
  std::ranges::copy(tail, bytes.begin() + sizeof message);
  const PendingOp op{.kind = MemberOpKind::kMessage, .peer = session.peer};
  accepted(engine_.submit(Send{
               .peer = session.peer, .channel = kChannel, .bytes = bytes, .notify = track(op)}),
           "a message");
}

/// Removes the sessions of lost peers once all their operations have completed.
void Member::end_sessions() {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    MemberSession& session = it->second;
    if (session.lost && !session.fence_asked && session.ops == 0) fence_lost(session);
    if (!session.lost || session.ops > 0 || session.fence_pending) {
      ++it;
      continue;
    }
    close_inbound(session.in);
    release(std::move(session.source));
    report("released " + text_of(session.member));
    it = sessions_.erase(it);
  }
}

/// Memory that a lost peer could write to is fenced before it is reused. A peer that the engine has
/// already removed cannot write.
void Member::fence_lost(MemberSession& session) {
  session.fence_asked = true;
  const PendingOp op{.kind = MemberOpKind::kFence, .peer = session.peer};
  auto submitted = engine_.submit(Fence{.peer = session.peer, .timeout = 5s, .notify = track(op)});
  session.fence_pending = accepted(submitted, "the fence of a lost peer");
  if (submitted) session.fence_op = *submitted;
}

void Member::fence(const std::string& verb, uint32_t slot) {
  MemberSession* session = session_to(slot);
  if (session == nullptr) return report(verb + "d " + std::to_string(slot) + " 0 none");
  if (verb == "revoke") return revoke(*session);
  session->fence_asked = session->fence_commanded = true;
  const PendingOp op{.kind = MemberOpKind::kFence, .peer = session->peer};
  auto submitted =
      engine_.submit(Fence{.peer = session->peer, .timeout = kFenceTimeout, .notify = track(op)});
  session->fence_pending = accepted(submitted, "a fence");
  if (submitted) session->fence_op = *submitted;
  if (!submitted) report("fenced " + text_of(session->member) + " none");
}

void Member::fence_completed(MemberSession& session, const Event& event) {
  if (event.code == Errc::kOk) return fence_proved(session);
  // Not proved in time: the memory is not touched until the proof arrives. A peer that was lost may
  // have been removed, and then it cannot write.
  if (event.code == Errc::kTimeout && event.remote == Remote::kUnknown) return;
  if (event.code == Errc::kNotFound && session.lost) return fence_proved(session);
  violation("a fence completed with " + std::string(to_string(event.code)));
}

void Member::fence_proved(MemberSession& session) {
  session.fence_pending = false;
  close_inbound(session.in);
  if (session.fence_commanded) report("fenced " + text_of(session.member) + " ok");
}

void Member::report_reconciled() {
  if (!draining_ || reported_reconciled_ || !connecting_.empty()) return;
  const bool all = std::ranges::all_of(sessions_, [&](const auto& entry) {
    const MemberSession& session = entry.second;
    return !session.lost && session.old.empty() && session.out.reported && session.in.reported &&
           reconciled(session.in);
  });
  if (!all || !deregistering_.empty()) return;
  reported_reconciled_ = true;
  report("reconciled");
}

}  // namespace fabric::stress

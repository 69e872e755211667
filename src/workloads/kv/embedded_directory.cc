#include "workloads/kv/embedded_directory.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace fabric::kv {

namespace {

// Tags of the inbox; those of messages count from kFirstSend.
constexpr uint64_t kArrived = 1, kEngine = 2, kTimer = 3, kFirstSend = 16;
// Events that wait for poll(): arrivals beyond it hold their senders back.
constexpr uint32_t kInboxDepth = 256;
// Batches of events that one poll() takes, so that a flood does not keep the caller.
constexpr uint32_t kBatchesMax = 16;
// A view is sent in parts of this size: well below the usual limit of a message.
constexpr uint32_t kViewBytesMax = 32u << 10;
constexpr uint32_t kTableMax = 65536;

Result<void> check(const EmbeddedOptions& options) {
  const auto bad = [](const char* what) { return fail(Errc::kInvalidArgument, what); };
  if (options.seeds.size() > kSeedsMax) return bad("seeds: more than kSeedsMax");
  for (const auto& address : options.seeds) {
    if (address.empty() || address.size() > kMemberAddressBytesMax) return bad("seeds");
  }
  if (options.members_max == 0 || options.members_max > kTableMax) return bad("members_max");
  if (options.watchers_max == 0 || options.watchers_max > kTableMax) return bad("watchers_max");
  if (options.retry <= Nanos(0)) return bad("retry");
  if (options.retry_max < options.retry) return bad("retry_max: less than retry");
  if (options.refresh <= Nanos(0)) return bad("refresh");
  if (options.warm_up < Nanos(0)) return bad("warm_up");
  return {};
}

uint64_t jitter_seed(Engine& engine, const EmbeddedOptions& options) {
  if (options.jitter_seed != 0) return options.jitter_seed;
  return TraceHash().add(std::span<const std::byte>(engine.address())).value();
}

}  // namespace

Nanos RetryDelay::next(const EmbeddedOptions& options, Rng& rng) {
  delay_ = delay_ == Nanos{} ? options.retry : std::min(delay_ * 2, options.retry_max);
  const auto half = static_cast<uint64_t>(delay_.count() / 2);
  return delay_ - Nanos(static_cast<int64_t>(rng.below(half + 1)));
}

// ---- The public class --------------------------------------------------------------------------

EmbeddedDirectory::EmbeddedDirectory(std::unique_ptr<Impl> impl) noexcept
    : impl_(std::move(impl)) {}
EmbeddedDirectory::~EmbeddedDirectory() = default;

Result<std::unique_ptr<EmbeddedDirectory>> EmbeddedDirectory::open(Engine& engine,
                                                                   const EmbeddedOptions& options) {
  if (const auto checked = check(options); !checked) return checked.error();
  auto inbox = engine.make_inbox(kInboxDepth);
  if (!inbox) return inbox.error();
  auto impl = std::make_unique<Impl>(engine, options, *std::move(inbox));
  if (const auto listening = impl->listen(); !listening) return listening.error();
  impl->set_seeds(options.seeds);
  return std::unique_ptr<EmbeddedDirectory>(new EmbeddedDirectory(std::move(impl)));
}

Result<void> EmbeddedDirectory::announce(const Member& self) {
  if (const auto bytes = encode(self); !bytes) return bytes.error();
  const auto own = describe(impl_->engine);
  if (!own) return own.error();
  if (self.engine_id != own->engine_id) {
    return fail(Errc::kInvalidArgument, "engine_id: not that of this engine");
  }
  if (self.incarnation != own->incarnation) {
    return fail(Errc::kInvalidArgument, "incarnation: not that of this engine");
  }
  if (impl_->options.serve) {
    if (const auto listed = impl_->table.put(self, {}); !listed) return listed.error();
  }
  impl_->self = self;
  impl_->kicked = true;
  for (SeedConnection& connection : impl_->connections) {
    connection.announce_due = true;
    connection.leave_due = false;
  }
  return {};
}

Result<void> EmbeddedDirectory::leave() {
  if (!impl_->self) return fail(Errc::kNotFound, "leave: nothing is announced");
  impl_->self.reset();
  impl_->kicked = true;
  if (impl_->options.serve) impl_->table.remove({});
  for (SeedConnection& connection : impl_->connections) {
    connection.leave_due = connection.open;
    connection.announce_due = false;
  }
  return {};
}

Result<void> EmbeddedDirectory::set_seeds(std::vector<std::vector<std::byte>> seeds) {
  EmbeddedOptions options = impl_->options;
  options.seeds = seeds;
  if (const auto checked = check(options); !checked) return checked.error();
  impl_->set_seeds(std::move(seeds));
  return {};
}

bool EmbeddedDirectory::poll() { return impl_->poll(); }
View EmbeddedDirectory::members() const { return impl_->view; }
Result<int> EmbeddedDirectory::fd() { return impl_->inbox.fd(); }

EmbeddedStats EmbeddedDirectory::stats() const {
  EmbeddedStats stats = impl_->counted;
  for (const SeedConnection& connection : impl_->connections) {
    stats.seeds_connected += connection.view.fresh() ? 1 : 0;
    stats.announced += connection.announced ? 1 : 0;
  }
  stats.members = impl_->table.size();
  stats.watchers = static_cast<uint32_t>(impl_->watchers.size());
  return stats;
}

// ---- Start, stop, poll -------------------------------------------------------------------------

EmbeddedDirectory::Impl::Impl(Engine& on, const EmbeddedOptions& chosen, Inbox box)
    : engine(on),
      options(chosen),
      inbox(std::move(box)),
      table(chosen.members_max),
      next_tag(kFirstSend),
      rng(jitter_seed(on, chosen)),
      now(on.now()) {
  warm_up_due = now + options.warm_up;
  view.revision = 1;
}

EmbeddedDirectory::Impl::~Impl() {
  // It may have fired already, or the engine may be closed: both are fine.
  if (timer) (void)engine.cancel(timer);
}

Result<void> EmbeddedDirectory::Impl::listen() {
  auto messages = engine.listen(options.channel, Notify::inbox(inbox, kArrived));
  if (!messages) return messages.error();
  subscriptions.push_back(*std::move(messages));
  auto peers = engine.subscribe(Notify::inbox(inbox, kEngine));
  if (!peers) return peers.error();
  subscriptions.push_back(*std::move(peers));
  return {};
}

void EmbeddedDirectory::Impl::set_seeds(std::vector<std::vector<std::byte>> seeds) {
  std::vector<SeedConnection> next;
  const auto own = engine.address();
  for (auto& address : seeds) {
    const auto same = [&](const SeedConnection& one) { return one.address == address; };
    // One list of seeds serves all of them; its own address needs no session.
    if (address == own || std::ranges::any_of(next, same)) continue;
    const auto known = std::ranges::find_if(connections, same);
    if (known != connections.end()) {
      next.push_back(std::move(*known));
      continue;
    }
    SeedConnection& added = next.emplace_back();
    added.address = std::move(address);
    added.due = now;
  }
  for (SeedConnection& dropped : connections) {
    if (dropped.address.empty()) continue;  // moved
    dropped.view.interrupted();
    for (const auto& [engine_id, member] : dropped.view.kept()) kept[engine_id] = member;
  }
  connections = std::move(next);
  kicked = true;
}

bool EmbeddedDirectory::Impl::poll() {
  now = engine.now();
  for (uint32_t batch = 0; batch < kBatchesMax; ++batch) {
    const uint32_t count = inbox.poll(events);
    for (uint32_t i = 0; i < count; ++i) take(events[i]);
    kicked = kicked || count > 0;
    if (count < events.size()) break;
  }
  // Most polls find nothing to do, and end here.
  if (!std::exchange(kicked, false) && now < wake_due) return false;
  warmed_up = warmed_up || now >= warm_up_due;
  for (SeedConnection& connection : connections) serve_connection(connection);
  for (auto& [peer, watcher] : watchers) serve_watcher(peer, watcher);
  for (auto& [peer, answer] : answers) serve_answer(peer, answer);
  update_view();
  set_timer();
  return std::exchange(revision_polled, view.revision) != view.revision;
}

// ---- Events ------------------------------------------------------------------------------------

void EmbeddedDirectory::Impl::take(const Event& event) {
  if (event.tag == kArrived && event.kind == EventKind::kMessage) return take_message(event);
  if (event.tag == kEngine && event.kind == EventKind::kPeer) return take_peer(event);
  if (event.tag == kTimer && event.op == timer) {
    timer = {};
    timer_due = Nanos::max();
  } else if (event.tag >= kFirstSend && event.kind == EventKind::kDone) {
    take_sent(event);
  }
}

void EmbeddedDirectory::Impl::take_sent(const Event& event) {
  const bool ok = event.code == Errc::kOk;
  for (SeedConnection& connection : connections) {
    if (connection.sending != event.tag) continue;
    connection.sending = 0;
    if (ok || !connection.open) return;
    // The seed did not receive the message: it does not listen yet, has closed, or is too slow.
    // What it lists is unknown from now on, so announcement and watch are sent again.
    connection.announce_due = self.has_value();
    connection.watch_due = options.watch;
    connection.announced = false;
    connection.view.interrupted();
    connection.due = now + connection.delay.next(options, rng);
    return;
  }
  for (auto& [peer, watcher] : watchers) {
    if (watcher.sending != event.tag) continue;
    watcher.sending = 0;
    if (ok) {
      watcher.has.revision = watcher.sending_upto;
      watcher.has_warmed_up = watcher.sending_warmed_up;
      watcher.delay.reset();
    } else {
      watcher.has = {};  // it may have arrived or not: all of it again
      watcher.has_warmed_up = false;
      watcher.due = now + watcher.delay.next(options, rng);
    }
    return;
  }
  for (auto& [peer, answer] : answers) {
    // A lost answer is not repeated: the member asks again when it refreshes.
    if (answer.sending == event.tag) answer.sending = 0;
  }
}

void EmbeddedDirectory::Impl::take_peer(const Event& event) {
  const auto state = static_cast<PeerState>(event.value);
  if (state != PeerState::kLost && state != PeerState::kFenced) return;
  table.remove(event.peer);
  watchers.erase(event.peer);
  answers.erase(event.peer);
  if (SeedConnection* connection = connection_of(event.peer)) connection_lost(*connection);
}

void EmbeddedDirectory::Impl::connection_lost(SeedConnection& connection) {
  connection.open = false;
  connection.sending = 0;
  connection.announced = false;
  connection.view.interrupted();
  connection.due = now + connection.delay.next(options, rng);
  ++counted.reconnects;
}

void EmbeddedDirectory::Impl::take_message(const Event& event) {
  const auto message = decode_directory_message(event.bytes());
  if (!message) {
    ++counted.bad_messages;
  } else if (const auto* announcement = std::get_if<AnnounceMessage>(&*message)) {
    take_announcement(event.peer, *announcement);
  } else if (const auto* answer = std::get_if<AnswerMessage>(&*message)) {
    take_answer(event.peer, *answer);
  } else if (const auto* watch = std::get_if<WatchMessage>(&*message)) {
    take_watch(event.peer, *watch);
  } else if (const auto* update = std::get_if<ViewMessage>(&*message)) {
    take_view(event.peer, *update);
  } else {
    table.remove(event.peer);  // LeaveMessage; a member that was never listed may leave, too
  }
}

Errc EmbeddedDirectory::Impl::list(PeerId from, const Member& member) {
  if (!options.serve) return Errc::kUnsupported;
  const auto info = engine.peer_info(from);
  // The session has ended: its event was handled before, and has removed the member.
  if (!info || info->state >= PeerState::kLost) return Errc::kPeerLost;
  if (member.engine_id != info->engine_id || member.incarnation != info->incarnation) {
    return Errc::kPermission;
  }
  return table.put(member, from).error().code;
}

void EmbeddedDirectory::Impl::take_announcement(PeerId from, const AnnounceMessage& message) {
  const Errc code = list(from, message.member);
  if (code != Errc::kOk) ++counted.members_refused;
  if (code == Errc::kPeerLost) return;
  OwedAnswer& answer = answers[from];
  answer.message = {message.number, code};
  answer.due = true;
}

void EmbeddedDirectory::Impl::take_answer(PeerId from, const AnswerMessage& message) {
  SeedConnection* connection = connection_of(from);
  if (connection == nullptr) {
    ++counted.bad_messages;
    return;
  }
  if (message.number != connection->announcement || !self) return;  // to an earlier one
  connection->announced = message.code == Errc::kOk;
  if (connection->announced) {
    connection->delay.reset();
  } else {
    connection->announce_due = true;
    connection->due = now + connection->delay.next(options, rng);
  }
}

void EmbeddedDirectory::Impl::take_watch(PeerId from, const WatchMessage& message) {
  const auto info = engine.peer_info(from);
  if (!options.serve || !info || info->state >= PeerState::kLost) {
    ++counted.bad_messages;
    return;
  }
  auto found = watchers.find(from);
  if (found == watchers.end()) {
    if (watchers.size() >= options.watchers_max) {
      ++counted.watchers_refused;
      return;
    }
    found = watchers.emplace(from, ViewWatcher{}).first;
    found->second.message_bytes_max = info->message_bytes_max;
    return;
  }
  ViewWatcher& watcher = found->second;
  // A message in flight may have arrived before the watcher asked.
  const bool arrived = watcher.sending != 0 && message.have == watcher.sending_upto;
  if (message.have == watcher.has.revision || arrived) return;
  watcher.has = {};
  watcher.has_warmed_up = false;
  watcher.sending = 0;  // its completion would count for what is sent now
}

void EmbeddedDirectory::Impl::take_view(PeerId from, const ViewMessage& message) {
  SeedConnection* connection = connection_of(from);
  if (connection == nullptr || !options.watch) {
    ++counted.bad_messages;
    return;
  }
  switch (connection->view.apply(message, options.members_max)) {
    case SeedView::Applied::kPart:
      break;
    case SeedView::Applied::kView:
      connection->delay.reset();
      break;
    case SeedView::Applied::kGap:
      connection->watch_due = true;
      break;
    case SeedView::Applied::kTooMany:
      ++counted.bad_messages;
      break;
  }
}

// ---- What is due -------------------------------------------------------------------------------

uint64_t EmbeddedDirectory::Impl::send(PeerId peer, const DirectoryMessage& message, bool& lost) {
  const auto bytes = encode(message);
  const auto op = engine.submit(Send{.peer = peer,
                                     .channel = options.channel,
                                     .bytes = bytes,
                                     .notify = Notify::inbox(inbox, next_tag)});
  lost = !op && op.error().code != Errc::kExhausted;
  return op ? next_tag++ : 0;
}

void EmbeddedDirectory::Impl::connect(SeedConnection& connection) {
  const auto peer = engine.connect(connection.address);
  if (!peer) return connection_lost(connection);
  connection.open = true;
  connection.peer = *peer;
  connection.announce_due = self.has_value();
  connection.watch_due = options.watch;
  connection.leave_due = false;
  connection.refresh_due = now + options.refresh;
}

void EmbeddedDirectory::Impl::serve_connection(SeedConnection& connection) {
  if (!connection.open && now >= connection.due) connect(connection);
  if (!connection.open) return;
  if (now >= connection.refresh_due) {
    connection.refresh_due = now + options.refresh;
    connection.announce_due = self.has_value();
    connection.watch_due = options.watch;
  }
  // Until the session is up the message waits in the engine, with its timeout.
  if (connection.sending != 0 || now < connection.due) return;
  DirectoryMessage message;
  bool* due = nullptr;
  if (connection.leave_due) {
    due = &connection.leave_due;
    message = LeaveMessage{};
  } else if (connection.announce_due && self) {
    due = &connection.announce_due;
    connection.announcement = ++announcements;
    message = AnnounceMessage{connection.announcement, *self};
  } else if (connection.watch_due) {
    due = &connection.watch_due;
    message = WatchMessage{connection.view.have()};
  } else {
    return;
  }
  bool lost = false;
  connection.sending = send(connection.peer, message, lost);
  if (lost) return connection_lost(connection);
  if (connection.sending == 0) {
    connection.due = now + connection.delay.next(options, rng);
    return;
  }
  if (due == &connection.leave_due) connection.announced = false;
  *due = false;
}

bool EmbeddedDirectory::Impl::behind(const ViewWatcher& watcher) const {
  return watcher.has.revision != table.revision() || (warmed_up && !watcher.has_warmed_up);
}

void EmbeddedDirectory::Impl::serve_watcher(PeerId peer, ViewWatcher& watcher) {
  if (watcher.sending != 0 || now < watcher.due || !behind(watcher)) return;
  const size_t bytes_max = std::min(watcher.message_bytes_max, kViewBytesMax);
  ViewMessage message = table.after(watcher.has, bytes_max, counted.members_unsent);
  message.warmed_up = warmed_up;
  bool lost = false;  // if so, the event of its loss follows
  watcher.sending = send(peer, message, lost);
  if (watcher.sending == 0) {
    watcher.due = now + watcher.delay.next(options, rng);
    return;
  }
  watcher.sending_upto = message.upto;
  watcher.sending_warmed_up = message.warmed_up && message.last;
  ++counted.views_sent;
}

void EmbeddedDirectory::Impl::serve_answer(PeerId peer, OwedAnswer& answer) {
  if (!answer.due || answer.sending != 0) return;
  bool lost = false;
  answer.sending = send(peer, answer.message, lost);
  answer.due = answer.sending == 0 && !lost;
}

Nanos EmbeddedDirectory::Impl::next_due() const {
  Nanos next = warmed_up ? Nanos::max() : warm_up_due;
  for (const SeedConnection& connection : connections) {
    if (!connection.open) {
      next = std::min(next, connection.due);
      continue;
    }
    next = std::min(next, connection.refresh_due);
    const bool due = connection.announce_due || connection.leave_due || connection.watch_due;
    if (due && connection.sending == 0) next = std::min(next, connection.due);
  }
  for (const auto& [peer, watcher] : watchers) {
    if (watcher.sending == 0 && behind(watcher)) next = std::min(next, watcher.due);
  }
  return next;
}

void EmbeddedDirectory::Impl::set_timer() {
  wake_due = next_due();
  if (wake_due >= timer_due) return;  // an earlier timer only calls for one poll() more
  if (timer) (void)engine.cancel(timer);
  const Nanos after = std::max(wake_due - now, Nanos(1));
  const auto op = engine.submit(Timer{.after = after, .notify = Notify::inbox(inbox, kTimer)});
  timer = op ? *op : OpId{};
  timer_due = op ? wake_due : Nanos::max();  // without room the event kRoom wakes the caller
}

// ---- The view ----------------------------------------------------------------------------------

SeedConnection* EmbeddedDirectory::Impl::connection_of(PeerId peer) {
  const auto found = std::ranges::find_if(connections, [&](const SeedConnection& connection) {
    return connection.open && connection.peer == peer;
  });
  return found == connections.end() ? nullptr : &*found;
}

MemberMap EmbeddedDirectory::Impl::merged(bool& stale) const {
  MemberMap all;
  // The first seed of the list wins where two list the same incarnation.
  const auto add = [&](const Member& member) {
    const auto [known, added] = all.emplace(member.engine_id, member);
    if (!added && known->second.incarnation < member.incarnation) known->second = member;
  };
  if (options.serve) table.each(add);
  stale = !(options.serve && warmed_up);
  for (const SeedConnection& connection : connections) {
    for (const auto& [engine_id, member] : connection.view.listed()) add(member);
    stale = stale && !connection.view.fresh();
  }
  if (!stale) return all;
  for (const SeedConnection& connection : connections) {
    for (const auto& [engine_id, member] : connection.view.kept()) add(member);
  }
  for (const auto& [engine_id, member] : kept) add(member);
  return all;
}

void EmbeddedDirectory::Impl::update_view() {
  bool stale = true;
  MemberMap all = merged(stale);
  if (!stale) kept.clear();
  const auto equal = [](const auto& entry, const Member& member) { return entry.second == member; };
  if (stale == view.stale &&
      std::equal(all.begin(), all.end(), view.members.begin(), view.members.end(), equal)) {
    return;
  }
  view.stale = stale;
  view.members.clear();
  for (auto& [engine_id, member] : all) view.members.push_back(std::move(member));
  ++view.revision;
}

}  // namespace fabric::kv

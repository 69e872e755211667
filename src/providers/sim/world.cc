#include "providers/sim/world.h"

#include <sys/timerfd.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>

#include "base/check.h"

namespace fabric::sim {
Wire::Wire(const WorldOptions& options)
    : options_(options),
      packet_bytes_max_(packet_bytes_limit(options.packet_bytes_max)),
      wire_rng_(options.seed),
      control_rng_(wire_rng_.fork()),
      key_rng_(wire_rng_.fork()),
      fault_rng_(options.seed ^ 0x6661756c74730000) {}

uint32_t Wire::add_node(std::vector<NodeNetwork> networks) {
  const auto held = lock();
  const auto number = static_cast<uint32_t>(nodes_.size());
  Node& node = nodes_.emplace_back();
  for (NodeNetwork& network : networks) {
    network.rails = std::clamp(network.rails, 1u, kRailsMax);
    node.first_nic.push_back(static_cast<uint32_t>(nics_.size()));
    auto fabric = std::find(fabrics_.begin(), fabrics_.end(), network.name);
    if (fabric == fabrics_.end()) fabric = fabrics_.insert(fabric, network.name);
    for (uint32_t rail = 0; rail < network.rails; ++rail) {
      Nic& nic = nics_.emplace_back(network.model, packet_bytes_max_);
      nic.node = number;
      nic.index = static_cast<uint32_t>(nics_.size() - 1);
      nic.rail = rail;
      nic.fabric = static_cast<uint32_t>(fabric - fabrics_.begin());
    }
  }
  node.networks = std::move(networks);
  return number;
}

uint32_t Wire::node_count() const {
  const auto held = lock();
  return static_cast<uint32_t>(nodes_.size());
}

std::vector<NodeNetwork> Wire::networks(uint32_t node) const {
  const auto held = lock();
  return node < nodes_.size() ? nodes_[node].networks : std::vector<NodeNetwork>{};
}

int64_t Wire::now_ns() const noexcept {
  // No lock in virtual time: the observer of an arrival may call this while the world runs.
  if (!options_.realtime) return now_ns_;
  const auto held = lock();
  // Real time comes from an engine's driver; without an engine the last known time is returned.
  for (const auto& attachment : attachments_) {
    if (attachment != nullptr) return attachment->context.driver->now_ns();
  }
  return real_now_ns_;
}

int64_t Wire::next_due_ns() const noexcept {
  const auto held = lock();
  return queue_.next_ns();
}

uint64_t Wire::trace_hash() const noexcept {
  const auto held = lock();
  return hash_.value();
}

uint64_t Wire::events() const noexcept {
  const auto held = lock();
  return events_;
}

uint64_t Wire::in_flight() const noexcept {
  const auto held = lock();
  return flights_.in_use() + packets_.in_use();
}

uint64_t Wire::path_ends() const noexcept {
  const auto held = lock();
  uint64_t count = 0;
  for (const auto& attachment : attachments_) {
    if (attachment == nullptr) continue;
    for (const RailState& rail : attachment->rails) count += rail.out.size() + rail.in.size();
  }
  return count;
}

std::unique_lock<std::mutex> Wire::lock() const {
  return options_.realtime ? std::unique_lock(mutex_) : std::unique_lock(mutex_, std::defer_lock);
}

std::unique_lock<std::mutex> Wire::enter(const NetworkAttachment& attachment) {
  auto held = lock();
  if (options_.realtime) {
    real_now_ns_ = std::max(real_now_ns_, attachment.context.driver->now_ns());
    run_due(real_now_ns_);
  }
  return held;
}

bool Wire::run_to(int64_t time_ns) {
  run_due(time_ns);
  // Wake functions run engine code, so they are called after the events, not during one.
  for (const uint32_t number : wakes_) {
    NetworkAttachment* attachment = find_attachment(number);
    if (attachment == nullptr) continue;
    attachment->wake_due = false;
    if (attachment->context.wake) attachment->context.wake();
  }
  wakes_.clear();
  return faults_.for_engines.empty();
}

void Wire::schedule(int64_t time_ns, SimEventKind kind, uint32_t subject, const PathRef& at) {
  queue_.push(std::max(time_ns, now_ns_), {kind, subject, at});
  if (!options_.realtime) return;
  // A sleeping engine wakes at the earliest event of the whole world, because any engine may have
  // to run it. Other engines only bring its timer forward, so no wake-up is lost
  // (contracts.md P20).
  const int64_t due = queue_.next_ns();
  for (const auto& attachment : attachments_) {
    if (attachment != nullptr && attachment->asleep && due < attachment->timer_due_ns)
      set_timer(*attachment, due);
  }
}

/// Runs the events that are due, each at its own time, even if the caller is late.
void Wire::run_due(int64_t until_ns) {
  while (queue_.next_ns() <= until_ns) {
    if (queue_.empty()) break;  // until_ns is kNeverNs
    now_ns_ = std::max(now_ns_, queue_.next_ns());
    const SimEvent event = queue_.pop();
    dispatch(event);
    if (is_network(event.kind)) after_event();
    if (!faults_.for_engines.empty()) return;  // applied before the next event
  }
  now_ns_ = std::max(now_ns_, until_ns);
}

void Wire::dispatch(const SimEvent& event) {
  switch (event.kind) {
    case SimEventKind::kTransmit:
      nics_[event.subject].transmit_due = false;
      return kick(nics_[event.subject]);
    case SimEventKind::kPosted:
      return posted(event.at);
    case SimEventKind::kArrive:
      return arrive(event.subject);
    case SimEventKind::kLand:
      return land(event.subject);
    case SimEventKind::kDuplicate:
      return land_duplicate(event.subject);
    case SimEventKind::kAck:
      return acknowledged(event.subject);
    case SimEventKind::kLocalError:
      return complete_flight(event.subject);
    case SimEventKind::kRetransmit:
      return retransmit(event.at);
    case SimEventKind::kOutDown:
      return out_down(event.at);
    case SimEventKind::kInDown:
      return in_down(event.at);
    case SimEventKind::kFenced:
      return fenced(event);
    case SimEventKind::kDatagram:
      return deliver(event.subject, event.at.attachment);
    case SimEventKind::kLate:
      return enqueue_late(event.at, event.subject != 0);
    case SimEventKind::kFault:
      return apply_planned(event.subject);
    case SimEventKind::kNicFails:
      return nic_fails(nics_[event.subject]);
    case SimEventKind::kWake:
      return wake_again(event.subject);
  }
}

void Wire::wake_later(NetworkAttachment& attachment) {
  if (options_.realtime || attachment.wake_due) return;  // in realtime the timer wakes it
  attachment.wake_due = true;
  const int64_t looks_ns = attachment.polled_ns + kWakeGapNs;
  if (now_ns_ < looks_ns) return schedule(looks_ns, SimEventKind::kWake, attachment.number);
  wakes_.push_back(attachment.number);
}

void Wire::wake_again(uint32_t number) {
  NetworkAttachment* attachment = find_attachment(number);
  if (attachment == nullptr) return;
  // It may have polled since for another reason, and have taken everything.
  attachment->wake_due = !arm(*attachment);
  if (attachment->wake_due) wakes_.push_back(number);
}

void Wire::trace(SimEventKind kind, const Nic& nic, uint64_t size_bytes, uint32_t imm) noexcept {
  const uint64_t where = static_cast<uint64_t>(kind) << 56 | uint64_t{nic.index} << 32 | imm;
  hash_.add(static_cast<uint64_t>(now_ns_)).add(where).add(size_bytes);
}

void Wire::trace(const RailEvent& event, const Nic& nic) noexcept {
  const uint64_t what = static_cast<uint64_t>(event.kind) << 24 |
                        static_cast<uint64_t>(event.code) << 16 |
                        static_cast<uint64_t>(event.remote) << 8 | event.inbound;
  hash_.add(static_cast<uint64_t>(now_ns_)).add(what << 32 | nic.index);
  // The value of a kImm is an address, which differs from run to run; its cookie says which bytes
  // are late, and there are none in a world that carries no bytes.
  const bool imm = event.kind == RailEvent::Kind::kImm;
  const uint64_t value = imm ? 0 : event.value, cookie = imm ? 0 : event.cookie;
  hash_.add(cookie << 32 | event.imm).add(uint64_t{event.path} << 32 | value);
}

/// One-way latency, drawn for each packet.
int64_t Wire::delay_ns(const Nic& nic, uint32_t from_node) noexcept {
  const Timing& timing = nic.timing;
  const int64_t least = timing.latency_ns + nodes_[from_node].faults.delay_ns;
  if (timing.jitter_ns == 0) return least;
  return least + static_cast<int64_t>(wire_rng_.between(0, timing.jitter_ns));
}

bool Wire::arm(NetworkAttachment& attachment) {
  bool idle = attachment.datagrams.empty();
  for (const RailState& rail : attachment.rails) idle = idle && rail.events.empty();
  if (!idle || !options_.realtime) return idle;
  set_timer(attachment, queue_.next_ns());
  attachment.asleep = true;
  return true;
}

/// Setting a timer also clears its readiness, so only arm() may set it to a later time.
void Wire::set_timer(NetworkAttachment& attachment, int64_t due_ns) {
  attachment.timer_due_ns = due_ns;
  itimerspec spec{};  // zero stops it
  if (due_ns != kNeverNs) {
    const int64_t in_ns = std::max<int64_t>(1, due_ns - real_now_ns_);
    spec.it_value.tv_sec = static_cast<time_t>(in_ns / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(in_ns % 1'000'000'000);
  }
  FABRIC_CHECK(timerfd_settime(attachment.timer_fd, 0, &spec, nullptr) == 0, "timerfd_settime");
}

/// An engine has an attachment on each of its networks, and one CPU that posts.
std::shared_ptr<int64_t> Wire::posts_until_of(const Progress* engine) const {
  for (const auto& attachment : attachments_) {
    if (engine != nullptr && attachment != nullptr && attachment->context.progress == engine)
      return attachment->posts_until_ns;
  }
  return std::make_shared<int64_t>(0);
}

Result<NetworkAttachment*> Wire::open_attachment(uint32_t node, const Network& spec,
                                                 const OpenContext& context) {
  const auto held = lock();
  if (node >= nodes_.size()) return fail(Errc::kInvalidArgument, "sim: node");
  const auto& networks = nodes_[node].networks;
  const std::string& name = spec.name.empty() ? spec.provider : spec.name;
  const auto found = std::find_if(networks.begin(), networks.end(),
                                  [&](const NodeNetwork& n) { return n.name == name; });
  if (found == networks.end()) return fail(Errc::kUnsupported, "sim: no such network on the node");

  auto attachment = std::make_unique<NetworkAttachment>();
  if (options_.realtime) {
    attachment->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (attachment->timer_fd < 0) return fail(Errc::kExhausted, "timerfd_create", errno);
  }
  attachment->number = static_cast<uint32_t>(attachments_.size() + 1);
  attachment->node = node;
  attachment->network = static_cast<uint32_t>(found - networks.begin());
  attachment->context = context;
  attachment->posts_until_ns = posts_until_of(context.progress);
  attachment->rails.resize(std::min(found->rails, std::max(1u, spec.rails_max)));
  for (uint32_t i = 0; i < attachment->rails.size(); ++i) {
    RailState& rail = attachment->rails[i];
    rail.nic = &nics_[nodes_[node].first_nic[attachment->network] + i];
    rail.device = "node" + std::to_string(node) + "/" + name + std::to_string(i);
    const NicModel& model = found->model;
    rail.caps = {.ordered = model.ordered,
                 .slice_safe = model.slice_safe,
                 .exact_replay = model.exact_replay,
                 .count_is_final = model.ordered,  // an ordered path drops duplicates
                 .checks_access = true,
                 .maps_memory = model.maps_memory,
                 .fence = model.fence,
                 .queue_depth = std::max(1u, model.depth),
                 .path_depth = std::clamp(model.path_depth, 1u, std::max(1u, model.depth)),
                 .write_bytes_max = model.write_bytes_max};
    for (const MemoryKind kind : found->kinds) rail.caps.memory_kinds |= kind_bit(kind);
  }
  locations_.push_back({node, attachment->rails[0].nic->fabric});
  attachments_.push_back(std::move(attachment));
  NetworkAttachment& opened = *attachments_.back();
  for (uint32_t i = 0; i < opened.rails.size(); ++i) {
    if (opened.rails[i].nic->faults.down) report_nic({opened.number, i, 0}, true);
  }
  return &opened;
}

void Wire::close_attachment(NetworkAttachment& attachment) noexcept {
  const auto held = lock();
  // Packets that were sent still land. Writes that were not sent are discarded without a
  // completion: their engine is closed.
  for (RailState& rail : attachment.rails) {
    rail.out.each([&](uint32_t, OutPath& path) {
      path.state = OutPath::State::kDown;
      while (path.first != kNone) {
        const uint32_t index = path.first;
        unlink(path, index);
        flights_[index].completed = true;
        release(index);
      }
      forget_lost(path);
    });
  }
  while (!attachment.datagrams.empty()) packets_.give(attachment.datagrams.pop());
  if (attachment.timer_fd >= 0) ::close(attachment.timer_fd);
  attachments_[attachment.number - 1].reset();
}

// ---- Finding a world ----------------------------------------------------------------------------

namespace {

/// All worlds of the process by id, so that a network that is opened from text (Network::devices)
/// finds its world. Does not keep worlds alive.
struct Registry {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<World::Impl>> worlds;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

constexpr std::string_view kWorldPrefix = "world:";
constexpr std::string_view kNodePrefix = "/node:";

/// Parses a prefix and a decimal number at the front of `text` and removes both.
template <class T>
bool take_number(std::string_view& text, std::string_view prefix, T& number) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

std::shared_ptr<World::Impl> make_world(const WorldOptions& options) {
  auto world = std::make_shared<World::Impl>(options);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  // The lowest free id: a run that is repeated in one process gets the same addresses.
  uint64_t id = 1;
  for (const auto& [taken, weak] : all.worlds) {
    if (weak.expired()) break;
    id = taken + 1;
  }
  all.worlds[id] = world;
  world->wire.id = id;
  return world;
}

std::string world_token(const World::Impl& world, uint32_t node) {
  std::string token(kWorldPrefix);
  token += std::to_string(world.wire.id);
  token += kNodePrefix;
  return token + std::to_string(node);
}

Result<TokenTarget> find_world(const std::vector<std::string>& devices) {
  TokenTarget target;
  uint64_t id = 0;
  std::string_view rest = devices.size() == 1 ? std::string_view(devices[0]) : std::string_view();
  if (!take_number(rest, kWorldPrefix, id) || !take_number(rest, kNodePrefix, target.node) ||
      !rest.empty()) {
    return fail(Errc::kInvalidArgument, "sim: open the engine by sim::World::open()");
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.worlds.find(id);
  if (found != all.worlds.end()) target.world = found->second.lock();
  if (target.world == nullptr) return fail(Errc::kClosed, "sim: the world was destroyed");
  return target;
}

// ---- World --------------------------------------------------------------------------------------

World::World(const WorldOptions& options) : impl_(make_world(options)) {}
World::World(World&&) noexcept = default;

World& World::operator=(World&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

World::~World() {
  if (impl_ == nullptr) return;
  impl_->world_driver.step_hooks.clear();
  impl_->wire.arrival_hooks.clear();
}

uint32_t World::add_node(uint32_t rails, const NicModel& model) {
  NodeNetwork network;
  network.rails = rails;
  network.model = model;
  return add_node(std::vector<NodeNetwork>{std::move(network)});
}

uint32_t World::add_node(std::vector<NodeNetwork> networks) {
  return impl_->wire.add_node(std::move(networks));
}

Result<Engine> World::open(uint32_t node, Config config) {
  if (node >= impl_->wire.node_count()) return fail(Errc::kInvalidArgument, "node");
  if (config.networks.empty()) {
    for (const NodeNetwork& network : impl_->wire.networks(node)) {
      Network& added = config.networks.emplace_back();
      added.provider = "sim";
      added.name = network.name;
    }
  }
  for (Network& network : config.networks) {
    if (network.provider == "sim") network.devices = {world_token(*impl_, node)};
  }
  if (impl_->wire.realtime()) return Engine::open(config, nullptr);
  return Engine::open(config, impl_);
}

Hook World::each_step(std::function<void()> function) {
  if (impl_->wire.realtime()) return {};
  return Hook(impl_->world_driver.step_hooks.add(std::move(function)));
}

bool World::run_until(const std::function<bool()>& done, Nanos limit) {
  if (impl_->wire.realtime()) return done();
  const int64_t now = impl_->wire.now_ns();
  const bool endless = limit.count() > kNeverNs - now;
  return impl_->world_driver.drive(done, endless ? kNeverNs : now + limit.count());
}

void World::run_for(Nanos time) {
  run_until([] { return false; }, time);
}

Result<void> World::at(Nanos time, const Fault& fault) {
  return impl_->wire.plan(time.count(), fault);
}

Result<void> World::at_event(uint64_t events, const Fault& fault) {
  return impl_->wire.plan_by_event(events, fault);
}

uint64_t World::events() const noexcept { return impl_->wire.events(); }

Hook World::each_arrival(std::function<void(const Arrival&)> observer) {
  if (impl_->wire.realtime()) return {};
  return Hook(impl_->wire.arrival_hooks.add(std::move(observer)));
}

Result<void> World::chaos(const Chaos& plan) { return impl_->wire.plan(plan); }

uint64_t World::faults(Fault::Kind kind) const noexcept { return impl_->wire.applied(kind); }

Nanos World::now() const noexcept { return Nanos(impl_->wire.now_ns()); }

uint64_t World::trace_hash() const noexcept { return impl_->wire.trace_hash(); }

}  // namespace fabric::sim

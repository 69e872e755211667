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
      Nic& nic = nics_.emplace_back(network.model);
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
  // Nobody else is there in virtual time; whoever is asked about an arrival may ask for the time.
  if (!options_.realtime) return now_ns_;
  const auto held = lock();
  // Real time is the engines'; without one the last known time stands.
  for (const auto& port : ports_) {
    if (port != nullptr) return port->context.driver->now_ns();
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

void Wire::each_arrival(std::function<void(const Arrival&)> observer) {
  const auto held = lock();
  // In realtime it would be called from the workers of many engines.
  if (!options_.realtime) observer_ = std::move(observer);
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
  for (const auto& port : ports_) {
    if (port == nullptr) continue;
    for (const RailState& rail : port->rails) count += rail.out.size() + rail.in.size();
  }
  return count;
}

std::unique_lock<std::mutex> Wire::lock() const {
  return options_.realtime ? std::unique_lock(mutex_) : std::unique_lock(mutex_, std::defer_lock);
}

std::unique_lock<std::mutex> Wire::enter(const Port& port) {
  auto held = lock();
  if (options_.realtime) {
    real_now_ns_ = std::max(real_now_ns_, port.context.driver->now_ns());
    run_due(real_now_ns_);
  }
  return held;
}

bool Wire::run_to(int64_t time_ns) {
  run_due(time_ns);
  // Waking is the engine's code, so it comes when nothing is half done.
  for (const uint32_t number : wakes_) {
    Port* port = find_port(number);
    if (port == nullptr) continue;
    port->wake_due = false;
    if (port->context.wake) port->context.wake();
  }
  wakes_.clear();
  return faults_.for_engines.empty();
}

void Wire::schedule(int64_t time_ns, EventKind kind, uint32_t subject, const PathRef& at) {
  queue_.push(std::max(time_ns, now_ns_), {kind, subject, at});
  if (!options_.realtime) return;
  // Whoever sleeps wakes at the earliest event of the whole world, because any engine may be the
  // one that has to run it. Its timer is never put off by others, so no wake-up can be lost (P20).
  const int64_t due = queue_.next_ns();
  for (const auto& port : ports_) {
    if (port != nullptr && port->asleep && due < port->timer_due_ns) set_timer(*port, due);
  }
}

/// Runs what is due, each event at its own time, however late the caller comes.
void Wire::run_due(int64_t until_ns) {
  while (queue_.next_ns() <= until_ns) {
    if (queue_.empty()) break;  // and until the end of time
    now_ns_ = std::max(now_ns_, queue_.next_ns());
    const Event event = queue_.pop();
    dispatch(event);
    if (is_network(event.kind)) after_event();
    if (!faults_.for_engines.empty()) return;  // before anything else happens
  }
  now_ns_ = std::max(now_ns_, until_ns);
}

void Wire::dispatch(const Event& event) {
  switch (event.kind) {
    case EventKind::kTransmit:
      nics_[event.subject].transmit_due = false;
      return kick(nics_[event.subject]);
    case EventKind::kArrive:
      return arrive(event.subject);
    case EventKind::kLand:
      return land(event.subject);
    case EventKind::kDuplicate:
      return land_duplicate(event.subject);
    case EventKind::kAck:
      return acknowledged(event.subject);
    case EventKind::kLocalError:
      return complete_flight(event.subject);
    case EventKind::kRetransmit:
      return retransmit(event.at);
    case EventKind::kOutDown:
      return out_down(event.at);
    case EventKind::kInDown:
      return in_down(event.at);
    case EventKind::kFenced:
      return fenced(event);
    case EventKind::kDatagram:
      return deliver(event.subject, event.at.port);
    case EventKind::kLate:
      return enqueue_late(event.at, event.subject != 0);
    case EventKind::kFault:
      return apply_planned(event.subject);
    case EventKind::kNicFails:
      return nic_fails(nics_[event.subject]);
    case EventKind::kWake:
      return wake_again(event.subject);
  }
}

void Wire::wake_later(Port& port) {
  if (options_.realtime || port.wake_due) return;  // in realtime its timer does it
  port.wake_due = true;
  const int64_t looks_ns = port.polled_ns + kWakeGapNs;
  if (now_ns_ < looks_ns) return schedule(looks_ns, EventKind::kWake, port.number);
  wakes_.push_back(port.number);
}

void Wire::wake_again(uint32_t number) {
  Port* port = find_port(number);
  if (port == nullptr) return;
  // It may have polled meanwhile for another reason, and have seen everything.
  port->wake_due = !arm(*port);
  if (port->wake_due) wakes_.push_back(number);
}

void Wire::trace(EventKind kind, const Nic& nic, uint64_t size_bytes, uint32_t imm) noexcept {
  const uint64_t where = static_cast<uint64_t>(kind) << 56 | uint64_t{nic.index} << 32 | imm;
  hash_.add(static_cast<uint64_t>(now_ns_)).add(where).add(size_bytes);
}

void Wire::trace(const WireEvent& event, const Nic& nic) noexcept {
  const uint64_t what = static_cast<uint64_t>(event.kind) << 24 |
                        static_cast<uint64_t>(event.code) << 16 |
                        static_cast<uint64_t>(event.remote) << 8 | event.inbound;
  hash_.add(static_cast<uint64_t>(now_ns_)).add(what << 32 | nic.index);
  // The value of an immediate is an address, which differs from run to run.
  const uint64_t value = event.kind == WireEvent::Kind::kImm ? 0 : event.value;
  hash_.add(uint64_t{event.cookie} << 32 | event.imm).add(uint64_t{event.path} << 32 | value);
}

/// One way through the network, drawn anew for each packet.
int64_t Wire::delay_ns(const Nic& nic, uint32_t from_node) noexcept {
  const Timing& timing = nic.timing;
  const int64_t least = timing.latency_ns + nodes_[from_node].faults.delay_ns;
  if (timing.jitter_ns == 0) return least;
  return least + static_cast<int64_t>(wire_rng_.between(0, timing.jitter_ns));
}

bool Wire::arm(Port& port) {
  bool idle = port.datagrams.empty();
  for (const RailState& rail : port.rails) idle = idle && rail.events.empty();
  if (!idle || !options_.realtime) return idle;
  set_timer(port, queue_.next_ns());
  port.asleep = true;
  return true;
}

/// Setting a timer also takes back that it was readable, which is why only arm() puts one off.
void Wire::set_timer(Port& port, int64_t due_ns) {
  port.timer_due_ns = due_ns;
  itimerspec spec{};  // zero stops it
  if (due_ns != kNeverNs) {
    const int64_t in_ns = std::max<int64_t>(1, due_ns - real_now_ns_);
    spec.it_value.tv_sec = static_cast<time_t>(in_ns / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(in_ns % 1'000'000'000);
  }
  FABRIC_CHECK(timerfd_settime(port.timer_fd, 0, &spec, nullptr) == 0, "timerfd_settime");
}

Result<Port*> Wire::open_port(uint32_t node, const Network& spec, const OpenContext& context) {
  const auto held = lock();
  if (node >= nodes_.size()) return fail(Errc::kInvalidArgument, "sim: node");
  const auto& networks = nodes_[node].networks;
  const std::string& name = spec.name.empty() ? spec.provider : spec.name;
  const auto found = std::find_if(networks.begin(), networks.end(),
                                  [&](const NodeNetwork& n) { return n.name == name; });
  if (found == networks.end()) return fail(Errc::kUnsupported, "sim: no such network on the node");

  auto port = std::make_unique<Port>();
  if (options_.realtime) {
    port->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (port->timer_fd < 0) return fail(Errc::kExhausted, "timerfd_create", errno);
  }
  port->number = static_cast<uint32_t>(ports_.size() + 1);
  port->node = node;
  port->network = static_cast<uint32_t>(found - networks.begin());
  port->context = context;
  port->rails.resize(std::min(found->rails, std::max(1u, spec.rails_max)));
  for (uint32_t i = 0; i < port->rails.size(); ++i) {
    RailState& rail = port->rails[i];
    rail.nic = &nics_[nodes_[node].first_nic[port->network] + i];
    rail.device = "node" + std::to_string(node) + "/" + name + std::to_string(i);
    const NicModel& model = found->model;
    rail.caps = {.ordered = model.ordered,
                 .slice_safe = model.slice_safe,
                 .exact_replay = model.exact_replay,
                 .checks_access = true,
                 .maps_memory = model.maps_memory,
                 .fence = model.fence,
                 .queue_depth = std::max(1u, model.depth),
                 .path_depth = std::clamp(model.path_depth, 1u, std::max(1u, model.depth)),
                 .write_bytes_max = model.write_bytes_max};
    for (const MemoryKind kind : found->kinds) rail.caps.memory_kinds |= kind_bit(kind);
  }
  locations_.push_back({node, port->rails[0].nic->fabric});
  ports_.push_back(std::move(port));
  Port& opened = *ports_.back();
  for (uint32_t i = 0; i < opened.rails.size(); ++i) {
    if (opened.rails[i].nic->faults.down) report_nic({opened.number, i, 0}, true);
  }
  return &opened;
}

void Wire::close_port(Port& port) noexcept {
  const auto held = lock();
  // What has left the NIC still lands; what has not never will, and nobody is there to be told.
  for (RailState& rail : port.rails) {
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
  while (!port.datagrams.empty()) packets_.give(port.datagrams.pop());
  if (port.timer_fd >= 0) ::close(port.timer_fd);
  ports_[port.number - 1].reset();
}

// ---- Finding a world ----------------------------------------------------------------------------

namespace {

/// A network is opened from text, Network::devices, and its world has to be found from it. This is
/// the one thing in the process that worlds share: which of them are alive. It keeps none alive.
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

/// Takes a prefix and a decimal number off the front of `text`.
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
  // The lowest free id: a run that is repeated in one process gets the same addresses again.
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
  if (target.world == nullptr) return fail(Errc::kClosed, "sim: the world is gone");
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
  // Actors usually hold engines, and engines hold the world.
  if (impl_ != nullptr) impl_->world_driver.drop_step_hooks();
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

void World::each_step(std::function<void()> hook) {
  impl_->world_driver.each_step(std::move(hook));
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

void World::each_arrival(std::function<void(const Arrival&)> observer) {
  impl_->wire.each_arrival(std::move(observer));
}

Result<void> World::chaos(const Chaos& plan) { return impl_->wire.plan(plan); }

uint64_t World::faults(Fault::Kind kind) const noexcept { return impl_->wire.applied(kind); }

Nanos World::now() const noexcept { return Nanos(impl_->wire.now_ns()); }

uint64_t World::trace_hash() const noexcept { return impl_->wire.trace_hash(); }

}  // namespace fabric::sim

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "providers/verbs/handles.h"
#include "providers/verbs/nearest.h"

namespace fabric::verbs {

namespace {

constexpr int64_t kDrainLookNs = 5'000'000;  // wake-up interval while a path has a deadline

Result<std::vector<GidBytes>> ips_of(const Options& options,
                                     std::span<const std::shared_ptr<Device>> devices) {
  if (!options.control_address.empty()) {
    auto ip = parse_ip(options.control_address);
    if (!ip) return ip.error();
    return std::vector{*ip};
  }
  std::vector<Gid> gids;
  for (const auto& device : devices) gids.push_back(device->gid());
  auto ips = own_ips(gids);
  if (ips.empty()) return fail(Errc::kUnsupported, "verbs: set control_address");
  return ips;
}

template <class Range>
bool contains(const Range& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Opens those of the ports, or without names of all active ones, that Network::near picks.
Result<std::vector<std::shared_ptr<Device>>> open_nearest(const Network& spec,
                                                          const Options& options,
                                                          PortSelection which, Log& log) {
  const auto present = device_names();
  if (!present) return present.error();
  std::vector<std::string> candidates;
  for (const PortName& port : which.ports) {
    if (!contains(*present, port.device)) return fail(Errc::kUnsupported, "verbs: no such device");
    if (!contains(candidates, port.device)) candidates.push_back(port.device);
  }
  if (which.ports.empty()) candidates = *present;
  if (candidates.empty()) return fail(Errc::kUnsupported, "verbs: there is no device");
  const auto choice = nearest_devices(spec, candidates, log);
  if (!choice) return choice.error();
  std::vector<std::string> taken;
  for (const auto& nic : choice->taken) taken.push_back(nic.name);
  std::vector<PortName> ports(which.ports.begin(), which.ports.end());
  std::erase_if(ports, [&](const PortName& port) { return !contains(taken, port.device); });
  which.ports = ports;
  which.devices = taken;
  auto devices = open_devices(which, options);
  if (!devices) return devices.error();
  for (const auto& nic : choice->taken) {
    bool opened = false;
    for (const auto& device : *devices) {
      if (device->name() != nic.name) continue;
      opened = true;
      device->set_nearness(choice->target + ": " + to_string(nic.distance));
    }
    if (opened) continue;
    const bool full = devices->size() == which.most;
    log_left_out(spec, nic.name, full ? "rails_max" : "it has no active port", log);
  }
  return devices;
}

Result<std::vector<std::shared_ptr<Device>>> open_rails(const Network& spec, const Options& options,
                                                        Log* log) {
  std::vector<PortName> ports;
  for (const std::string& text : spec.devices) {
    auto port = parse_port_name(text);
    if (!port) return port.error();
    ports.push_back(*std::move(port));
  }
  const PortSelection which{.ports = ports, .most = std::min(spec.rails_max, kRailsMax)};
  if (spec.near.empty()) return open_devices(which, options);
  Log silent({}, LogLevel::kOff);
  return open_nearest(spec, options, which, log != nullptr ? *log : silent);
}

}  // namespace

Result<std::unique_ptr<OpenNetwork>> VerbsNetwork::open(const Network& spec,
                                                        const OpenContext& context) {
  if (auto loaded = load_library(); !loaded) return loaded.error();
  Options options;
  if (const auto* set = std::get_if<Options>(&spec.options)) options = *set;
  auto devices = open_rails(spec, options, context.log);
  if (!devices) return devices.error();
  const auto ips = ips_of(options, *devices);
  if (!ips) return ips.error();
  const uint64_t instance = context.driver->entropy() | 1;
  auto sockets = ControlSockets::open(*ips, static_cast<uint16_t>(options.control_port), instance);
  if (!sockets) return sockets.error();
  Address address{.instance = instance,
                  .rails = static_cast<uint8_t>(devices->size()),
                  .control = sockets->addresses()};
  std::unique_ptr<VerbsNetwork> network(new VerbsNetwork(*std::move(sockets), std::move(address)));
  for (uint32_t i = 0; i < devices->size(); ++i) {
    auto queue = CompletionQueue::make((*devices)[i], 0);
    if (!queue) return queue.error();
    network->rails_.push_back(std::make_unique<VerbsRail>(*std::move(queue), context, instance, i));
  }
  network->map_sockets_to_rails();
  if (auto ok = network->watch(); !ok) return ok.error();
  return std::unique_ptr<OpenNetwork>(std::move(network));
}

/// Once: the sockets stay bound to their addresses when a port's GID changes.
void VerbsNetwork::map_sockets_to_rails() {
  for (const ControlAddress& address : address_.control) {
    const auto rail = std::find_if(rails_.begin(), rails_.end(), [&](const auto& one) {
      return one->port().gid().bytes == address.ip;
    });
    rail_of_socket_.push_back(rail == rails_.end() ? kNoRail
                                                   : static_cast<uint32_t>(rail - rails_.begin()));
  }
}

Result<void> VerbsNetwork::watch() {
  wait_.reset(::epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!wait_ || !timer_) return fail(Errc::kExhausted, "epoll_create1", errno);
  std::vector<int> sources = sockets_.fds();
  sources.push_back(timer_.get());
  for (const auto& rail : rails_) {
    sources.push_back(rail->port().channel()->fd);
    sources.push_back(rail->port().context()->async_fd);
  }
  for (const int fd : sources) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(wait_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail(Errc::kExhausted, "epoll_ctl", errno);
    }
  }
  return {};
}

Result<uint32_t> VerbsNetwork::open_link(std::span<const std::byte> bytes) {
  auto address = decode_address(bytes);
  if (!address) return address.error();
  if (!sockets_.reaches(*address)) {
    return fail(Errc::kUnreachable, "verbs: no address of the peer's kind here");
  }
  auto free = std::find_if(control_peers_.begin(), control_peers_.end(),
                           [](const ControlPeer& l) { return !l.open; });
  if (free == control_peers_.end()) free = control_peers_.insert(free, ControlPeer{});
  *free = ControlPeer{.to = *std::move(address), .open = true};
  for (const auto& rail : rails_) rail->expect_peer(true);
  return static_cast<uint32_t>(free - control_peers_.begin());
}

void VerbsNetwork::close_link(uint32_t link) noexcept {
  if (link >= control_peers_.size() || !control_peers_[link].open) return;
  control_peers_[link].open = false;
  for (const auto& rail : rails_) rail->expect_peer(false);
}

bool VerbsNetwork::send(uint32_t link, std::span<const std::byte> datagram) noexcept {
  if (link >= control_peers_.size() || !control_peers_[link].open) return false;
  if (datagram.empty() || datagram.size() > kControlBytesMax) return false;
  uint32_t down = 0;
  for (uint32_t i = 0; i < rail_of_socket_.size(); ++i) {
    const uint32_t rail = rail_of_socket_[i];
    if (rail != kNoRail && !rails_[rail]->up()) down |= 1u << i;
  }
  return sockets_.send(control_peers_[link], datagram, down);
}

/// Reading the sockets is a system call, so a busy engine does it only every few turns.
uint32_t VerbsNetwork::receive(std::span<std::byte> out) noexcept {
  if (!read_sockets_ && ++turns_ % kTurnsPerRead != 0) return 0;
  const auto received = sockets_.receive();
  read_sockets_ = !received.datagram.empty();
  for (ControlPeer& peer : control_peers_) {
    if (!read_sockets_ || !peer.open || peer.to.instance != received.from) continue;
    peer.unanswered = 0;
    if (received.address_index < peer.to.control.size())
      peer.address_index = received.address_index;
  }
  const size_t size = std::min(received.datagram.size(), out.size());  // cut short, as UDP would
  std::copy_n(received.datagram.begin(), size, out.begin());
  return static_cast<uint32_t>(size);
}

// Sleeping

void VerbsNetwork::set_timer(bool on) noexcept {
  if (!on && !timer_on_) return;
  timer_on_ = on;
  itimerspec when{};
  if (on) when.it_value.tv_nsec = kDrainLookNs;
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);  // also makes it unreadable
}

/// The descriptors of a dead device stay readable and would keep the worker awake.
void VerbsNetwork::forget(const VerbsRail& rail) noexcept {
  for (const int fd : {rail.port().channel()->fd, rail.port().context()->async_fd}) {
    ::epoll_ctl(wait_.get(), EPOLL_CTL_DEL, fd, nullptr);  // repeated calls fail with ENOENT
  }
}

bool VerbsNetwork::arm() noexcept {
  read_sockets_ = true;
  bool quiet = true, timed = false;
  for (const auto& rail : rails_) {
    if (rail->is_dead()) forget(*rail);
    quiet = rail->arm() && quiet;
    timed = timed || rail->is_timed();
  }
  set_timer(timed);
  return quiet;
}

}  // namespace fabric::verbs

#include "fake_verbs/fake_nics.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "base/clock.h"

// The set of fake NICs, fault injection and inspection.

namespace fabric::test {

using namespace fake;

namespace {

std::atomic<FakeNics*> current_nics{nullptr};

verbs::GidBytes gid_of(uint32_t host, uint32_t rail) {
  verbs::GidBytes gid{};
  gid[10] = gid[11] = 0xff;
  gid[12] = 127;  // loopback, so that control datagrams need no interface of their own
  gid[13] = 77;
  gid[14] = static_cast<uint8_t>(host + 1);
  gid[15] = static_cast<uint8_t>(rail + 1);
  return gid;
}

}  // namespace

FakeNics* FakeNics::current() noexcept {
  return current_nics.load(std::memory_order_acquire);  // pairs with the constructor
}

std::string FakeNics::name(uint32_t host, uint32_t rail) {
  return {'c', static_cast<char>('a' + host), static_cast<char>('0' + rail)};
}

FakeNics::FakeNics(const FakeNicOptions& options)
    : options_(options),
      rng_(options.seed),
      silent_when_unsignalled_(options.silent_when_unsignalled) {
  for (uint32_t host = 0; host < options.hosts; ++host) {
    for (uint32_t rail = 0; rail < options.rails; ++rail) {
      auto device = std::make_unique<Device>();
      static_cast<ibv_device&>(*device) = {};
      device->node_type = IBV_NODE_CA;
      device->transport_type = IBV_TRANSPORT_IB;
      const std::string text = name(host, rail);
      std::copy(text.begin(), text.end(), std::begin(device->ibv_device::name));
      device->host = host;
      device->rail = rail;
      device->gid = gid_of(host, rail);
      device->land_late = options.lands_late;
      devices_.push_back(std::move(device));
    }
  }
  EXPECT_EQ(current(), nullptr) << "only one FakeNics may exist at a time";
  before_ = verbs::exchange_library_for_tests(FakeVerbsTable::table());
  current_nics.store(this, std::memory_order_release);  // pairs with current()
  if (options.wire_thread) start_wire_thread();
}

void FakeNics::start_wire_thread() {
  if (thread_.joinable()) return;
  change([this] { threaded_ = true; });
  auto thread = Thread::start({.name = "fake_nics"}, [this] { run_wire(); });
  EXPECT_TRUE(thread);
  if (thread) thread_ = *std::move(thread);
}

FakeNics::~FakeNics() {
  change([this] { stopping_ = true; });
  thread_.join();
  for (const auto& device : devices_) {
    if (!device->contexts.empty()) violate(std::string(device->ibv_device::name) + " is open");
  }
  if (!qps_.empty()) violate(std::to_string(qps_.size()) + " queue pairs leaked");
  if (!mrs_.empty()) violate(std::to_string(mrs_.size()) + " memory regions leaked");
  for (const std::string& what : violations_) ADD_FAILURE() << "no NIC accepts this: " << what;
  current_nics.store(nullptr, std::memory_order_release);  // pairs with current()
  verbs::exchange_library_for_tests(before_);
}

// ---- Faults -------------------------------------------------------------------------------------

void FakeNics::lose(uint32_t from, uint32_t to, uint32_t parts, bool on, uint32_t rail) {
  change([&] {
    std::erase_if(losses_, [&](const Loss& loss) {
      return loss.from == from && loss.to == to && loss.rail == rail && loss.parts == parts;
    });
    if (on) losses_.push_back({from, to, rail, parts});
  });
}

void FakeNics::lossy_control(const Lossy& lossy) {
  change([&] { lossy_ = lossy; });
}

void FakeNics::port(uint32_t host, uint32_t rail, bool up, bool raises_event) {
  change([&] {
    each_device(host, rail, [&](Device& device) {
      device.up = up;
      if (!raises_event) return;
      for (Context* context : device.contexts) {
        raise_event(*context, {up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR});
      }
    });
  });
}

void FakeNics::fatal(uint32_t host, uint32_t rail) {
  change([&] {
    undrained_allowed_ = true;  // no drain can finish on it
    each_device(host, rail, [&](Device& device) {
      device.fatal = true;
      device.up = false;
      for (Context* context : device.contexts) raise_event(*context, {IBV_EVENT_DEVICE_FATAL});
    });
  });
}

void FakeNics::overrun(uint32_t host, uint32_t rail) {
  change([&] {
    undrained_allowed_ = true;
    std::set<Cq*> hit;
    for (const auto& [serial, qp] : qps_) {
      if (qp->owner->device->host == host && qp->owner->device->rail == rail) {
        hit.insert(of(qp->recv_cq));
      }
    }
    for (Cq* cq : hit) overrun(*cq);
  });
}

uint32_t FakeNics::break_path(uint32_t from, uint32_t to, uint32_t rail, End end) {
  uint32_t broken = 0;
  change([&] {
    for (auto& [serial, qp] : qps_) {
      const Device* far = find(qp->far_gid);
      if (far == nullptr || (qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS)) continue;
      const Device& own = *qp->owner->device;
      const bool sends = qp->state == IBV_QPS_RTS;
      const bool hit = end == End::kSender
                           ? sends && own.host == from && far->host == to && own.rail == rail
                           : !sends && own.host == to && far->host == from && far->rail == rail;
      if (!hit) continue;
      to_error(*qp);
      ++broken;
    }
  });
  return broken;
}

void FakeNics::raise_event(uint32_t host, uint32_t rail, ibv_event_type type) {
  change([&] {
    each_device(host, rail, [&](Device& device) {
      for (Context* context : device.contexts) raise_event(*context, {type});
    });
  });
}

uint32_t FakeNics::raise_qp_events(uint32_t host, uint32_t rail, End end, ibv_event_type type) {
  uint32_t raised = 0;
  change([&] {
    for (auto& [serial, qp] : qps_) {
      const Device& own = *qp->owner->device;
      if (own.host != host || own.rail != rail) continue;
      if (qp->state != (end == End::kSender ? IBV_QPS_RTS : IBV_QPS_RTR)) continue;
      raise_event(*qp->owner, {type, static_cast<ibv_qp*>(qp.get())});
      ++raised;
    }
  });
  return raised;
}

void FakeNics::corrupt_rkey(uint32_t from, uint32_t to) {
  change([&] {
    corrupt_from_ = from;
    corrupt_to_ = to;
  });
}

void FakeNics::not_ready(uint32_t host, bool on) {
  change([&] { each_device(host, kAny, [&](Device& device) { device.not_ready = on; }); });
}

void FakeNics::land_late(uint32_t host, uint32_t rail, bool on) {
  change([&] { each_device(host, rail, [&](Device& device) { device.land_late = on; }); });
}

void FakeNics::land_before_error_state(uint32_t host, uint32_t rail, bool on) {
  change([&] { each_device(host, rail, [&](Device& device) { device.lands_first = on; }); });
}

void FakeNics::hold_flushes(uint32_t host, uint32_t rail, bool on) {
  change([&] { each_device(host, rail, [&](Device& device) { device.hold_flushes = on; }); });
}

void FakeNics::hold_packets(uint32_t host, uint32_t rail, bool on) {
  change([&] { each_device(host, rail, [&](Device& device) { device.hold_packets = on; }); });
}

void FakeNics::fail(const Failure& failure) {
  change([&] { failures_.push_back(failure); });
}

void FakeNics::move_gid(uint32_t host, uint32_t rail, uint8_t index) {
  change([&] {
    each_device(host, rail, [&](Device& device) {
      device.gid_index = index;
      for (Context* context : device.contexts) raise_event(*context, {IBV_EVENT_GID_CHANGE});
    });
  });
}

void FakeNics::hide_neighbour(uint32_t host, uint32_t rail, bool on) {
  change([&] {
    if (on) {
      hidden_neighbours_.emplace(host, rail);
    } else {
      hidden_neighbours_.erase({host, rail});
    }
  });
}

void FakeNics::time_out_neighbour_searches() {
  change([&] {
    ++searches_timed_out_;
    neighbour_searches_ = 0;
  });
}

uint32_t FakeNics::neighbour_searches() {
  const std::lock_guard lock(mutex_);
  return neighbour_searches_;
}

void FakeNics::set_silent_when_unsignalled(bool on) {
  change([&] { silent_when_unsignalled_ = on; });
}

// ---- Inspection ---------------------------------------------------------------------------------

uint64_t FakeNics::calls(Call call, uint32_t host) {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [what, count] : calls_) {
    if (what.first == call && (host == kAny || what.second == host)) sum += count;
  }
  return sum;
}

uint64_t FakeNics::failed_calls() {
  const std::lock_guard lock(mutex_);
  return failed_calls_;
}

uint64_t FakeNics::landed(uint32_t host) {
  const std::lock_guard lock(mutex_);
  return landed_[host];
}

uint64_t FakeNics::landed_late() {
  const std::lock_guard lock(mutex_);
  return late_;
}

uint64_t FakeNics::deleted() {
  const std::lock_guard lock(mutex_);
  return deleted_;
}

uint64_t FakeNics::flushed() {
  const std::lock_guard lock(mutex_);
  return flushed_;
}

uint32_t FakeNics::in_flight(uint32_t host, uint32_t rail) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [serial, flight] : flights_) {
    if (flight.source->host != host || flight.source->rail != rail) continue;
    count +=
        static_cast<size_t>(std::ranges::count(flight.packets, Packet::Kind::kData, &Packet::kind));
  }
  return static_cast<uint32_t>(count);
}

std::vector<QpSettings> FakeNics::qp_settings(uint32_t host, uint32_t rail) {
  const std::lock_guard lock(mutex_);
  std::vector<QpSettings> out;
  for (const auto& [serial, qp] : qps_) {
    const Device& own = *qp->owner->device;
    if (own.host == host && own.rail == rail && qp->state == IBV_QPS_RTS)
      out.push_back(qp->settings);
  }
  return out;
}

unsigned FakeNics::access(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(mrs_, [&](const auto& one) { return one.second->addr == address; });
  return found == mrs_.end() ? 0 : found->second->access;
}

std::vector<std::string> FakeNics::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

FakeNics::DatagramFate FakeNics::control(uint32_t from_host, uint32_t from_rail, uint32_t to_host,
                                         uint32_t to_rail) {
  const std::lock_guard lock(mutex_);
  bool passes = true;
  const auto down = [&](const Device& device) { passes = passes && (device.up || device.fatal); };
  each_device(from_host, from_rail, down);
  each_device(to_host, to_rail, down);
  for (const Loss& loss : losses_) {
    const bool hit = loss.from == from_host && loss.to == to_host &&
                     (loss.rail == kAny || loss.rail == from_rail);
    if (hit && (loss.parts & kControl) != 0) passes = false;
  }
  const auto by_chance = [&](double part) { return part > 0 && rng_.chance(part); };
  if (!passes || by_chance(lossy_.drop)) return {.copies = 0};
  return {.copies = by_chance(lossy_.duplicate) ? 2u : 1u, .swaps = by_chance(lossy_.reorder)};
}

// ---- Inside -------------------------------------------------------------------------------------

int FakeNics::failing(Call call, const Device& device, Failure* how) {
  ++calls_[{call, device.host}];
  for (auto it = failures_.begin(); it != failures_.end(); ++it) {
    if (it->call != call || (it->host != kAny && it->host != device.host) ||
        (it->rail != kAny && it->rail != device.rail)) {
      continue;
    }
    if (it->after > 0) {
      --it->after;
      continue;
    }
    const int error = it->error;
    if (how != nullptr) *how = *it;
    ++failed_calls_;
    if (--it->times == 0) failures_.erase(it);
    return error;
  }
  return device.fatal && call != Call::kDeregister ? EIO : 0;
}

Device* FakeNics::find(const verbs::GidBytes& gid) {
  const auto found =
      std::ranges::find_if(devices_, [&](const auto& device) { return device->gid == gid; });
  return found == devices_.end() ? nullptr : found->get();
}

Qp* FakeNics::find(const Device& device, uint32_t number) {
  for (const auto& [serial, qp] : qps_) {
    if (qp->owner->device == &device && qp->qp_num == number) return qp.get();
  }
  return nullptr;
}

Mr* FakeNics::find_key(const Pd& pd, uint32_t key) {
  const auto found = mrs_.find(key);
  if (found == mrs_.end()) return nullptr;
  return of(found->second->pd) == pd.root ? found->second.get() : nullptr;
}

void FakeNics::raise_event(Context& context, AsyncEvent event) {
  context.events.push_back(event);
  ::eventfd_write(context.async.get(), 1);
}

void FakeNics::to_error(Qp& qp) {
  qp.state = IBV_QPS_ERR;
  qp.retry_ns = INT64_MAX;
  // A repeated transition also flushes receives that were posted after the first one.
  qp.receives.insert(qp.receives.end(), qp.receives_after_error.begin(),
                     qp.receives_after_error.end());
  qp.receives_after_error.clear();
}

void FakeNics::overrun(Cq& cq) {
  if (std::exchange(cq.overrun, true)) return;
  cq.entries.clear();
  raise_event(*of(cq.context), {IBV_EVENT_CQ_ERR, static_cast<ibv_cq*>(&cq)});
  for (auto& [serial, qp] : qps_) {
    const bool connected = qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS;
    if (of(qp->recv_cq) == &cq && connected) to_error(*qp);
  }
}

}  // namespace fabric::test

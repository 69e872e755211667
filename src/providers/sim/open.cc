#include "providers/sim/open.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "providers/sim/world.h"

// The provider contract in front of Wire: takes the lock, names the place, passes on.

namespace fabric::sim {
namespace {

class SimRail final : public Rail {
 public:
  SimRail(Wire& wire, Port& port, uint32_t index)
      : wire_(wire), port_(port), rail_(port.rails[index]), index_(index) {}

  const Caps& caps() const noexcept override { return rail_.caps; }
  std::string_view device() const noexcept override { return rail_.device; }
  std::vector<std::pair<std::string, std::string>> facts() const override {
    return {{"fence", to_string(rail_.caps.fence)},
            {"memory", rail_.caps.maps_memory ? "shared" : "any"},
            {"order", rail_.caps.ordered ? "posting" : "none"},
            {"replay", rail_.caps.exact_replay ? "exact" : "none"}};
  }

  Result<uint64_t> register_memory(const Memory& memory,
                                   std::vector<std::byte>& wire_key) override {
    const auto lock = wire_.enter(port_);
    return wire_.register_memory(rail_, at(), memory, wire_key);
  }
  void deregister_memory(uint64_t local_key, uint32_t cookie) noexcept override {
    const auto lock = wire_.enter(port_);
    wire_.deregister_memory(rail_, at(), local_key, cookie);
  }
  Result<uint64_t> import_key(std::span<const std::byte> wire_key) override {
    // Port and rail are for people who read a descriptor; the cookie in the key is what counts.
    ByteReader reader(wire_key);
    reader.require(reader.u32() != 0);
    reader.require(reader.u32() < kRailsMax);
    const uint64_t key = reader.u64();
    reader.require(key != 0 && reader.remaining() == 0);
    if (!reader.ok()) return fail(Errc::kBadFormat, "sim: wire key");
    return key;
  }

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override {
    const auto lock = wire_.enter(port_);
    return wire_.open_path(port_, index_, peer, remote_rail, hello);
  }
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override {
    const auto lock = wire_.enter(port_);
    return wire_.accept_path(port_, index_, hello, answer);
  }
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override {
    const auto lock = wire_.enter(port_);
    return wire_.start_path(rail_, path, answer);
  }
  void close_path(uint32_t path, bool inbound) noexcept override {
    const auto lock = wire_.enter(port_);
    wire_.close_path(rail_, at(path), inbound);
  }

  uint32_t post(std::span<const WriteOp> ops) noexcept override {
    const auto lock = wire_.enter(port_);
    return wire_.post(rail_, at(), ops);
  }
  uint32_t poll(std::span<WireEvent> out) noexcept override {
    const auto lock = wire_.enter(port_);
    return wire_.poll(port_, rail_, out);
  }

 private:
  PathRef at(uint32_t path = 0) const noexcept { return {port_.number, index_, path}; }

  Wire& wire_;
  Port& port_;
  RailState& rail_;
  uint32_t index_;
};

class SimNetwork final : public OpenNetwork {
 public:
  SimNetwork(std::shared_ptr<World::Impl> world, Port& port)
      : world_(std::move(world)), wire_(world_->wire), port_(port) {
    rails_.reserve(port.rails.size());
    for (uint32_t i = 0; i < port.rails.size(); ++i) rails_.emplace_back(wire_, port, i);
  }
  ~SimNetwork() override { wire_.close_port(port_); }
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  uint32_t rail_count() const noexcept override { return static_cast<uint32_t>(rails_.size()); }
  Rail& rail(uint32_t index) noexcept override { return rails_[index]; }
  std::vector<std::byte> address() const override { return wire_.address(port_); }
  Result<uint32_t> open_link(std::span<const std::byte> address) override {
    const auto lock = wire_.enter(port_);
    return wire_.open_link(port_, address);
  }
  void close_link(uint32_t link) noexcept override {
    const auto lock = wire_.enter(port_);
    wire_.close_link(port_, link);
  }
  uint32_t control_bytes_max() const noexcept override { return kControlBytesMax; }
  bool send(uint32_t link, std::span<const std::byte> datagram) noexcept override {
    const auto lock = wire_.enter(port_);
    return wire_.send(port_, link, datagram);
  }
  uint32_t receive(std::span<std::byte> out) noexcept override {
    const auto lock = wire_.enter(port_);
    return wire_.receive(port_, out);
  }
  bool arm() noexcept override {
    const auto lock = wire_.enter(port_);
    return wire_.arm(port_);
  }
  int wait_fd() const noexcept override { return port_.timer_fd; }

 private:
  std::shared_ptr<World::Impl> world_;  // shared with the other engines of the world
  Wire& wire_;
  Port& port_;
  std::vector<SimRail> rails_;
};

}  // namespace

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  auto found = find_world(spec.devices);
  if (!found) return found.error();
  if (context.driver == nullptr) return fail(Errc::kInvalidArgument, "sim: driver");
  World::Impl& world = *found->world;
  // Only the world's own driver moves its clock.
  if (!world.wire.realtime() && context.driver != &world.world_driver) {
    return fail(Errc::kInvalidArgument, "sim: open the engine by sim::World::open()");
  }
  auto port = world.wire.open_port(found->node, spec, context);
  if (!port) return port.error();
  return std::unique_ptr<OpenNetwork>(
      std::make_unique<SimNetwork>(std::move(found->world), **port));
}

}  // namespace fabric::sim

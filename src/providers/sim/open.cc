#include "providers/sim/open.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "providers/sim/world.h"

// The provider contract on top of Wire: takes Wire's lock and forwards the call.

namespace fabric::sim {
namespace {

/// One NIC of a simulated node, for one engine. Owned by its SimNetwork; has no state of its own,
/// all of it is in Wire. Rail calls come one at a time under the engine's state lock; enter() takes
/// Wire's lock below it, which serialises the engines of a realtime world.
/// Invariant: its members are fixed at open; every call that reads or changes state of the wire
/// holds Wire's lock.
class SimRail final : public Rail {
 public:
  SimRail(Wire& wire, NetworkAttachment& attachment, uint32_t index)
      : wire_(wire), attachment_(attachment), rail_(attachment.rails[index]), index_(index) {}

  const Caps& caps() const noexcept override { return rail_.caps; }
  std::string_view device() const noexcept override { return rail_.device; }
  std::vector<std::pair<std::string, std::string>> facts() const override {
    return {{"counts", rail_.caps.count_is_final ? "final" : "not final"},
            {"fence", to_string(rail_.caps.fence)},
            {"memory", rail_.caps.maps_memory ? "shared" : "any"},
            {"order", rail_.caps.ordered ? "posting" : "none"},
            {"replay", rail_.caps.exact_replay ? "exact" : "none"}};
  }

  Result<uint64_t> register_memory(const Memory& memory,
                                   std::vector<std::byte>& wire_rkey) override {
    const auto lock = wire_.enter(attachment_);
    return wire_.register_memory(rail_, at(), memory, wire_rkey);
  }
  void deregister_memory(uint64_t lkey, uint32_t cookie) noexcept override {
    const auto lock = wire_.enter(attachment_);
    wire_.deregister_memory(rail_, at(), lkey, cookie);
  }
  Result<uint64_t> import_rkey(std::span<const std::byte> wire_rkey) override {
    // Attachment and rail are informative, for dumps of a descriptor; the cookie in the rkey is
    // checked.
    ByteReader reader(wire_rkey);
    reader.require(reader.u32() != 0);
    reader.require(reader.u32() < kRailsMax);
    const uint64_t key = reader.u64();
    reader.require(key != 0 && reader.remaining() == 0);
    if (!reader.ok()) return fail(Errc::kBadFormat, "sim: wire rkey");
    return key;
  }

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override {
    const auto lock = wire_.enter(attachment_);
    return wire_.open_path(attachment_, index_, peer, remote_rail, hello);
  }
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override {
    const auto lock = wire_.enter(attachment_);
    return wire_.accept_path(attachment_, index_, hello, answer);
  }
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override {
    const auto lock = wire_.enter(attachment_);
    return wire_.start_path(rail_, path, answer);
  }
  void close_path(uint32_t path, bool inbound) noexcept override {
    const auto lock = wire_.enter(attachment_);
    wire_.close_path(rail_, at(path), inbound);
  }

  uint32_t post(std::span<const WriteOp> ops) noexcept override {
    const auto lock = wire_.enter(attachment_);
    return wire_.post(rail_, at(), ops);
  }
  uint32_t poll(std::span<RailEvent> out) noexcept override {
    const auto lock = wire_.enter(attachment_);
    return wire_.poll(attachment_, rail_, out);
  }

 private:
  PathRef at(uint32_t path = 0) const noexcept { return {attachment_.number, index_, path}; }

  Wire& wire_;
  NetworkAttachment& attachment_;
  RailState& rail_;
  uint32_t index_;
};

/// One network of a simulated node, for one engine: owns the NetworkAttachment in Wire, and shares
/// the world. Calls come under the engine's state lock.
class SimNetwork final : public OpenNetwork {
 public:
  SimNetwork(std::shared_ptr<World::Impl> world, NetworkAttachment& attachment)
      : world_(std::move(world)), wire_(world_->wire), attachment_(attachment) {
    rails_.reserve(attachment.rails.size());
    for (uint32_t i = 0; i < attachment.rails.size(); ++i)
      rails_.emplace_back(wire_, attachment, i);
  }
  ~SimNetwork() override { wire_.close_attachment(attachment_); }
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  uint32_t rail_count() const noexcept override { return static_cast<uint32_t>(rails_.size()); }
  Rail& rail(uint32_t index) noexcept override { return rails_[index]; }
  std::vector<std::byte> address() const override { return wire_.address(attachment_); }
  Result<uint32_t> open_link(std::span<const std::byte> address) override {
    const auto lock = wire_.enter(attachment_);
    return wire_.open_link(attachment_, address);
  }
  void close_link(uint32_t link) noexcept override {
    const auto lock = wire_.enter(attachment_);
    wire_.close_link(attachment_, link);
  }
  uint32_t control_bytes_max() const noexcept override { return kControlBytesMax; }
  bool send(uint32_t link, std::span<const std::byte> datagram) noexcept override {
    const auto lock = wire_.enter(attachment_);
    return wire_.send(attachment_, link, datagram);
  }
  uint32_t receive(std::span<std::byte> out) noexcept override {
    const auto lock = wire_.enter(attachment_);
    return wire_.receive(attachment_, out);
  }
  bool arm() noexcept override {
    const auto lock = wire_.enter(attachment_);
    return wire_.arm(attachment_);
  }
  int wait_fd() const noexcept override { return attachment_.timer_fd; }

 private:
  std::shared_ptr<World::Impl> world_;  // shared with the other engines of the world
  Wire& wire_;
  NetworkAttachment& attachment_;
  std::vector<SimRail> rails_;
};

}  // namespace

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  auto found = find_world(spec.devices);
  if (!found) return found.error();
  if (!spec.near.empty()) return fail(Errc::kInvalidArgument, "networks.near");
  if (context.driver == nullptr) return fail(Errc::kInvalidArgument, "sim: driver");
  World::Impl& world = *found->world;
  // Only the world's own driver advances its clock.
  if (!world.wire.realtime() && context.driver != &world.world_driver) {
    return fail(Errc::kInvalidArgument, "sim: open the engine by sim::World::open()");
  }
  auto attachment = world.wire.open_attachment(found->node, spec, context);
  if (!attachment) return attachment.error();
  return std::unique_ptr<OpenNetwork>(
      std::make_unique<SimNetwork>(std::move(found->world), **attachment));
}

}  // namespace fabric::sim

#include <array>

#include <fmt/format.h>

#include "swarm/runner.h"

// Calls that must be refused, in the middle of everything: they say which argument is wrong, and
// nothing comes of them.

namespace fabric::swarm {

using namespace std::chrono_literals;

void Stage::must_refuse(std::string_view what, Errc wanted, const Error& error) {
  coverage_.add("refusal", to_string(error.code));
  // A full queue, or a peer that is going, may be noticed first.
  if (error.code == wanted || error.code == Errc::kExhausted || error.code == Errc::kPeerLost) {
    return;
  }
  broken("bad input is refused by name",
         fmt::format("{}: {} ({}) instead of {}", what, to_string(error.code),
                     error.what == nullptr ? "" : error.what, to_string(wanted)));
}

/// A blocking call where nothing could end it.
void Stage::Ear::on_misuse(void* self, const Event&) {
  const Ear& ear = *static_cast<Ear*>(self);
  if (!ear.stage->alive(ear.node, ear.life)) return;
  ear.stage->must_refuse("a close in a callback", Errc::kWouldDeadlock,
                         ear.stage->lives_[ear.node]->engine->close().error());
}

/// Somebody of another job. Without an answer in time nothing can be said.
void Stage::stranger(Life& life, uint32_t other) {
  Config config;
  config.job_key = "of another job";
  config.log_level = LogLevel::kOff;
  auto engine = world_.open(life.node, config);
  Life* there = this->life(other);
  if (!engine || there == nullptr) return;
  const auto peer = engine->connect(there->engine->address());
  const auto batch = engine->make_batch();
  if (!peer || !batch) return;
  (void)engine->submit(Send{.peer = *peer, .channel = 1, .timeout = 20ms, .batch = *batch});
  const auto ended = engine->wait(*batch, 30ms);
  if (ended.error().code == Errc::kTimeout) return;
  must_refuse("a peer of another job", Errc::kWrongJob, ended.error());
}

/// The right call in the wrong place, version or job.
void Stage::misfit(Life& life, uint32_t other, Rng& dice) {
  Engine& engine = *life.engine;
  switch (dice.below(3)) {
    case 0:
      (void)engine.submit(
          Timer{.after = 1us, .notify = Notify::call(&Ear::on_misuse, life.ear.get())});
      return;
    case 1: {
      auto address = this->life(other)->engine->address();
      address[4] ^= std::byte{0xff};  // the major version of its format
      return must_refuse("an address of another version", Errc::kVersion,
                         engine.connect(address).error());
    }
    default:
      return stranger(life, other);
  }
}

void Stage::misuse(Life& life, uint32_t other, Rng& dice) {
  Engine& engine = *life.engine;
  Way* way = reach(life, other);
  if (way == nullptr) return;
  const Spot source = source_for(life, 64, 0);
  if (source.bytes.empty()) return;
  const uint32_t field = field_for(*way, 64);
  const RemoteRegion region = field == kNobody ? RemoteRegion{} : region_of(*way, field);
  if (!region) return;
  const std::array<std::byte, 8> nonsense{};
  switch (dice.below(15)) {
    case 0:
      return must_refuse(
          "a write past its source", Errc::kOutOfBounds,
          engine
              .submit(Write{
                  .source = {source.ref.region, 1u << 20}, .target = region.at(0), .size_bytes = 1})
              .error());
    case 1:
      return must_refuse("a write from no region", Errc::kInvalidArgument,
                         engine.submit(Write{.target = region.at(0), .size_bytes = 1}).error());
    case 2:
      return must_refuse(
          "a message that is too large", Errc::kTooLarge,
          engine
              .submit(
                  Send{.peer = way->peer, .channel = 1, .bytes = std::vector<std::byte>(100'000)})
              .error());
    case 3:
      return must_refuse("no address", Errc::kBadFormat, engine.connect(nonsense).error());
    case 4:
      return must_refuse("no descriptor", Errc::kBadFormat,
                         engine.import_region(way->peer, nonsense).error());
    case 5: {
      auto counter = engine.make_counter();
      if (!counter) return;
      const auto armed = counter->expect(1, {}, 1ms);
      if (!armed) return;
      return must_refuse("two waits at one counter", Errc::kBusy,
                         counter->expect(1, {}, 1ms).error());
    }
    case 6:
      return must_refuse(
          "a timeout below zero", Errc::kInvalidArgument,
          engine.submit(Write{.source = source.ref, .target = region.at(0), .timeout = Nanos(-5)})
              .error());
    case 7:
      return must_refuse("a cancel of nothing", Errc::kNotFound,
                         engine.cancel(OpId(1u << 20, 7)).error());
    case 8: {
      const auto private_desc = life.sources.back().region->desc();
      return must_refuse("a descriptor of a source", Errc::kPermission, private_desc.error());
    }
    case 9:
      return must_refuse("a second listener", Errc::kBusy,
                         engine.listen(1, Notify::call(&Ear::on_message, life.ear.get())).error());
    case 10:
      return must_refuse("no peer", Errc::kNotFound,
                         engine.submit(Send{.peer = PeerId(77, 77), .channel = 1}).error());
    case 11:
    case 12:
    case 13:
      return misfit(life, other, dice);
    default:
      return must_refuse(
          "an empty page list", Errc::kInvalidArgument,
          engine.submit(PagedWrite{.source = source.ref.region, .target = region, .page_bytes = 64})
              .error());
  }
}

}  // namespace fabric::swarm

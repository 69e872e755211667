// One counted write between two engines of a simulated world: the smallest program that touches
// every part of an installed library.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <fabric/fabric.h>
#include <fabric/sim.h>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kBytes = 4096;

fabric::Result<bool> write_once() {
  fabric::sim::World world;
  const uint32_t here = world.add_node();
  const uint32_t there = world.add_node();
  auto sender = world.open(here);
  if (!sender) return sender.error();
  auto receiver = world.open(there);
  if (!receiver) return receiver.error();

  auto source = sender->allocate({.size_bytes = kBytes});
  if (!source) return source.error();
  auto target = receiver->allocate({.size_bytes = kBytes});
  if (!target) return target.error();
  auto counter = receiver->make_counter();
  if (!counter) return counter.error();
  std::ranges::fill(source->bytes(), std::byte{0xA5});

  auto offer = receiver->offer(*target, counter->key());
  if (!offer) return offer.error();
  auto peer = sender->accept(*offer);
  if (!peer) return peer.error();
  auto op = sender->submit(fabric::Write{.source = source->at(0),
                                         .target = peer->region.at(0),
                                         .size_bytes = kBytes,
                                         .imm = peer->key});
  if (!op) return op.error();
  if (auto counted = counter->wait(1, 1s); !counted) return counted.error();
  return std::ranges::equal(source->bytes(), target->bytes());
}

}  // namespace

int main() {
  // Headers of one version with a library of another would be a broken installation.
  if (std::strcmp(fabric::version(), FABRIC_VERSION_STRING) != 0) {
    std::fprintf(stderr, "headers %s, library %s\n", FABRIC_VERSION_STRING, fabric::version());
    return 1;
  }
  const auto written = write_once();
  if (!written) {
    std::fprintf(stderr, "%s: %s\n", fabric::to_string(written.error().code), written.error().what);
    return 1;
  }
  std::printf("fabric-lib %s: %s\n", fabric::version(),
              *written ? "counted, and every byte is there" : "counted, but bytes are missing");
  return *written ? 0 : 1;
}

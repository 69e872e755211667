// Two engines, one write, one count, all in this process, on a simulated network that carries real
// bytes.

#include <cstdio>
#include <cstring>

#include <fabric/fabric.h>
#include <fabric/sim.h>

int main() {
  fabric::sim::World world({.seed = 7});
  auto alice = world.open(world.add_node(4));  // a host with four NICs ...
  auto bob = world.open(world.add_node(3));    // ... and one with three
  if (!alice || !bob) return 1;

  auto memory = bob->allocate({.size_bytes = 1 << 20});
  auto counter = bob->make_counter();
  auto offer = bob->offer(*memory, counter->key());  // one line of text, for any channel

  auto target = alice->accept(*offer);
  auto source = alice->allocate({.size_bytes = 1 << 20});
  std::memset(source->bytes().data(), 42, 1 << 20);
  auto write = alice->submit(fabric::Write{.source = source->at(0),
                                           .target = target->region.at(0),
                                           .size_bytes = 1 << 20,
                                           .imm = target->key});

  if (!write || !counter->wait(1)) return 1;  // 1: the whole write is in Bob's memory
  const int last = static_cast<int>(memory->bytes().back());
  std::printf("Bob reads %d\n", last);
  return last == 42 ? 0 : 1;
}

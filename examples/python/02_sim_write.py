"""Two engines, one write, one count, all in this process, on a simulated network that carries real
bytes.
"""

from fabric_lib import sim


def main() -> None:
    world = sim.World(seed=7)
    alice = world.open(world.add_node(4))  # a host with four NICs ...
    bob = world.open(world.add_node(3))  # ... and one with three

    memory, counter = bob.allocate(1 << 20), bob.make_counter()
    target = alice.accept(bob.offer(memory, counter.key))  # one line of text, for any channel

    source = alice.allocate(1 << 20)
    source.numpy()[:] = 42
    alice.write(source, target.region, 1 << 20, imm=target.key)

    counter.wait(1)  # 1: the whole write is in Bob's memory
    last = int(memory.numpy()[-1])
    print(f"Bob reads {last} after {world.now() * 1e6:.1f} us of simulated time")
    assert last == 42


if __name__ == "__main__":
    main()

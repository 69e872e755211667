"""Names, groups and signals: four engines synchronize at a barrier, ten times. Each has one counter
for every other member, under a name that both sides can compute, so no counter key has to be
exchanged.
"""

import fabric_lib as fabric
from fabric_lib import sim

MEMBERS, ROUNDS = 4, 10


def name_of(sender: int, receiver: int) -> int:
    """The counter at `receiver` for signals of `sender`."""
    return sender << 32 | receiver


class Member:
    def __init__(self, engines: list[fabric.Engine], me: int) -> None:
        """Connects to all others and resolves names to counter keys, once."""
        self.engine = engines[me]
        self.arrivals = self.engine.make_counter_group()
        self.keys: list[fabric.CounterKey] = []
        peers: list[fabric.PeerId] = []
        for other, engine in enumerate(engines):
            if other == me:
                continue
            peers.append(self.engine.connect(engine.address()))
            self.keys += self.engine.resolve(peers[-1], [name_of(me, other)], timeout=1)
            counter = self.engine.named_counter(name_of(other, me))
            self.arrivals.add(counter, peers[-1])
        self.others = self.engine.make_group(peers)

    def signal(self) -> None:
        self.engine.signal(self.others, self.keys)


def main() -> None:
    world = sim.World(seed=3)
    engines = [world.open(world.add_node()) for _ in range(MEMBERS)]
    members = [Member(engines, i) for i in range(MEMBERS)]
    for _ in range(ROUNDS):
        # All signal but the last: no member may pass. The group knows which one is missing.
        for member in members[:-1]:
            member.signal()
        try:
            members[0].arrivals.wait(timeout=1e-3)
            raise AssertionError("passed without the last member")
        except TimeoutError:
            assert len(members[0].arrivals.missing()) == 1
        members[-1].signal()
        for member in members:
            member.arrivals.wait(timeout=1)
    print(f"{MEMBERS} members passed {ROUNDS} barriers in {world.now() * 1e6:.0f} us simulated")


if __name__ == "__main__":
    main()

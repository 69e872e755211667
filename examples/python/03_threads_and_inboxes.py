"""Four threads submit, the engine's threads move the bytes, and one loop reads all completions from
an inbox. The network is simulated, in real time.
"""

import threading

import fabric_lib as fabric
from fabric_lib import sim

THREADS, WRITES, SIZE, CHANNEL = 4, 50, 4096, 1
MESSAGE_TAG = 1 << 20  # above every number of a write


def read_all(inbox: fabric.Inbox) -> None:
    """Reads the inbox until every write has completed and the message has arrived."""
    pending, message = set(range(THREADS * WRITES)), b""
    while pending or not message:
        inbox.wait(timeout=10)
        for event in inbox.poll():
            if event.kind == fabric.EventKind.MESSAGE:
                message = event.data
            elif event.error is not None:
                raise event.error
            else:
                pending.remove(event.tag)
    print(f"message: {message.decode()}")


def main() -> None:
    world = sim.World(realtime=True)
    with world.open(world.add_node(2)) as alice, world.open(world.add_node(2)) as bob:
        source = alice.allocate(SIZE)
        memory, counter = bob.allocate(SIZE * THREADS), bob.make_counter()
        target = alice.accept(bob.offer(memory, counter.key))

        # One reader, and room for everything in flight: with a full inbox a write is refused.
        inbox = alice.make_inbox(512)
        listening = alice.listen(CHANNEL, inbox, tag=MESSAGE_TAG)

        def submit(thread: int) -> None:
            for i in range(WRITES):
                alice.write(
                    source,
                    target.region,
                    SIZE,
                    target_offset=thread * SIZE,
                    imm=target.key,
                    notify=inbox,
                    tag=thread * WRITES + i,
                )

        threads = [threading.Thread(target=submit, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        counter.wait(THREADS * WRITES, timeout=10)  # sleeps until all writes are in Bob's memory
        bob.send(bob.peers()[0], b"Bob has counted all of them", CHANNEL)
        read_all(inbox)
        for thread in threads:
            thread.join()
        listening.close()
    print(f"{THREADS * WRITES} writes from {THREADS} threads, each reported once")


if __name__ == "__main__":
    main()

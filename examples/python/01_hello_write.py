"""Two processes on one host: the child writes into the parent's memory, and the parent waits until
the write has been counted. Outside the library they only exchange a line of text, through a pipe.
"""

import os

import fabric_lib as fabric


def receive(pipe: int) -> None:
    with fabric.Engine(networks=["shm"]) as engine:
        memory, counter = engine.allocate(64), engine.make_counter()
        os.write(pipe, engine.offer(memory, counter.key).encode())
        os.close(pipe)  # the offer is sent: its holder may write here
        counter.wait(1, timeout=10)  # one write is in place, with all of its bytes
        text = bytes(memory.numpy()).rstrip(b"\0").decode()
        print(f"{os.getpid()} reads: {text}")
        assert text.startswith("hello from")


def send(pipe: int) -> None:
    with os.fdopen(pipe) as reader:
        offer = reader.read()
    with fabric.Engine(networks=["shm"]) as engine:
        target = engine.accept(offer)
        text = bytearray(f"hello from {os.getpid()}".encode())
        source = engine.register(text)
        with engine.batch() as batch:  # leaving waits: the source may be used again
            engine.write(source, target.region, len(text), imm=target.key, batch=batch)


def main() -> None:
    reader, writer = os.pipe()
    child = os.fork()  # before any engine is open: engines do not survive fork()
    os.close(writer if child == 0 else reader)
    if child == 0:
        send(reader)
        return
    receive(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    main()

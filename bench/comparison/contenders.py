"""Who is measured, and how: each turns a shot into a command line, and what it prints into a
number. A value is in the unit of the case: GB/s, million a second, nanoseconds."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


class Failed(Exception):
    """A measurement that gave no value, and why."""


@dataclass(frozen=True)
class Stage:
    """Where and how long."""

    root: Path
    build: Path  # where our programs are
    duration: float
    pin: tuple = (0, 1)
    idle_duration: float = 10.0

    @property
    def python(self):
        return self.root / "build" / "peers-venv" / "bin" / "python"

    @property
    def cores(self):
        return ",".join(map(str, self.pin))


def end(process):
    """With all that it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()


def start(command, environment=None):
    try:
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | (environment or {}))
    except OSError as error:
        raise Failed(f"{Path(command[0]).name}: {error.strerror.lower()}") from error


def run(command, environment=None, limit=60):
    """What it prints. Fails with the last line of its complaint."""
    process = start(command, environment)
    try:
        out, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"{Path(command[0]).name}: no answer in {limit} s") from None
    finally:
        end(process)
    if process.returncode < 0:
        raise Failed(f"{Path(command[0]).name}: ended by "
                     f"{signal.Signals(-process.returncode).name}")
    if process.returncode != 0:
        lines = complaint.strip().splitlines() or [f"ended with {process.returncode}"]
        raise Failed(lines[-1])
    return out


def last_object(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Failed("printed no result")


def middle(value):
    """`fabric bench` tells the median and the spread, the small programs one number."""
    return value["median"] if isinstance(value, dict) else value


def value_of(shot, result):
    """The number that a case compares, of an object with the names of `fabric bench --json`."""
    if shot.verb == "latency":
        return result["half_round_trip_ns"]["p50"]
    if shot.verb == "idle":
        return result["cpu_percent"]
    if shot.verb == "rate":
        return middle(result["ops_per_second"]) / 1e6
    if shot.verb == "paged":
        return middle(result["gb_per_second"]) * 1e9 / shot.bytes / 1e6
    return middle(result["gb_per_second"])


def seconds_of(shot, stage):
    """Of one measurement. What goes over much memory begins with whatever was last done to it, and
    needs some rounds to be itself."""
    return stage.duration * (4 if shot.footprint else 1)


class Ours:
    title = "fabric"

    def command(self, shot, stage):
        # The first repetition over much memory is the one that maps it: the median is another.
        words = [stage.build / "fabric", "bench", shot.verb, "--network", "shm", "--json",
                 "--pin", stage.cores, "--repetitions", 3 if shot.footprint else 1]
        if shot.verb == "idle":
            return words + ["--duration", stage.idle_duration]
        words += ["--duration", seconds_of(shot, stage), "--sizes", shot.bytes,
                  "--memory", shot.memory, "--progress", "inline"]
        if shot.footprint:
            words += ["--footprint", shot.footprint]
        if shot.verb == "paged":
            words += ["--pages", shot.pages]
        if shot.verb in ("write", "rate"):
            # Several groups in flight, so that the two cores work at the same time.
            window = 512 if shot.bytes < 64 << 10 else 64
            words += ["--window", window, "--group", window // 8]
        return words

    def measure(self, shot, stage):
        result = last_object(run(self.command(shot, stage)))
        if result.get("verified") is False:
            raise Failed("wrong bytes")
        return value_of(shot, result)


class Limits:
    """bench/peers/limits.cc."""

    def __init__(self, title):
        self.title = title

    def measure(self, shot, stage):
        verb = {"write": "copy", "paged": "copy", "rate": "rate", "latency": "probe"}[shot.verb]
        words = [stage.build / "bench" / "limits", verb, "--duration", seconds_of(shot, stage),
                 "--pin", stage.cores]
        if verb == "copy":
            # Pages lie next to each other here, which the processor foresees: the kinder case.
            words += ["--bytes", shot.bytes,
                      "--footprint", shot.footprint or shot.bytes * shot.pages]
        return value_of(shot, last_object(run(words)))


class Libfabric:
    """bench/peers/libfabric_peer.cc. A target that polls without a rest fights with the sender for
    the lock of its queue: the pauses are what gave the most here."""

    def __init__(self, title, provider):
        self.title = title
        self.provider = provider

    def pauses(self, shot):
        if self.provider != "shm" or shot.verb == "latency" or shot.bytes >= 64 << 10:
            return 0
        return 128 if shot.bytes < 1024 else 512

    def measure(self, shot, stage):
        verb = "write" if shot.verb == "rate" else shot.verb
        words = [stage.build / "bench" / "libfabric_peer", verb, "--provider", self.provider,
                 "--bytes", shot.bytes, "--places", shot.pages, "--duration", stage.duration,
                 "--pin", stage.cores, "--pauses", self.pauses(shot)]
        # Looking for all the others would take longer than the measurement.
        return value_of(shot, last_object(run(words, {"FI_PROVIDER": self.provider})))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_listening(port, process, limit=5.0, name="ucx_perftest"):
    """Asks the kernel: a connection would be taken for the client."""
    wanted = f":{port:04X}"
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return
        if process.poll() is not None:
            raise Failed(f"{name}: {process.stderr.read().strip() or 'ended at once'}")
        time.sleep(0.005)
    raise Failed(f"{name}: the server does not listen")


class Ucx:
    """ucx_perftest, a server and a client. `low` is UCT, the interface below UCP."""

    def __init__(self, title, transport, *, low=False, message=False):
        self.title = title
        self.transport = transport
        self.low = low
        self.message = message

    def test(self, shot):
        kind = "am" if self.message else "put"
        name = f"{kind}_{'lat' if shot.verb == 'latency' else 'bw'}"
        if not self.low:
            return ["-t", "ucp_" + name]
        layout = "zcopy" if self.transport == "cma" else "short"
        return ["-t", name, "-x", self.transport, "-d", "memory", "-D", layout]

    def iterations(self, shot, duration):
        """It takes a number, not a time: about what its best would need."""
        if shot.verb == "latency":
            return int(duration / 600e-9) + 1
        each = max(shot.bytes / 15e9, 40e-9) + (2e-6 if self.transport == "cma" else 0)
        return int(duration / each) + 1

    def measure(self, shot, stage):
        port = free_port()
        environment = {"UCX_TLS": self.transport, "UCX_LOG_LEVEL": "error"}
        count = self.iterations(shot, stage.duration)
        common = ["-p", port, "-f", "-v"]
        server = start(["ucx_perftest", *common, "-c", stage.pin[1]], environment)
        try:
            wait_listening(port, server)
            out = run(["ucx_perftest", "127.0.0.1", *common, "-c", stage.pin[0],
                       *self.test(shot), "-s", shot.bytes, "-n", count, "-w", count // 10 + 1],
                      environment)
        finally:
            end(server)
        return self.value(shot, out)

    @staticmethod
    def value(shot, out):
        """CSV: iterations, median and two means of the time, two of the bandwidth, two rates."""
        try:
            columns = [float(word) for word in out.strip().splitlines()[-1].split(",")]
            median_us, rate = columns[1], columns[7]
        except (IndexError, ValueError):
            raise Failed("ucx_perftest printed no result") from None
        if shot.verb == "latency":
            return median_us * 1e3
        return rate / 1e6 if shot.verb == "rate" else rate * shot.bytes / 1e9


class Wheel:
    """A library from a Python wheel, driven by a script of bench/peers."""

    def __init__(self, title, script):
        self.title = title
        self.script = script

    def measure(self, shot, stage):
        words = [stage.python, stage.root / "bench" / "peers" / self.script, shot.verb,
                 "--bytes", shot.bytes, "--pages", shot.pages, "--duration", stage.duration,
                 "--pin", stage.cores]
        return value_of(shot, last_object(run(words)))


class CopySpeed:
    """One run of bench/copy_speed measures both in turn; who is asked first starts it."""

    def __init__(self, title, way, runs):
        self.title = title
        self.way = way
        self.runs = runs  # shared by the two: (bytes, who has not asked yet) -> value

    def measure(self, shot, stage):
        if (shot.bytes, self.way) not in self.runs:
            out = run([stage.build / "bench" / "copy_speed", "--json", "--sizes", shot.bytes,
                       "--situations", "hot", "--repeat", int(stage.duration * 1000)])
            for way, speed in last_object(out)["gb_per_second"].items():
                self.runs[shot.bytes, way] = speed
        return self.runs.pop((shot.bytes, self.way))


class Bound:
    """Not a peer: what was promised."""

    def __init__(self, title, value):
        self.title = title
        self.value = value

    def measure(self, _shot, _stage):
        return self.value


COPIES = {}
ALL = {
    "ours": Ours(),
    "ucx_posix": Ucx("UCX put, posix", "posix"),
    "ucx_sysv": Ucx("UCX put, sysv", "sysv"),
    "uct_posix": Ucx("UCT put, posix", "posix", low=True),
    "ucx_cma": Ucx("UCT put, cma", "cma", low=True),
    "ucx_am": Ucx("UCX active message", "posix", message=True),
    "uct_am": Ucx("UCT active message", "posix", low=True, message=True),
    "libfabric_shm": Libfabric("libfabric shm", "shm"),
    "libfabric_tcp": Libfabric("libfabric tcp", "tcp;ofi_rxm"),
    "nixl": Wheel("NIXL", "nixl_peer.py"),
    "mooncake": Wheel("Mooncake", "mooncake_peer.py"),
    "memcpy": Limits("memcpy"),
    "ring": Limits("bare ring"),
    "line": Limits("cache line"),
    "guarded": CopySpeed("guarded copy", "best", COPIES),
    "unguarded": CopySpeed("the copy alone", "bare", COPIES),
    "one_percent": Bound("1 % of a core", 1.0),
}

"""The contenders: each turns a workload into a command line, and its output into a value in the
unit of the case: GB/s, millions per second, nanoseconds."""

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
    """A measurement without a value; the text is the reason."""


@dataclass(frozen=True)
class RunSettings:
    """Where the programs are, how long a measurement takes, on which cores."""

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
    """Kills the process and its children: it leads a session of its own."""
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
    """The output. Raises Failed with the last line of standard error."""
    process = start(command, environment)
    try:
        out, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"{Path(command[0]).name}: no result in {limit} s") from None
    finally:
        end(process)
    if process.returncode < 0:
        raise Failed(f"{Path(command[0]).name}: killed by "
                     f"{signal.Signals(-process.returncode).name}")
    if process.returncode != 0:
        lines = complaint.strip().splitlines() or [f"exited with {process.returncode}"]
        raise Failed(lines[-1])
    return out


def last_object(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Failed("printed no result")


def middle(value):
    """`fabric bench` reports median and spread, the other programs one number."""
    return value["median"] if isinstance(value, dict) else value


def value_of(workload, result):
    """The value of a case, from an object in the format of `fabric bench --json`."""
    if workload.benchmark == "latency":
        return result["half_round_trip_ns"]["p50"]
    if workload.benchmark == "word":
        return result["word_to_post_ns"]["p50"]
    if workload.benchmark == "idle":
        return result["cpu_percent"]
    if workload.benchmark == "rate":
        return middle(result["ops_per_second"]) / 1e6
    if workload.benchmark == "paged":
        return middle(result["gb_per_second"]) * 1e9 / workload.bytes / 1e6
    return middle(result["gb_per_second"])


def seconds_of(workload, settings):
    """Of one measurement. With a large footprint the first passes depend on what was cached before:
    it takes longer to reach a steady state."""
    return settings.duration * (4 if workload.footprint else 1)


# The first one maps the memory, as for Ours with a footprint.
KV_REPETITIONS = 3


class Ours:
    title = "fabric"

    def command(self, workload, settings):
        # With a footprint the first repetition maps the memory: it must not be the median.
        words = [settings.build / "fabric", "bench", workload.benchmark, "--network", "shm",
                 "--json", "--pin", settings.cores, "--repetitions", 3 if workload.footprint else 1]
        if workload.benchmark == "idle":
            return words + ["--duration", settings.idle_duration]
        words += ["--duration", seconds_of(workload, settings), "--sizes", workload.bytes,
                  "--memory", workload.memory, "--progress", "inline"]
        if workload.footprint:
            words += ["--footprint", workload.footprint]
        if workload.benchmark == "paged":
            words += ["--pages", workload.pages]
        if workload.benchmark in ("write", "rate"):
            # Several groups in flight, so that both cores work at the same time.
            window = 512 if workload.bytes < 64 << 10 else 64
            words += ["--window", window, "--group", window // 8]
        return words

    def measure(self, workload, settings):
        result = last_object(run(self.command(workload, settings)))
        if result.get("verified") is False:
            raise Failed("wrong bytes")
        return value_of(workload, result)


class OursKv(Ours):
    """A prefiller and a decoder: whole requests, layer by layer."""

    def command(self, workload, settings):
        return [settings.build / "fabric", "bench", "kv", "--network", "shm", "--json",
                "--pin", settings.cores, "--repetitions", KV_REPETITIONS,
                "--duration", settings.duration, "--sizes", workload.bytes,
                "--pages", workload.pages, "--layers", workload.layers,
                "--tensors", workload.tensors, "--progress", "inline"]


class BarePages(Ours):
    """Paged writes of the pages of a layer and tensor, over the memory of all layers."""

    title = "bare paged write"

    def command(self, workload, settings):
        return [settings.build / "fabric", "bench", "paged", "--network", "shm", "--json",
                "--pin", settings.cores, "--repetitions", KV_REPETITIONS,
                "--duration", settings.duration, "--sizes", workload.bytes,
                "--pages", workload.pages, "--footprint", workload.footprint,
                "--progress", "inline"]


class Limits:
    """bench/peers/limits.cc."""

    def __init__(self, title):
        self.title = title

    def measure(self, workload, settings):
        verb = {"write": "copy", "paged": "copy", "rate": "rate",
                "latency": "probe"}[workload.benchmark]
        words = [settings.build / "bench" / "limits", verb,
                 "--duration", seconds_of(workload, settings), "--pin", settings.cores]
        if verb == "copy":
            # Contiguous pages, which the prefetcher handles well: an upper limit.
            words += ["--bytes", workload.bytes,
                      "--footprint", workload.footprint or workload.bytes * workload.pages]
        return value_of(workload, last_object(run(words)))


class Libfabric:
    """bench/peers/libfabric_peer.cc. A target that polls without pauses contends with the sender
    for the lock of its queue: these pauses gave the best results."""

    def __init__(self, title, provider):
        self.title = title
        self.provider = provider

    def pauses(self, workload):
        if self.provider != "shm" or workload.benchmark == "latency" or workload.bytes >= 64 << 10:
            return 0
        return 128 if workload.bytes < 1024 else 512

    def measure(self, workload, settings):
        verb = "write" if workload.benchmark == "rate" else workload.benchmark
        words = [settings.build / "bench" / "libfabric_peer", verb, "--provider", self.provider,
                 "--bytes", workload.bytes, "--slots", workload.pages,
                 "--duration", settings.duration, "--pin", settings.cores,
                 "--pauses", self.pauses(workload)]
        # Probing all other providers would take longer than the measurement.
        return value_of(workload, last_object(run(words, {"FI_PROVIDER": self.provider})))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_listening(port, process, limit=5.0, name="ucx_perftest"):
    """Polls /proc: a test connection would be taken for the client."""
    wanted = f":{port:04X}"
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return
        if process.poll() is not None:
            raise Failed(f"{name}: {process.stderr.read().strip() or 'exited at once'}")
        time.sleep(0.005)
    raise Failed(f"{name}: the server does not listen")


class Ucx:
    """ucx_perftest, a server and a client. `low` is UCT, the interface below UCP."""

    def __init__(self, title, transport, *, low=False, message=False):
        self.title = title
        self.transport = transport
        self.low = low
        self.message = message

    def test(self, workload):
        kind = "am" if self.message else "put"
        name = f"{kind}_{'lat' if workload.benchmark == 'latency' else 'bw'}"
        if not self.low:
            return ["-t", "ucp_" + name]
        layout = "zcopy" if self.transport == "cma" else "short"
        return ["-t", name, "-x", self.transport, "-d", "memory", "-D", layout]

    def iterations(self, workload, duration):
        """ucx_perftest takes a count, not a time: about as many as fit at its best rate."""
        if workload.benchmark == "latency":
            return int(duration / 600e-9) + 1
        each = max(workload.bytes / 15e9, 40e-9) + (2e-6 if self.transport == "cma" else 0)
        return int(duration / each) + 1

    def measure(self, workload, settings):
        port = free_port()
        environment = {"UCX_TLS": self.transport, "UCX_LOG_LEVEL": "error"}
        count = self.iterations(workload, settings.duration)
        common = ["-p", port, "-f", "-v"]
        server = start(["ucx_perftest", *common, "-c", settings.pin[1]], environment)
        try:
            wait_listening(port, server)
            out = run(["ucx_perftest", "127.0.0.1", *common, "-c", settings.pin[0],
                       *self.test(workload), "-s", workload.bytes, "-n", count,
                       "-w", count // 10 + 1],
                      environment)
        finally:
            end(server)
        return self.value(workload, out)

    @staticmethod
    def value(workload, out):
        """CSV: iterations, median and two means of the time, two of the bandwidth, two rates."""
        try:
            columns = [float(word) for word in out.strip().splitlines()[-1].split(",")]
            median_us, rate = columns[1], columns[7]
        except (IndexError, ValueError):
            raise Failed("ucx_perftest printed no result") from None
        if workload.benchmark == "latency":
            return median_us * 1e3
        return rate / 1e6 if workload.benchmark == "rate" else rate * workload.bytes / 1e9


class Wheel:
    """A library from a Python wheel, driven by a script of bench/peers."""

    def __init__(self, title, script):
        self.title = title
        self.script = script

    def measure(self, workload, settings):
        kv = workload.benchmark == "kv"
        words = [settings.python, settings.root / "bench" / "peers" / self.script,
                 "paged" if kv else workload.benchmark, "--bytes", workload.bytes,
                 "--pages", workload.pages * workload.tensors,
                 "--duration", settings.duration, "--pin", settings.cores]
        if kv:
            words += ["--slots", workload.layers]
        return value_of(workload, last_object(run(words)))


class CopySpeed:
    """One run of bench/copy_speed measures both variants; the first of the two starts it."""

    def __init__(self, title, variant, runs):
        self.title = title
        self.variant = variant
        self.runs = runs  # shared by the two: (bytes, variant that was not read yet) -> value

    def measure(self, workload, settings):
        if (workload.bytes, self.variant) not in self.runs:
            out = run([settings.build / "bench" / "copy_speed", "--json", "--sizes", workload.bytes,
                       "--situations", "hot", "--repeat", int(settings.duration * 1000)])
            for variant, speed in last_object(out)["gb_per_second"].items():
                self.runs[workload.bytes, variant] = speed
        return self.runs.pop((workload.bytes, self.variant))


class Bound:
    """Not a peer: a promised limit."""

    def __init__(self, title, value):
        self.title = title
        self.value = value

    def measure(self, _workload, _settings):
        return self.value


COPIES = {}
ALL = {
    "ours": Ours(),
    "ours_kv": OursKv(),
    "bare_pages": BarePages(),
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
    "word_bound": Bound("1.5 us", 1500.0),
    "word_published": Bound("published, 6.2 us", 6200.0),
}

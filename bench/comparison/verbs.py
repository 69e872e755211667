"""Who is measured over verbs, inside the guest: from the first rail of its host A to that of B."""

import contextlib
import pathlib
import re

from comparison.contenders import Failed, Ours, end, free_port, run, start, wait_listening

HERE, THERE = "xa0", "xb0"
# RoCE v2 with the rail's IPv4 address; 0 is link-local. Ours finds that out.
GID = 1
AT_HOST_B = "at_host_b"  # bench/peers
# A second, as UCX has it. A guest that is without a processor for less than that must not send
# again: SoftRoCE repeats and breaks then (docs/verbs.md).
TIMEOUT = 18
# Of tests/guest/inside.sh, whose links take it.
MTU = 4096


def in_flight(shot):
    """Writes in flight, and how many of them are posted together: what gave the most here, for ours
    and for perftest. SoftRoCE sends 128 packets ahead, within the call that posts them. What is
    posted beyond is sent by a thread of the kernel, which shares its core with who polls there."""
    if shot.bytes >= 1 << 20:
        return 1, 1
    if shot.bytes >= 64 << 10:
        return 4, 1
    return (64, 32) if shot.bytes >= 8 << 10 else (256, 64)


def packets(device, counter):
    file = pathlib.Path("/sys/class/infiniband", device, "ports/1/hw_counters", counter)
    try:
        return int(file.read_text())
    except OSError as error:
        raise Failed(f"{device}: {error.strerror.lower()}") from error


@contextlib.contextmanager
def crossing():
    """What leaves host A in it must arrive at host B. A program with both ends on one device does
    not use the network, and looks half as fast again."""
    sent, arrived = packets(HERE, "sent_pkts"), packets(THERE, "rcvd_pkts")
    yield
    sent, arrived = packets(HERE, "sent_pkts") - sent, packets(THERE, "rcvd_pkts") - arrived
    check_crossed(sent, arrived)


def check_crossed(sent, arrived):
    """Some may be lost, or be under way."""
    if sent == 0 or arrived < 0.9 * sent:
        raise Failed(f"of {sent} packets {arrived} went from {HERE} to {THERE}")


class Paced:
    """Peers that take a number, not a time. What a guest does in a second depends on the machine by
    a factor of a hundred: the first measurement guesses low, each one tells the next."""

    def __init__(self):
        self.rates = {}  # shot -> operations a second

    def iterations(self, shot, duration, least):
        guess = 1 / (150e-6 + shot.bytes / 25e6)
        return max(least, int(duration * self.rates.get(shot, guess)))

    def paced(self, shot, rate):
        self.rates[shot] = rate


class OursOverVerbs(Ours):
    def measure(self, shot, stage):
        with crossing():
            return super().measure(shot, stage)

    def command(self, shot, stage):
        words = [stage.build / "fabric", "bench", shot.verb, "--network", "verbs", "--json",
                 "--devices", f"{HERE},timeout_code={TIMEOUT}", "--peer-devices", THERE,
                 "--pin", stage.cores, "--repetitions", 1, "--duration", stage.duration,
                 "--sizes", shot.bytes, "--progress", "inline"]
        if shot.verb != "latency":
            window, group = in_flight(shot)
            words += ["--window", window, "--group", group]
        return words


class Perftest:
    """ib_write_bw and ib_write_lat, a server and a client."""

    title = "perftest"

    def __init__(self):
        self.pace = Paced()

    def measure(self, shot, stage):
        latency = shot.verb == "latency"
        program = "ib_write_lat" if latency else "ib_write_bw"
        port = free_port()
        count = self.pace.iterations(shot, stage.duration, least=20)
        common = ["-F", "-p", port, "-x", GID, "-m", MTU, "-u", TIMEOUT, "-s", shot.bytes,
                  "-n", count]
        if not latency:
            window, group = in_flight(shot)
            count = (count // group + 1) * group
            common[-1] = count
            # A completion for each group; the rate is that of lists, with one doorbell.
            common += ["-t", window, "-Q", group, "-l", group if shot.verb == "rate" else 1]
        pinned = [("taskset", "-c", core, program) for core in stage.pin]
        server = start([*pinned[1], "-d", THERE, *common])
        try:
            wait_listening(port, server, limit=20.0, name=program)
            with crossing():
                out = run([*pinned[0], "-d", HERE, *common, "127.0.0.1"])
        finally:
            end(server)
        value = self.value(shot, out)
        self.pace.paced(shot, 1e9 / value / 2 if latency else self.rate(shot, value))
        return value

    @staticmethod
    def rate(shot, value):
        return value * 1e6 if shot.verb == "rate" else value * 1e9 / shot.bytes

    @staticmethod
    def value(shot, out):
        """The last line that begins with the size: for bandwidth size, iterations, peak, mean and
        rate, where the mean has more digits than the rate; for latency size, iterations, least,
        most and median."""
        rows = re.findall(rf"^ *{shot.bytes} +(\d+(?:[ \t]+[\d.]+)+)", out, re.MULTILINE)
        if not rows:
            raise Failed("perftest printed no result")
        columns = [float(word) for word in rows[-1].split()]
        if shot.verb == "latency":
            return columns[3] * 1e3
        bytes_a_second = columns[2] * (1 << 20)
        return bytes_a_second / shot.bytes / 1e6 if shot.verb == "rate" else bytes_a_second / 1e9


class UctRc:
    """UCX's lower interface over reliable connections. UCP, which its users call, does not come up
    on SoftRoCE: it wants datagrams (ud_verbs) to connect, and aborts or hangs there."""

    title = "UCT put, rc"

    def __init__(self):
        self.pace = Paced()

    def measure(self, shot, stage):
        latency = shot.verb == "latency"
        port = free_port()
        environment = {"UCX_LOG_LEVEL": "error", "UCX_IB_GID_INDEX": str(GID)}
        count = self.pace.iterations(shot, stage.duration, least=20)
        common = ["-p", port, "-f", "-v"]
        # The server takes over the client's device; under this it finds the other one by that name.
        swapped = {"LD_PRELOAD": stage.build / AT_HOST_B}
        server = start(["ucx_perftest", *common, "-c", stage.pin[1]], environment | swapped)
        try:
            wait_listening(port, server, limit=20.0)
            with crossing():
                out = run(["ucx_perftest", "127.0.0.1", *common, "-c", stage.pin[0],
                           "-t", "put_lat" if latency else "put_bw", "-x", "rc_verbs",
                           "-d", f"{HERE}:1", "-D", "short" if latency else "zcopy",
                           "-s", shot.bytes, "-n", count, "-w", count // 10 + 1], environment)
        finally:
            end(server)
        value = self.value(shot, out)
        self.pace.paced(shot, 1e9 / value / 2 if latency else Perftest.rate(shot, value))
        return value

    @staticmethod
    def value(shot, out):
        """CSV as Ucx.value() reads it. Few iterations a second: the bandwidth has the digits that
        the rate has not, and the median of the times of a stream is often 0."""
        try:
            columns = [float(word) for word in out.strip().splitlines()[-1].split(",")]
            median_us, megabytes = columns[1], columns[5]
        except (IndexError, ValueError):
            raise Failed("ucx_perftest printed no result") from None
        if shot.verb == "latency":
            return median_us * 1e3
        bytes_a_second = megabytes * (1 << 20)
        return bytes_a_second / shot.bytes / 1e6 if shot.verb == "rate" else bytes_a_second / 1e9


ALL = {"ours_verbs": OursOverVerbs(), "perftest": Perftest(), "uct_rc": UctRc()}

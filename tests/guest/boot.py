#!/usr/bin/env python3
"""Boots a guest with six SoftRoCE devices, runs commands in it, and ends as they ended.

    boot.py --bin build/release/tests tests/guest/suite
    boot.py --bin build/dev/tests -c '5 ibv_devices' -c '60 guest_tests --gtest_brief=1'

Each line of a suite, and each -c, is a time limit in seconds and a shell command. The guest sees
the host's root read-only, so that everything installed here runs there. Programs named in a command
and found in a --bin folder are copied to the guest's memory. Variables FABRICLIB_TEST_* go along.

The kernel is Debian's own package, unpacked and not installed. Exit code 77: the kernel cannot be
downloaded or there is no QEMU, so nothing was run.
"""

import argparse
import hashlib
import os
import pathlib
import platform
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parent.parent / "build" / "guest"
MODULES = ["crc32_generic", "rdma_rxe", "ib_uverbs", "veth", "bridge", "virtio_pci",
           "virtio_console", "9p", "9pnet_virtio", "sch_netem", "sch_prio", "cls_u32"]
# Unpacked once; a different list of modules gets a different folder.
KERNEL = CACHE / f"kernel-{hashlib.sha256(' '.join(MODULES).encode()).hexdigest()[:16]}"
KVM_HANGS = CACHE / "kvm-hangs"  # remembers that KVM does not work on this host
SKIPPED = 77
POWER_OFF_SECONDS = 10  # from the verdict until QEMU has exited, on a busy host


class Missing(Exception):
    """The guest needs something that this machine does not have."""


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Missing(f"{shlex.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def kernel_package():
    def named():
        shown = run("apt-cache", "show", "--no-all-versions", "linux-image-amd64")
        return re.search(r"^Depends: (linux-image-\S+)", shown, re.MULTILINE).group(1)

    try:
        return named()
    except Missing:
        run("apt-get", "-q", "update")  # an image without package lists
        return named()


def fetch_kernel():
    """Unpacks the kernel and the modules that the guest loads, numbered in load order."""
    work = CACHE / "unpacked"
    for old in (work, *CACHE.glob("kernel*")):
        shutil.rmtree(old, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        run("apt-get", "-q", "download", kernel_package(), cwd=work)
        run("dpkg", "-x", next(work.glob("*.deb")), work)
        version = next((work / "lib/modules").iterdir()).name
        run("depmod", "-b", work, version)
        files = []
        for module in MODULES:
            shown = run("modprobe", "-d", work, "-S", version, "--show-depends", module)
            files += [pathlib.Path(line.split()[1]) for line in shown.splitlines()
                      if line.startswith("insmod")]
        kept = CACHE / "kernel.new"
        (kept / "modules").mkdir(parents=True)
        for order, file in enumerate(dict.fromkeys(files)):
            shutil.copy(file, kept / "modules" / f"{order:02}-{file.name}")
        shutil.copy(next((work / "boot").glob("vmlinuz-*")), kept / "vmlinuz")
        kept.rename(KERNEL)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_initramfs(kernel):
    """Packs busybox, the modules and init; rebuilt when one of them changes."""
    parts = [pathlib.Path("/bin/busybox"), HERE / "init", *sorted((kernel / "modules").iterdir())]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
    made = CACHE / f"initramfs-{digest}"
    if made.exists():
        return made
    for old in CACHE.glob("initramfs*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    root = CACHE / "initramfs"
    for folder in ("bin", "proc", "sys", "dev", "tmp", "run", "host"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    shutil.copytree(kernel / "modules", root / "modules")
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(["cpio", "--create", "--format=newc", "--quiet"], cwd=root, check=True,
                            input=names.encode(), stdout=subprocess.PIPE).stdout
    partial = CACHE / "initramfs.partial"
    partial.write_bytes(packed)
    partial.rename(made)
    return made


def sweep():
    """Removes the job folders of scripts that were killed."""
    for job in CACHE.glob("job-*"):
        if not pathlib.Path("/proc", job.name.removeprefix("job-")).exists():
            shutil.rmtree(job, ignore_errors=True)


def prepare(job, lines, folders, limit=0):
    """Copies what the commands need from this host into the job's folder."""
    shutil.rmtree(job, ignore_errors=True)
    (job / "bin").mkdir(parents=True)
    carried = {}
    for folder in folders:
        for word in re.findall(r"[\w-]+", " ".join(lines)):
            program = folder / word
            if program.is_file() and os.access(program, os.X_OK):
                carried.setdefault(word, program)
    for program in list(carried.values()):
        needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in re.findall(r"=> (/\S+)", needed):  # empty for a script
            if not library.startswith(("/lib", "/usr/lib")):
                carried.setdefault(pathlib.Path(library).name, pathlib.Path(library))
    for name, file in carried.items():
        shutil.copy(file, job / "bin" / name)
    shutil.copy(HERE / "inside.sh", job)
    (job / "commands").write_text("".join(line + "\n" for line in lines))
    carried = {name: value for name, value in sorted(os.environ.items())
               if name.startswith(("FABRICLIB_TEST_", "GTEST_"))}
    (job / "environment").write_text("".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in {**carried, "SUITE_SECONDS": str(int(limit))}.items()))


def accelerators(allowed):
    """Accelerators and boot limits in seconds, fastest first; /dev/kvm may exist and hang."""
    if allowed and os.access("/dev/kvm", os.R_OK | os.W_OK) and not KVM_HANGS.exists():
        yield "kvm", 20
    for _ in range(2):  # a boot can hang on a very busy host
        yield "tcg,thread=multi", 150


class Guest:
    """A QEMU process. Its output lines are printed once the guest has reported that it is up.

    Three channels, so that the kernel cannot garble the output of the suite: it writes to a virtio
    port (QEMU's stdout), kernel and firmware write to the serial console (job/console), and the
    exit code of the suite is a file on the job's 9p share (job/verdict), written last.
    """

    def __init__(self, job, accelerator):
        self.job = job
        share = "local,security_model=none,multidevs=remap"
        self.qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",  # the guest ends with this script
             "qemu-system-x86_64", "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "3072",
             "-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{job}/console",
             "-chardev", "file,id=output,path=/dev/stdout", "-device", "virtio-serial-pci",
             "-device", "virtserialport,chardev=output,name=output",
             "-kernel", KERNEL / "vmlinuz", "-initrd", make_initramfs(KERNEL),
             "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check "
             "random.trust_cpu=on tsc=reliable",
             "-virtfs", f"{share},path=/,mount_tag=host,readonly=on",
             "-virtfs", f"{share},path={job},mount_tag=job"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.init()

    def init(self):
        self.rest = b""
        self.up = False
        self.exited = False  # its output has ended
        self.timed_out = False
        self.before_up = []  # printed only when the guest does not come up

    def verdict(self):
        """The suite's exit code, or None while there is none. A partial write has no newline."""
        try:
            written = (self.job / "verdict").read_text()
        except FileNotFoundError:
            return None
        return int(written) if written.endswith("\n") else None

    def follow(self, seconds, enough):
        """Prints output until enough(), the end of QEMU, or the time limit; True if enough()."""
        end = time.monotonic() + seconds
        ready = selectors.DefaultSelector()
        ready.register(self.qemu.stdout, selectors.EVENT_READ)
        while not enough() and (left := end - time.monotonic()) > 0:
            if not ready.select(min(left, 1.0)):
                continue
            chunk = os.read(self.qemu.stdout.fileno(), 65536)
            if not chunk:
                self.exited = True  # powered off, or crashed: nothing more will come
                break
            *lines, self.rest = (self.rest + chunk).split(b"\n")
            for line in lines:
                self.take(line.decode(errors="replace").rstrip("\r"))
        return enough()

    def take(self, line):
        if self.up:
            print(line, flush=True)
        elif line == "guest: up":
            self.up = True
        else:
            self.before_up.append(line)

    def finish(self, limit):
        """Follows the suite to its verdict and the guest to its power-off. None: no verdict."""
        self.follow(limit, lambda: self.verdict() is not None)
        self.follow(POWER_OFF_SECONDS, lambda: False)  # returns when QEMU has exited
        return self.verdict()

    def explain(self):
        """What to print for a guest without a verdict: all that QEMU and the kernel wrote."""
        console = self.job / "console"
        kernel = console.read_text(errors="replace") if console.exists() else ""
        how = "time is up" if self.timed_out else f"QEMU exited with {self.qemu.returncode}"
        return "\n".join([*self.before_up, self.rest.decode(errors="replace"), kernel,
                          f"guest: no verdict: {how}"])

    def end(self):
        # A guest that has powered off keeps its own exit code.
        self.timed_out = not self.exited and self.qemu.poll() is None
        if self.timed_out:
            self.qemu.kill()
        self.qemu.wait()


def boot(job, limit, kvm_allowed):
    """The guest's verdict, or 1 when there is none in time."""
    for accelerator, patience in accelerators(kvm_allowed):
        guest = Guest(job, accelerator)
        verdict = None
        try:
            if guest.follow(patience, lambda: guest.up or guest.verdict() is not None):
                verdict = guest.finish(limit)
                break
        finally:
            guest.end()
        if accelerator == "kvm":
            KVM_HANGS.touch()
    if verdict is None or not guest.up:
        print(guest.explain())
        return 1
    return verdict


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", type=pathlib.Path, help="a file of commands")
    parser.add_argument("-c", dest="commands", action="append", default=[], metavar="COMMAND",
                        help="a time limit in seconds and a command; can be repeated")
    parser.add_argument("--bin", dest="folders", action="append", default=[], type=pathlib.Path,
                        help="a folder of programs; can be repeated")
    parser.add_argument("--limit", type=float, help="seconds for all of it, otherwise the sum")
    parser.add_argument("--stretch", type=int, default=1, metavar="N",
                        help="N times as long for every command")
    parser.add_argument("--tcg", action="store_true", help="never KVM")
    return parser, parser.parse_args()


def main():
    parser, args = parse()
    lines = args.commands
    if args.suite:
        lines = args.suite.read_text().splitlines() + lines
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not lines or not all(re.match(r"\d+ \S", line) for line in lines):
        parser.error("each command is a time limit in seconds and what to run")
    lines = [f"{int(seconds) * args.stretch} {command}"
             for seconds, command in (line.split(" ", 1) for line in lines)]
    limit = args.limit or 10 + sum(int(line.split()[0]) for line in lines)
    job = CACHE / f"job-{os.getpid()}"
    try:
        if platform.machine() != "x86_64":
            raise Missing(f"the guest is x86_64, this host is {platform.machine()}")
        for tool in ("qemu-system-x86_64", "busybox", "cpio", "depmod", "rdma", "tc"):
            if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
                raise Missing(f"no {tool}: scripts/install-deps guest")
        if not KERNEL.exists():
            fetch_kernel()
        sweep()
        prepare(job, lines, [folder.resolve() for folder in args.folders], limit)
        return boot(job, limit, not args.tcg)
    except Missing as why:
        print(f"guest: skipped, nothing was run: {why}")
        return SKIPPED
    finally:
        shutil.rmtree(job, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

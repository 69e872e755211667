"""Unpacks the recorded sysfs trees of tests/support/sysfs, whose format is in their first lines."""

import contextlib
import tempfile
from pathlib import Path

TREES = Path(__file__).resolve().parents[1] / "support" / "sysfs"
BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}


class Tree:
    def __init__(self, root):
        self.root = Path(root)
        self.prefix = self.numa = ""

    def write(self, path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value.replace("~", " ") + "\n", encoding="utf-8")

    def link(self, path, target):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def make_pci(self, path):
        """The device, and the bridges on the way to it."""
        at = Path("devices")
        for part in Path(path).parts:
            at /= part
            if (self.root / at).exists() or part.startswith("pci"):
                continue
            for name, value in {**BRIDGE, "numa_node": self.numa}.items():
                self.write(self.root / at / name, value)
            self.link(self.root / "bus/pci/devices" / part, Path("../../..") / at)

    def make_class_device(self, kind, name, device):
        folder = Path("devices") / device / kind / name
        (self.root / folder).mkdir(parents=True)
        self.link(self.root / folder / "device", Path("../../..") / Path(device).name)
        self.link(self.root / "class" / kind / name, Path("../..") / folder)
        return self.root / folder

    def add(self, line):
        kind, *words = line.split()
        name = words.pop(0) if kind in ("rdma", "net", "node") else ""
        path = words.pop(0) if kind != "node" else ""
        if path.startswith("+"):
            path = self.prefix + path[1:]
        attributes = dict(word.split("=", 1) for word in words)
        folder = self.root / "devices" / path
        if kind == "under":
            self.prefix, self.numa = path, attributes["numa_node"]
            return
        if kind == "pci":
            self.make_pci(path)
        elif kind == "rdma":
            folder = self.make_class_device("infiniband", name, path) / "ports/1"
            self.write(folder / "state", "4:~ACTIVE")
        elif kind == "net":
            folder = self.make_class_device("net", name, path)
        elif kind == "node":
            folder = self.root / "devices/system/node" / f"node{name}"
        else:
            raise ValueError(line)
        for attribute, value in attributes.items():
            self.write(folder / attribute, value)


@contextlib.contextmanager
def unpacked(name):
    """The root of a tree, until the context is left."""
    with tempfile.TemporaryDirectory() as root:
        tree = Tree(root)
        for line in (TREES / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                tree.add(line)
        yield root

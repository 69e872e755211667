"""Memory of Python objects: no copies, and the owner lives as long as a peer may write."""

import array
import ctypes
import gc
import mmap
import weakref
from collections.abc import Callable

import fabric_lib as fabric
import numpy as np
import pytest
from conftest import Pair


class DlpackOnly:
    """What a tensor library without the buffer protocol exports."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class TensorLike:
    """The part of torch.Tensor that registration uses."""

    device = "cpu"

    def __init__(self, values: np.ndarray, contiguous: bool = True) -> None:
        self.values, self.contiguous = values, contiguous

    def is_contiguous(self) -> bool:
        return self.contiguous

    def data_ptr(self) -> int:
        return self.values.ctypes.data if self.values.size else 0

    def numel(self) -> int:
        return self.values.size

    def element_size(self) -> int:
        return self.values.itemsize


def as_is(values: np.ndarray) -> object:
    return values


@pytest.mark.parametrize(
    "make",
    [as_is, lambda v: bytearray(v.tobytes()), lambda v: memoryview(bytearray(v.tobytes())),
     lambda v: array.array("B", v.tobytes()), DlpackOnly, TensorLike,
     lambda v: (ctypes.c_uint8 * v.nbytes).from_buffer_copy(v)],
    ids=["numpy", "bytearray", "memoryview", "array", "dlpack", "tensor", "ctypes"],
)  # fmt: skip
def test_every_kind_of_memory_is_written_in_place(shm: Pair, make: Callable) -> None:
    owner = make(np.zeros(4096, np.uint8))
    region = shm.target.register(owner)
    remote = shm.source.import_region(shm.peer, region.desc())
    with shm.source.batch() as batch:
        shm.source.write(shm.region, remote, 4096, batch=batch)
    values = owner.values if hasattr(owner, "values") else np.frombuffer(owner, np.uint8)
    assert (values == shm.region.numpy()[:4096]).all()
    del values
    region.deregister(timeout=10)


def test_the_owner_lives_as_long_as_its_region(shm: Pair) -> None:
    values = np.zeros(4096, np.float32)
    alive = weakref.ref(values)
    region = shm.target.register_memory(values)
    del values
    gc.collect()
    assert alive() is not None
    del region
    gc.collect()
    assert alive() is None


def test_an_address_with_an_owner(shm: Pair) -> None:
    storage = mmap.mmap(-1, 1 << 16)
    view = (ctypes.c_char * (1 << 16)).from_buffer(storage)
    region = shm.target.register(address=ctypes.addressof(view), size=1 << 16, owner=view)
    remote = shm.source.import_region(shm.peer, region.desc())
    with shm.source.batch() as batch:
        shm.source.write(shm.region, remote, 100, target_offset=500, batch=batch)
    assert storage[500:600] == shm.region.numpy()[:100].tobytes()
    reference = region.find(ctypes.addressof(view) + 500, 10)
    assert reference.offset == 500 and reference.region == region.id


def test_a_region_as_arrays_of_every_shape(shm: Pair) -> None:
    region = shm.source.allocate(4096)
    floats = region.numpy(np.float32, (2, 4, 8), offset=64)
    floats[:] = 1.5
    assert floats.ctypes.data == region.address + 64
    assert memoryview(region).nbytes == len(region) == region.size_bytes == 4096
    assert np.from_dlpack(region)[64:68].tobytes() == np.float32(1.5).tobytes()
    del region
    gc.collect()
    assert floats.sum() == 96


def test_pages_outlive_the_engine_while_an_array_shows_them() -> None:
    engine = fabric.Engine(networks=["shm"])
    values = engine.allocate(1 << 20).numpy()
    engine.close()
    del engine
    gc.collect()
    values[:] = 7
    assert values.sum() == 7 << 20


def test_memory_in_use_cannot_be_resized(shm: Pair) -> None:
    owner = bytearray(4096)
    region = shm.target.register(owner)
    with pytest.raises(BufferError):
        owner.extend(b"x")
    region.deregister()
    del region
    gc.collect()
    owner.extend(b"x")


def test_a_source_may_be_read_only(shm: Pair) -> None:
    with pytest.raises(ValueError, match="memory: read-only"):
        shm.source.register(b"x" * 64)
    region = shm.source.register(b"x" * 64, remote_write=False)
    with shm.source.batch() as batch:
        shm.source.write(region, shm.remote, 64, batch=batch)
    assert bytes(shm.memory.numpy()[:64]) == b"x" * 64
    with pytest.raises(PermissionError):
        region.desc()


@pytest.mark.parametrize(
    ("memory", "error", "text"),
    [
        (np.zeros((8, 8))[:, :4], ValueError, "memory: not contiguous"),
        (TensorLike(np.zeros(8), contiguous=False), ValueError, "memory: not contiguous"),
        (TensorLike(np.zeros(0)), ValueError, "memory: no storage"),
        (np.zeros(0), ValueError, "memory: "),
        ([1, 2, 3], TypeError, "memory: expected"),
        ("text", TypeError, "memory: expected"),
        (None, TypeError, "memory: expected"),
    ],
)
def test_memory_that_is_refused(shm: Pair, memory: object, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        shm.source.register(memory)


def test_memory_of_a_gpu_is_refused_with_the_way_out(shm: Pair) -> None:
    tensor = TensorLike(np.zeros(8))
    tensor.device = "cuda:0"
    with pytest.raises(NotImplementedError, match="stage"):
        shm.source.register(tensor)

// <fabric/memory.h>: regions, and the memory of Python objects.

#include "memory.h"

#include <nanobind/ndarray.h>

#include "engine.h"
#include "record.h"

namespace fabric_python {

namespace {

[[noreturn]] void refuse(const char* name, const std::string& why) {
  raise(fabric::Errc::kInvalidArgument, std::string(name) + ": " + why);
}

/// A tensor of torch, or of anything that looks like one: dtypes that neither numpy nor DLPack
/// know (fp8), and parameters that require a gradient.
Borrowed borrow_tensor(nb::handle tensor, const char* name) {
  const std::string device = nb::str(tensor.attr("device")).c_str();
  if (device.rfind("cpu", 0) != 0) {
    raise(fabric::Errc::kUnsupported,
          std::string(name) + ": memory of '" + device +
              "' cannot be reached yet: stage it in host memory, see docs/python.md");
  }
  if (!nb::cast<bool>(tensor.attr("is_contiguous")())) refuse(name, "not contiguous");
  Borrowed memory;
  memory.address = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  memory.size_bytes = nb::cast<uint64_t>(tensor.attr("numel")()) *
                      nb::cast<uint64_t>(tensor.attr("element_size")());
  if (memory.address == nullptr) refuse(name, "no storage: it is empty or was freed");
  memory.owner = nb::borrow(tensor);
  return memory;
}

Borrowed borrow_buffer(nb::handle object, bool writable, const char* name) {
  auto view = std::make_unique<Py_buffer>();
  const auto get = [&](int flags) {
    const bool done = PyObject_GetBuffer(object.ptr(), view.get(), flags) == 0;
    if (!done) PyErr_Clear();
    return done;
  };
  bool read_only = false;
  if (!get(PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) {
    if (!get(PyBUF_C_CONTIGUOUS)) refuse(name, "not contiguous");
    read_only = true;
  }
  Borrowed memory;
  memory.view = std::shared_ptr<Py_buffer>(view.release(), [](Py_buffer* held) {
    PyBuffer_Release(held);
    delete held;
  });
  if (read_only && writable) refuse(name, "read-only: remote_write=False registers a source");
  memory.address = memory.view->buf;
  memory.size_bytes = static_cast<uint64_t>(memory.view->len);
  memory.read_only = read_only;
  memory.owner = nb::borrow(object);
  return memory;
}

Borrowed borrow_dlpack(nb::handle object, bool writable, const char* name) {
  using Array = nb::ndarray<nb::ro, nb::c_contig>;
  nb::ndarray<nb::ro> any;
  if (!nb::try_cast(nb::borrow(object), any, false)) {
    throw nb::type_error((std::string(name) +
                          ": expected an object with DLPack, the buffer "
                          "protocol or data_ptr(), got " +
                          nb::type_name(object.type()).c_str())
                             .c_str());
  }
  if (any.device_type() != nb::device::cpu::value) {
    raise(fabric::Errc::kUnsupported,
          std::string(name) +
              ": memory of an accelerator cannot be reached yet: stage it in "
              "host memory, see docs/python.md");
  }
  Array array;
  if (!nb::try_cast(nb::borrow(object), array, false)) refuse(name, "not contiguous");
  nb::ndarray<nb::c_contig> written;
  const bool read_only = !nb::try_cast(nb::borrow(object), written, false);
  if (read_only && writable) refuse(name, "read-only: remote_write=False registers a source");
  Borrowed memory;
  memory.address = const_cast<void*>(static_cast<const void*>(array.data()));
  memory.size_bytes = array.nbytes();
  memory.read_only = read_only;
  // The exporter's memory is valid as long as the capsule's owner, which the array object is.
  memory.owner = nb::make_tuple(nb::borrow(object), nb::cast(array));
  return memory;
}

/// memoryview(region), and so numpy.frombuffer() and torch.frombuffer().
int get_region_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  if (!nb::inst_ready(self)) {  // made by __new__ alone
    PyErr_SetString(PyExc_BufferError, "MemoryRegion: not initialized");
    view->obj = nullptr;
    return -1;
  }
  const PyRegion* region = nb::inst_ptr<PyRegion>(self);
  RegionBox& box = *region->box;
  const auto bytes = box.unchecked().bytes();
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                           box.read_only() ? 1 : 0, flags);
}

PyType_Slot region_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_region_buffer)},
    {0, nullptr},
};

/// module.frombuffer(region, ...).reshape(shape), for numpy and torch.
nb::object view_as(nb::handle self, const char* module, nb::object dtype, nb::object shape,
                   uint64_t offset) {
  nb::module_ library = nb::module_::import_(module);
  if (dtype.is_none()) dtype = library.attr("uint8");
  const auto bytes = nb::cast<PyRegion&>(self).box->region().bytes().size();
  if (offset > bytes) raise(fabric::Errc::kOutOfBounds, "offset: past the end of the region");
  const bool torch = std::string_view(module) == "torch";
  const uint64_t item = nb::cast<uint64_t>(torch ? dtype.attr("itemsize")
                                                 : library.attr("dtype")(dtype).attr("itemsize"));
  nb::object count = nb::int_((bytes - offset) / item);
  if (!shape.is_none()) {
    nb::object product = nb::module_::import_("math").attr("prod");
    count = nb::isinstance<nb::int_>(shape) ? shape : product(shape);
    if (nb::cast<uint64_t>(count) > (bytes - offset) / item) {
      raise(fabric::Errc::kOutOfBounds, "shape: larger than the region after offset");
    }
  }
  nb::object flat =
      library.attr("frombuffer")(self, "dtype"_a = dtype, "count"_a = count, "offset"_a = offset);
  return shape.is_none() ? flat : flat.attr("reshape")(shape);
}

void bind_views(nb::class_<PyRegion>& region) {
  region
      .def(
          "numpy",
          [](nb::handle self, nb::object dtype, nb::object shape, uint64_t offset) {
            return view_as(self, "numpy", std::move(dtype), std::move(shape), offset);
          },
          "dtype"_a.none() = nb::none(), "shape"_a.none() = nb::none(), "offset"_a = 0,
          nb::sig("def numpy(self, dtype: numpy.typing.DTypeLike | None = None, shape: int | "
                  "tuple[int, ...] | None = None, offset: int = 0) -> numpy.typing.NDArray"
                  "[typing.Any]"),
          "The bytes from `offset` on as a numpy array, which keeps the region alive.")
      .def(
          "tensor",
          [](nb::handle self, nb::object dtype, nb::object shape, uint64_t offset) {
            return view_as(self, "torch", std::move(dtype), std::move(shape), offset);
          },
          "dtype"_a.none() = nb::none(), "shape"_a.none() = nb::none(), "offset"_a = 0,
          nb::sig("def tensor(self, dtype: typing.Any = None, shape: int | tuple[int, ...] | None "
                  "= None, offset: int = 0) -> typing.Any"),
          "The same as a torch tensor.")
      .def(
          "__dlpack__",
          [](nb::handle self, const nb::kwargs& options) {
            const auto bytes = nb::cast<PyRegion&>(self).box->region().bytes();
            nb::ndarray<uint8_t, nb::ndim<1>> array(reinterpret_cast<uint8_t*>(bytes.data()),
                                                    {bytes.size()}, nb::borrow(self));
            if (options.contains("copy") && options["copy"].is(nb::handle(Py_True))) {
              PyErr_SetString(PyExc_BufferError, "copy: a region is never copied");
              throw nb::python_error();
            }
            return nb::cast(array);  // a capsule
          },
          nb::sig("def __dlpack__(self, **options: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__", [](const PyRegion&) { return nb::make_tuple(1, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace

Borrowed borrow_memory(nb::handle object, bool writable, const char* name) {
  if (nb::hasattr(object, "data_ptr")) {
    Borrowed memory = borrow_tensor(object, name);
    return memory;
  }
  if (PyObject_CheckBuffer(object.ptr()) != 0) return borrow_buffer(object, writable, name);
  return borrow_dlpack(object, writable, name);
}

bool Registered::prove_quiet() noexcept {
  if (deregistered) return true;
  const SharedEngine box = engine.lock();
  if (box == nullptr) return true;  // it closed: no peer can write any more
  fabric::Engine& open = *box->engine;
  auto batch = open.make_batch();
  if (!batch) return batch.error().code == fabric::Errc::kClosed;
  const auto op = open.submit(fabric::Deregister{.region = region.id(), .batch = batch->id()});
  if (!op) return op.error().code == fabric::Errc::kClosed;
  return open.wait(*batch).has_value();
}

Registered::~Registered() {
  const bool quiet = !owner.owner.is_valid() || prove_quiet();
  { const fabric::MemoryRegion last = std::move(region); }
  if (!owner.owner.is_valid()) return;
  const nb::gil_scoped_acquire gil;
  if (quiet) {
    owner = {};
    return;
  }
  (void)owner.owner.release();  // leaked on purpose, and so is the view
  new std::shared_ptr<Py_buffer>(std::move(owner.view));
}

RegionBox::RegionBox(const SharedEngine& engine, fabric::MemoryRegion&& region, Borrowed&& owner,
                     bool read_only)
    : context_(engine->context),
      registered_(std::make_unique<Registered>(engine, std::move(region), std::move(owner))),
      id_(registered_->region.id()),
      read_only_(read_only) {}

RegionBox::~RegionBox() { context_->destroy(std::move(registered_)); }

void RegionBox::deregister(fabric::Timeout timeout) {
  context_->check();
  if (registered_->deregistered) return;
  const SharedEngine engine = registered_->engine.lock();
  if (engine == nullptr) raise(fabric::Errc::kClosed, "engine: it is gone");
  auto batch = unwrap(engine->engine->make_batch());
  unwrap(engine->engine->submit(
      fabric::Deregister{.region = id_, .timeout = timeout, .batch = batch.id()}));
  unwrap(wait_in_slices(
      *context_, fabric::Timeout::forever(),
      [&](fabric::Timeout slice) { return engine->engine->wait(batch, slice); },
      [&] { return batch.pending() == 0; }));
  registered_->deregistered = true;
}

void bind_memory(nb::module_& m) {
  nb::enum_<fabric::MemoryKind>(m, "MemoryKind")
      .value("HOST", fabric::MemoryKind::kHost)
      .value("CUDA", fabric::MemoryKind::kCuda)
      .value("ROCM", fabric::MemoryKind::kRocm);

  struct PyGrant {
    fabric::GrantId id{};
    nb::bytes desc{"", 0};
  };
  nb::class_<PyGrant>(m, "Grant", "Access of one peer to a region; see MemoryRegion.grant().")
      .def_ro("id", &PyGrant::id)
      .def_ro("desc", &PyGrant::desc);

  nb::class_<PyRegion> region(
      m, "MemoryRegion", nb::type_slots(region_slots),
      "Registered memory. Keeps the Python object that owns the bytes alive.\n\n"
      "memoryview(region) and everything that takes a buffer see the bytes.");
  bind_views(region);
  region.def_prop_ro("id", [](const PyRegion& self) { return self.box->id(); })
      .def_prop_ro("size_bytes",
                   [](const PyRegion& self) { return self.box->region().size_bytes(); })
      .def_prop_ro("address",
                   [](const PyRegion& self) {
                     return reinterpret_cast<uintptr_t>(self.box->region().bytes().data());
                   })
      .def("__len__", [](const PyRegion& self) { return self.box->region().size_bytes(); })
      .def(
          "at", [](const PyRegion& self, uint64_t offset) { return self.box->region().at(offset); },
          "offset"_a)
      .def(
          "find",
          [](const PyRegion& self, uintptr_t address, uint64_t size_bytes) {
            return unwrap(
                self.box->region().find(reinterpret_cast<const void*>(address), size_bytes));
          },
          "address"_a, "size_bytes"_a = 1, "The reference to an address inside, as of data_ptr().")
      .def(
          "desc", [](const PyRegion& self) { return to_bytes(unwrap(self.box->region().desc())); },
          "What peers import in order to write here. Every peer that has it may write.")
      .def(
          "grant",
          [](const PyRegion& self, fabric::PeerId peer) {
            auto& region = self.box->region();
            const auto grant = unwrap(without_gil([&] { return region.grant(peer); }));
            return PyGrant{grant.id, to_bytes(grant.desc)};
          },
          "peer"_a, "Access for one peer alone; engine.revoke() ends it.")
      .def(
          "deregister",
          [](const PyRegion& self, TimeoutArg timeout) { self.box->deregister(timeout.get()); },
          "timeout"_a.none() = nb::none(),
          "Blocks until no remote write can land any more. The bytes stay readable.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> MemoryRegion"))
      .def(
          "__exit__", [](const PyRegion& self, const nb::args&) { self.box->deregister({}); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace fabric_python

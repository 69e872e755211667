// <fabric/engine.h>: engines and the inline runtime. The operations are in transfer.cc.

#include <fabric/engine.h>

#include "batch.h"
#include "callback.h"
#include "config.h"
#include "engine.h"
#include "lists.h"
#include "memory.h"
#include "peer.h"
#include "record.h"
#include "watcher.h"

namespace fabric_python {

namespace {

struct PyRuntime {
  std::shared_ptr<fabric::InlineRuntime> runtime = std::make_shared<fabric::InlineRuntime>();
  SharedContext context = std::make_shared<Context>(true, std::function<int64_t()>{});
};

/// The constructor: open() in the class's own words.
void open_engine(PyEngine* self, nb::handle config, PyRuntime* runtime,
                 const nb::kwargs& settings) {
  const fabric::Config wanted = config_with(config, settings, "Engine");
  if (runtime != nullptr) runtime->context->check();
  auto context = std::make_shared<Context>(runtime != nullptr, std::function<int64_t()>{});
  auto engine = without_gil([&] {
    run_postponed();
    return fabric::Engine::open(wanted, runtime == nullptr ? nullptr : runtime->runtime);
  });
  if (!engine) raise(engine.error());
  construct_engine(self, std::move(context), std::move(*engine), wanted);
}

PyRegion add_region(const PyEngine& self, fabric::Result<fabric::MemoryRegion> region,
                    Borrowed&& owner, bool read_only) {
  if (!region) raise(region.error());
  return PyRegion{
      std::make_shared<RegionBox>(self.box, std::move(*region), std::move(owner), read_only)};
}

/// An array, or an address with a size: a KV cache is often many views of one storage.
PyRegion register_memory(const PyEngine& self, nb::handle memory, std::optional<uintptr_t> address,
                         std::optional<uint64_t> size_bytes, nb::object owner, bool remote_write) {
  Borrowed borrowed;
  if (memory.is_none()) {
    if (!address || !size_bytes) {
      throw nb::type_error("memory: expected an array, or address= and size=");
    }
    borrowed.address = reinterpret_cast<void*>(*address);
    borrowed.size_bytes = *size_bytes;
    borrowed.owner = owner.is_none() ? nb::object(nb::int_(*address)) : owner;
  } else {
    if (address || size_bytes || !owner.is_none()) {
      throw nb::type_error("memory: an array, or address=, size= and owner=, not both");
    }
    borrowed = borrow_memory(memory, remote_write, "memory");
  }
  if (borrowed.address == nullptr) raise(fabric::Errc::kInvalidArgument, "memory: a null address");
  if (borrowed.size_bytes == 0) raise(fabric::Errc::kInvalidArgument, "memory: it is empty");
  const fabric::Memory request{
      .address = borrowed.address, .size_bytes = borrowed.size_bytes, .remote_write = remote_write};
  fabric::Engine& engine = self.get();
  auto region = without_gil([&] { return engine.register_memory(request); });
  const bool read_only = borrowed.read_only;
  return add_region(self, std::move(region), std::move(borrowed), read_only);
}

PyRegion allocate(const PyEngine& self, uint64_t size_bytes, bool huge_pages) {
  fabric::Engine& engine = self.get();
  auto region = without_gil(
      [&] { return engine.allocate({.size_bytes = size_bytes, .huge_pages = huge_pages}); });
  return add_region(self, std::move(region), {}, false);
}

fabric::PeerId connect(const PyEngine& self, nb::handle address, std::vector<std::string> networks,
                       bool warm) {
  const fabric::ConnectOptions options{.networks = std::move(networks), .warm = warm};
  fabric::Engine& engine = self.get();
  if (nb::isinstance<nb::str>(address)) {
    const std::string text = nb::cast<std::string>(address);
    return unwrap(without_gil([&] { return engine.connect(std::string_view(text), options); }));
  }
  if (!nb::isinstance<nb::bytes>(address)) {
    throw nb::type_error("address: expected bytes of address(), or str of address_text()");
  }
  const auto bytes = span_of(nb::cast<nb::bytes>(address));
  return unwrap(without_gil([&] { return engine.connect(bytes, options); }));
}

/// As the blocking resolve(), in slices. `out` is written by the engine until the operation has
/// completed, so an interrupt cancels it and waits for that.
std::vector<fabric::CounterKey> resolve(const PyEngine& self, fabric::PeerId peer,
                                        const std::vector<uint64_t>& names, TimeoutArg timeout) {
  fabric::Engine& engine = self.get();
  std::vector<fabric::CounterKey> keys(names.size());
  auto batch = unwrap(engine.make_batch());
  unwrap(engine.submit(fabric::Resolve{
      .peer = peer, .names = names, .out = keys, .timeout = timeout.get(), .batch = batch.id()}));
  try {
    unwrap(wait_in_slices(
        *self.box->context, fabric::Timeout::forever(),
        [&](fabric::Timeout slice) { return engine.wait(batch, slice); },
        [&] { return batch.pending() == 0; }));
  } catch (...) {
    (void)engine.cancel(batch.id());
    without_gil([&] {
      while (batch.pending() > 0) (void)engine.wait(batch, fabric::Timeout::forever());
    });
    throw;
  }
  return keys;
}

template <class T>
Held<T> hold(const PyEngine& self, fabric::Result<T> made) {
  if (!made) raise(made.error());
  return Held<T>(self.box->context, std::move(*made));
}

Held<fabric::PageList> make_page_list(const PyEngine& self, nb::handle pages) {
  // A sequence of (first, count) pairs is a list of ranges.
  if (PySequence_Check(pages.ptr()) != 0 && PyObject_CheckBuffer(pages.ptr()) == 0 &&
      PySequence_Size(pages.ptr()) > 0 && nb::isinstance<nb::tuple>(nb::borrow(pages)[0])) {
    std::vector<fabric::PageRange> ranges;
    for (nb::handle item : nb::iter(pages)) {
      std::pair<uint32_t, uint32_t> range;
      if (!nb::isinstance<nb::tuple>(item) || nb::len(item) != 2 ||
          !nb::try_cast(item[0], range.first) || !nb::try_cast(item[1], range.second)) {
        throw nb::type_error("pages: expected (first, count) for each range");
      }
      ranges.push_back({range.first, range.second});
    }
    return hold(self, self.get().make_page_list(std::span<const fabric::PageRange>(ranges)));
  }
  // A range() of step 1 is one range, whatever its length.
  if (PyRange_Check(pages.ptr()) && nb::cast<int64_t>(pages.attr("step")) == 1 &&
      nb::len(pages) > 0) {
    const Offsets ends(nb::make_tuple(pages.attr("start"), nb::int_(nb::len(pages))), "pages");
    if (ends[0] > UINT32_MAX || ends[1] > UINT32_MAX) {
      raise(fabric::Errc::kOutOfBounds, "pages: past page 2**32 - 1");
    }
    const fabric::PageRange range{static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1])};
    return hold(self, self.get().make_page_list(std::span(&range, 1)));
  }
  const PageIndices indices(pages, "pages");
  return hold(self, self.get().make_page_list(indices.get()));
}

Held<fabric::WriteList> make_write_list(const PyEngine& self, nb::handle source_offsets,
                                        nb::handle target_offsets, nb::handle sizes_bytes) {
  const Offsets from(source_offsets, "source_offsets");
  const Offsets to(target_offsets, "target_offsets");
  const Offsets sizes(sizes_bytes, "sizes_bytes");
  const size_t count =
      std::max({from.count().value_or(1), to.count().value_or(1), sizes.count().value_or(1)});
  from.expect_count(count);
  to.expect_count(count);
  sizes.expect_count(count);
  std::vector<fabric::ListedWrite> writes(count);
  for (size_t i = 0; i < count; ++i) writes[i] = {from[i], to[i], sizes[i]};
  return hold(self, self.get().make_write_list(writes));
}

template <class T, class Make>
WithCallback<T> make_reporter(const PyEngine& self, nb::handle notify, uint64_t tag, Make make) {
  NotifyArg to(notify, tag, false);
  auto made = make(to.get());
  if (!made) raise(made.error());
  return WithCallback<T>(self.box->context, std::move(*made), to.callback());
}

void bind_runtime(nb::module_& m) {
  nb::class_<PyRuntime>(m, "InlineRuntime",
                        "Runs its engines on the calling thread, without threads of their own.")
      .def(nb::init<>())
      .def("turn", [](PyRuntime& self) {
        self.context->check();
        return without_gil([&] { return self.runtime->turn(); });
      });
}

void bind_offer(nb::module_& m) {
  using fabric::Offer;
  nb::class_<Offer>(m, "Offer", "What it takes to write to the engine that made the offer.")
      .def_prop_ro("peer", [](const Offer& self) { return self.peer; })
      .def_prop_ro("region", [](const Offer& self) { return self.region; })
      .def_prop_ro("key", [](const Offer& self) { return self.key; });
  nb::class_<fabric::ScatterTarget>(m, "ScatterTarget", "One target of a scatter.")
      .def(
          "__init__",
          [](fabric::ScatterTarget* self, fabric::RemoteRegion target, uint64_t size_bytes,
             uint64_t target_offset, uint64_t source_offset, const fabric::CounterKey* imm) {
            new (self) fabric::ScatterTarget{.target = target.at(target_offset),
                                             .source_offset = source_offset,
                                             .size_bytes = size_bytes,
                                             .imm = imm == nullptr ? fabric::CounterKey{} : *imm};
          },
          "target"_a, "size_bytes"_a, nb::kw_only(), "target_offset"_a = 0, "source_offset"_a = 0,
          "imm"_a.none() = nb::none(),
          nb::sig("def __init__(self, target: RemoteRegion, size_bytes: int, *, target_offset: int "
                  "= 0, source_offset: int = 0, imm: CounterKey | None = None) -> None"));
}

void bind_lifetime(nb::class_<PyEngine>& engine) {
  engine
      .def(
          "__init__", &open_engine, "config"_a.none() = nb::none(), nb::kw_only(),
          "runtime"_a.none() = nb::none(), "settings"_a,
          nb::sig("def __init__(self, config: Config | None = None, *, runtime: InlineRuntime | "
                  "None = None, **settings: typing.Unpack[fabric_lib._settings.Settings]) -> None"))
      .def(
          "close",
          [](const PyEngine& self, TimeoutArg timeout) {
            fabric::Engine& engine = self.get();
            const fabric::Timeout limit = timeout.get();
            const auto closed = without_gil([&] {
              run_postponed();
              return engine.close(limit);
            });
            // Closing twice is leaving a with block after close().
            if (!closed && closed.error().code != fabric::Errc::kClosed) raise(closed.error());
          },
          "timeout"_a.none() = nb::none(), "Cancels, drains, reports every operation, then stops.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing.Self"))
      .def(
          "__exit__", [](nb::handle self, const nb::args&) { self.attr("close")(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

void bind_peers(nb::class_<PyEngine>& engine) {
  engine.def("address", [](const PyEngine& self) { return to_bytes(self.get().address()); })
      .def("address_text", [](const PyEngine& self) { return self.get().address_text(); })
      .def("connect", &connect, "address"_a, nb::kw_only(),
           "networks"_a = std::vector<std::string>{}, "warm"_a = false,
           nb::sig("def connect(self, address: bytes | str, *, networks: collections.abc.Sequence["
                   "str] = [], warm: bool = False) -> PeerId"),
           "Returns at once; operations to the peer wait while it is connecting.")
      .def(
          "disconnect",
          [](const PyEngine& self, fabric::PeerId peer) { unwrap(self.get().disconnect(peer)); },
          "peer"_a)
      .def(
          "peer_info",
          [](const PyEngine& self, fabric::PeerId peer) {
            return unwrap(self.get().peer_info(peer));
          },
          "peer"_a)
      .def(
          "peers",
          [](const PyEngine& self, fabric::PeerFilter filter) { return self.get().peers(filter); },
          "filter"_a = fabric::PeerFilter::kOpen)
      .def(
          "make_group",
          [](const PyEngine& self, const std::vector<fabric::PeerId>& peers) {
            return hold(self, self.get().make_group(peers));
          },
          "peers"_a)
      .def(
          "offer",
          [](const PyEngine& self, const PyRegion& region, fabric::CounterKey key) {
            return unwrap(self.get().offer(region.box->region(), key));
          },
          "region"_a, "key"_a, "Address, descriptor and counter key in one line of text.")
      .def(
          "accept",
          [](const PyEngine& self, const std::string& offer) {
            fabric::Engine& engine = self.get();
            return unwrap(without_gil([&] { return engine.accept(offer); }));
          },
          "offer"_a);
}

void bind_regions(nb::class_<PyEngine>& engine) {
  for (const char* name : {"register_memory", "register"}) {
    const char* text = keep_text(
        std::string("def ") + name +
        "(self, memory: typing.Any = None, *, address: int | None = None, size: int | None = "
        "None, owner: object = None, remote_write: bool = True) -> MemoryRegion");
    engine.def(name, &register_memory, "memory"_a.none() = nb::none(), nb::kw_only(),
               "address"_a.none() = nb::none(), "size"_a.none() = nb::none(),
               "owner"_a.none() = nb::none(), "remote_write"_a = true, nb::sig(text),
               "Registers the memory of an array (numpy, torch, anything with DLPack, the buffer "
               "protocol or data_ptr()) without a copy, or size bytes from address on. The array, "
               "or owner, is kept alive until no peer can write any more.");
  }
  engine
      .def("allocate", &allocate, "size_bytes"_a, nb::kw_only(), "huge_pages"_a = true,
           "Zeroed pages, registered on every network: the fast way on one host.")
      .def(
          "import_region",
          [](const PyEngine& self, fabric::PeerId owner, nb::bytes desc) {
            fabric::Engine& engine = self.get();
            const auto bytes = span_of(desc);
            return unwrap(without_gil([&] { return engine.import_region(owner, bytes); }));
          },
          "owner"_a, "desc"_a)
      .def("make_page_list", &make_page_list, "pages"_a,
           nb::sig("def make_page_list(self, pages: collections.abc.Sequence[int] | "
                   "collections.abc.Sequence[tuple[int, int]] | typing.Any) -> PageList"),
           "Pages for any number of paged writes: an array, a range(), or (first, count) pairs.")
      .def("make_write_list", &make_write_list, "source_offsets"_a, "target_offsets"_a,
           "sizes_bytes"_a,
           nb::sig("def make_write_list(self, source_offsets: int | collections.abc.Sequence[int] "
                   "| typing.Any, target_offsets: int | collections.abc.Sequence[int] | typing.Any,"
                   " sizes_bytes: int | collections.abc.Sequence[int] | typing.Any) -> WriteList"));
}

constexpr const char* kNotifyType =
    "notify: Notify | Inbox | collections.abc.Callable[[Event], None]";

void bind_reporters(nb::class_<PyEngine>& engine) {
  engine
      .def(
          "make_watcher",
          [](const PyEngine& self, nb::handle notify, uint64_t tag, bool polled) {
            return make_reporter<fabric::Watcher>(self, notify, tag, [&](fabric::Notify to) {
              return self.get().make_watcher(to, {.polled = polled});
            });
          },
          "notify"_a, nb::kw_only(), "tag"_a = 0, "polled"_a = true,
          nb::sig(keep_text(std::string("def make_watcher(self, ") + kNotifyType +
                            ", *, tag: int = 0, polled: bool = True) -> Watcher")))
      .def(
          "listen",
          [](const PyEngine& self, uint16_t channel, nb::handle notify, uint64_t tag) {
            return make_reporter<fabric::Subscription>(self, notify, tag, [&](fabric::Notify to) {
              return self.get().listen(channel, to);
            });
          },
          "channel"_a, "notify"_a, nb::kw_only(), "tag"_a = 0,
          nb::sig(keep_text(std::string("def listen(self, channel: int, ") + kNotifyType +
                            ", *, tag: int = 0) -> Subscription")),
          "Messages of one channel.")
      .def(
          "subscribe",
          [](const PyEngine& self, nb::handle notify, uint64_t tag) {
            return make_reporter<fabric::Subscription>(
                self, notify, tag, [&](fabric::Notify to) { return self.get().subscribe(to); });
          },
          "notify"_a, nb::kw_only(), "tag"_a = 0,
          nb::sig(keep_text(std::string("def subscribe(self, ") + kNotifyType +
                            ", *, tag: int = 0) -> Subscription")),
          "Changes of peers and rails, room in queues, and failures that nothing else reports.");
}

void bind_notification(nb::class_<PyEngine>& engine) {
  const auto make_batch = [](const PyEngine& self) {
    return PyBatch(self.box, unwrap(self.get().make_batch()));
  };
  engine
      .def(
          "make_inbox",
          [](const PyEngine& self, uint32_t depth) {
            return PyInbox(self.box->context, unwrap(self.get().make_inbox(depth)));
          },
          "depth"_a)
      .def("make_batch", make_batch)
      .def("batch", make_batch, "make_batch(), for a with statement.")
      .def("make_counter",
           [](const PyEngine& self) { return hold(self, self.get().make_counter()); })
      .def(
          "named_counter",
          [](const PyEngine& self, uint64_t name) {
            return hold(self, self.get().named_counter(name));
          },
          "name"_a)
      .def("make_counter_group",
           [](const PyEngine& self) { return hold(self, self.get().make_counter_group()); })
      .def("make_flag", [](const PyEngine& self) { return hold(self, self.get().make_flag()); })
      .def("resolve", &resolve, "peer"_a, "names"_a, "timeout"_a.none() = nb::none(),
           nb::sig("def resolve(self, peer: PeerId, names: collections.abc.Sequence[int], timeout: "
                   "float | datetime.timedelta | None = None) -> list[CounterKey]"),
           "The counter keys of a peer's named counters.")
      .def(
          "cancel", [](const PyEngine& self, fabric::OpId op) { unwrap(self.get().cancel(op)); },
          "op"_a)
      .def(
          "wait",
          [](const PyEngine&, PyBatch& batch, TimeoutArg timeout) { batch.wait(timeout.get()); },
          "batch"_a, "timeout"_a.none() = nb::none());
}

void bind_introspection(nb::class_<PyEngine>& engine) {
  engine
      .def(
          "now", [](const PyEngine& self) { return self.get().now(); },
          "Seconds on the engine's clock.")
      .def("now_ns", [](const PyEngine& self) { return self.get().now().count(); })
      .def(
          "progress",
          [](const PyEngine& self) {
            fabric::Engine& engine = self.get();
            return without_gil([&] { return engine.progress(); });
          },
          "Inline only: one bounded turn, then due callbacks.")
      .def_prop_ro("is_inline", [](const PyEngine& self) { return self.box->context->is_inline(); })
      .def("stats", [](const PyEngine& self) { return self.get().stats(); })
      .def("rail_stats", [](const PyEngine& self) { return self.get().rail_stats(); })
      .def("peer_stats", [](const PyEngine& self) { return self.get().peer_stats(); })
      .def(
          "dump", [](const PyEngine& self) { return self.get().dump(); },
          "What is in flight, which peer it waits for, for how long.")
      .def("dump_json", [](const PyEngine& self) { return self.get().dump_json(); });
}

}  // namespace

std::span<const std::byte> span_of(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

nb::bytes to_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

void construct_engine(PyEngine* self, SharedContext context, fabric::Engine&& engine,
                      const fabric::Config& config) {
  context->default_timeout_ns = default_timeout_ns(config);
  new (self) PyEngine{std::make_shared<EngineBox>(std::move(context), std::move(engine))};
}

void bind_engine(nb::module_& m) {
  bind_runtime(m);
  bind_offer(m);
  nb::class_<PyEngine> engine(m, "Engine", nb::is_weak_referenceable(),
                              "One-sided writes into the memory of peers, each counted there.");
  bind_lifetime(engine);
  bind_peers(engine);
  bind_regions(engine);
  bind_reporters(engine);
  bind_notification(engine);
  bind_introspection(engine);
  bind_transfers(engine);
  m.def("version", &fabric::version);
  m.def("providers", &fabric::providers, "The networks of this build, in order of preference.");
  m.def("close_all_engines", &close_all_engines, "For atexit.");
}

}  // namespace fabric_python

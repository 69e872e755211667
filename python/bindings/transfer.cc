// <fabric/transfer.h>: the operations, as methods of Engine. A request is a call with keywords: the
// struct's fields, under the struct's names.

#include <fabric/transfer.h>

#include "batch.h"
#include "callback.h"
#include "lists.h"
#include "memory.h"
#include "peer.h"

namespace fabric_python {

namespace {

using fabric::CounterKey;
using fabric::OpId;
using fabric::RemoteRegion;

#define FABRIC_PYTHON_NOTIFY \
  "Notify | Inbox | Flag | collections.abc.Callable[[Event], None] | None = None"
#define FABRIC_PYTHON_END                                                           \
  "timeout: float | datetime.timedelta | None = None, batch: Batch | None = None, " \
  "notify: " FABRIC_PYTHON_NOTIFY ", tag: int = 0"
#define FABRIC_PYTHON_PAGES "PageList | collections.abc.Sequence[int] | typing.Any"

/// The arguments that end every call.
struct End {
  fabric::Timeout timeout;
  fabric::BatchId batch{};
  NotifyArg notify;
  End(const TimeoutArg& timeout_, const PyBatch* batch_, nb::handle notify_, uint64_t tag)
      : timeout(timeout_.get()),
        batch(batch_ == nullptr ? fabric::BatchId{} : batch_->id),
        notify(notify_, tag, true) {}
};

template <class Request>
auto submit(const PyEngine& self, const Request& request, End& end) {
  auto result = self.get().submit(request);
  if (!result) raise(result.error());
  end.notify.accepted();
  return *result;
}

fabric::Priority priority_of(nb::handle priority, fabric::Priority otherwise) {
  fabric::Priority value = otherwise;
  if (priority.is_none()) return otherwise;
  // Not an int that happens to be one: the cast alone would take it.
  if (!nb::isinstance<fabric::Priority>(priority) || !nb::try_cast(priority, value)) {
    throw nb::type_error("priority: expected a Priority");
  }
  return value;
}

CounterKey key_of(const CounterKey* imm) { return imm == nullptr ? CounterKey{} : *imm; }

/// The part of Pages that says which pages: indices in the call, or a prepared list.
class PagesArg {
 public:
  PagesArg(nb::handle object, const char* name) {
    PyPageList* list = nullptr;
    if (nb::try_cast(object, list) && list != nullptr) {
      pages_.list = list->get().id();
    } else {
      indices_.emplace(object, name);
      pages_.indices = indices_->get();
    }
  }
  fabric::Pages get(uint64_t stride, uint64_t offset, uint64_t inner_stride) const {
    fabric::Pages pages = pages_;
    pages.stride_bytes = stride;
    pages.offset_bytes = offset;
    pages.inner_stride_bytes = inner_stride;
    return pages;
  }

 private:
  std::optional<PageIndices> indices_;
  fabric::Pages pages_{};
};

OpId write(const PyEngine& self, const PyRegion& source, const RemoteRegion& target,
           uint64_t size_bytes, uint64_t source_offset, uint64_t target_offset,
           const CounterKey* imm, nb::handle priority, bool unsplit, const TimeoutArg& timeout,
           const PyBatch* batch, nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  return submit(self,
                fabric::Write{.source = {source.box->id(), source_offset},
                              .target = target.at(target_offset),
                              .size_bytes = size_bytes,
                              .imm = key_of(imm),
                              .priority = priority_of(priority, fabric::Priority::kNormal),
                              .unsplit = unsplit,
                              .timeout = end.timeout,
                              .batch = end.batch,
                              .notify = end.notify.get()},
                end);
}

OpId write_refs(const PyEngine& self, fabric::LocalRef source, fabric::RemoteRef target,
                uint64_t size_bytes, const CounterKey* imm, nb::handle priority, bool unsplit,
                const TimeoutArg& timeout, const PyBatch* batch, nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  return submit(self,
                fabric::Write{.source = source,
                              .target = target,
                              .size_bytes = size_bytes,
                              .imm = key_of(imm),
                              .priority = priority_of(priority, fabric::Priority::kNormal),
                              .unsplit = unsplit,
                              .timeout = end.timeout,
                              .batch = end.batch,
                              .notify = end.notify.get()},
                end);
}

/// How many entries the sequences of a call have; all that are sequences have the same number.
size_t common_count(std::initializer_list<const Offsets*> all, const char* none_given) {
  for (const Offsets* one : all) {
    if (!one->count()) continue;
    for (const Offsets* other : all) other->expect_count(*one->count());
    return *one->count();
  }
  throw nb::type_error(none_given);
}

uint32_t write_many(const PyEngine& self, const PyRegion& source, const RemoteRegion& target,
                    nb::handle source_offsets, nb::handle target_offsets, nb::handle sizes_bytes,
                    const CounterKey* imm, nb::handle priority, bool unsplit,
                    const TimeoutArg& timeout, const PyBatch* batch) {
  const Offsets from(source_offsets, "source_offsets");
  const Offsets to(target_offsets, "target_offsets");
  const Offsets sizes(sizes_bytes, "sizes_bytes");
  const size_t count = common_count(
      {&from, &to, &sizes}, "source_offsets, target_offsets, sizes_bytes: one is a sequence");
  End end(timeout, batch, nb::none(), 0);
  std::vector<fabric::Write> writes(
      count, fabric::Write{.imm = key_of(imm),
                           .priority = priority_of(priority, fabric::Priority::kNormal),
                           .unsplit = unsplit,
                           .timeout = end.timeout,
                           .batch = end.batch});
  for (size_t i = 0; i < count; ++i) {
    writes[i].source = {source.box->id(), from[i]};
    writes[i].target = target.at(to[i]);
    writes[i].size_bytes = sizes[i];
  }
  return unwrap(self.get().submit(std::span<const fabric::Write>(writes)));
}

OpId write_pages(const PyEngine& self, const PyRegion& source, nb::handle source_pages,
                 const RemoteRegion& target, nb::handle target_pages, uint64_t page_bytes,
                 std::optional<uint64_t> source_stride_bytes,
                 std::optional<uint64_t> target_stride_bytes, uint64_t source_offset,
                 uint64_t target_offset, uint32_t inner_count, uint64_t source_inner_stride_bytes,
                 uint64_t target_inner_stride_bytes, const CounterKey* imm, nb::handle priority,
                 const TimeoutArg& timeout, const PyBatch* batch, nb::handle notify, uint64_t tag) {
  const PagesArg from(source_pages, "source_pages");
  const PagesArg to(target_pages, "target_pages");
  const uint64_t page = page_bytes * inner_count;
  End end(timeout, batch, notify, tag);
  return submit(
      self,
      fabric::PagedWrite{.source = source.box->id(),
                         .source_pages = from.get(source_stride_bytes.value_or(page), source_offset,
                                                  source_inner_stride_bytes),
                         .target = target,
                         .target_pages = to.get(target_stride_bytes.value_or(page), target_offset,
                                                target_inner_stride_bytes),
                         .page_bytes = page_bytes,
                         .inner_count = inner_count,
                         .imm = key_of(imm),
                         .priority = priority_of(priority, fabric::Priority::kNormal),
                         .timeout = end.timeout,
                         .batch = end.batch,
                         .notify = end.notify.get()},
      end);
}

/// One region for all layers, or one for each.
template <class T>
std::vector<T> regions_of(nb::handle object, const char* name, const char* wanted) {
  std::vector<T> regions;
  T one{};
  if (nb::try_cast(object, one)) {
    regions.push_back(one);
    return regions;
  }
  if (!nb::try_cast(object, regions) || regions.empty()) {
    throw nb::type_error((std::string(name) + ": expected " + wanted).c_str());
  }
  return regions;
}

/// What all layers of a request share, and how many layers there are.
struct Layers {
  std::vector<PyRegion> sources;
  std::vector<RemoteRegion> targets;
  Offsets from;
  Offsets to;
  std::vector<CounterKey> keys;
  size_t count = 0;

  Layers(nb::handle source, nb::handle source_offsets, nb::handle target, nb::handle target_offsets,
         nb::handle imm)
      : sources(regions_of<PyRegion>(source, "source",
                                     "a MemoryRegion, or a sequence with one for each layer")),
        targets(regions_of<RemoteRegion>(target, "target",
                                         "a RemoteRegion, or a sequence with one for each layer")),
        from(source_offsets, "source_offsets"),
        to(target_offsets, "target_offsets"),
        keys(imm.is_none() ? std::vector<CounterKey>(1)
                           : regions_of<CounterKey>(imm, "imm",
                                                    "a CounterKey, or one for each "
                                                    "layer")) {
    count = std::max({sources.size(), targets.size(), keys.size(), from.count().value_or(1),
                      to.count().value_or(1)});
    from.expect_count(count);
    to.expect_count(count);
    expect(sources.size(), "source");
    expect(targets.size(), "target");
    expect(keys.size(), "imm");
  }

 private:
  void expect(size_t size, const char* name) const {
    if (size == 1 || size == count) return;
    raise(fabric::Errc::kInvalidArgument, std::string(name) + ": " + std::to_string(size) +
                                              " of them, not " + std::to_string(count));
  }
};

uint32_t write_layers(const PyEngine& self, nb::handle source, nb::handle source_pages,
                      nb::handle target, nb::handle target_pages, uint64_t page_bytes,
                      nb::handle source_offsets, nb::handle target_offsets,
                      std::optional<uint64_t> source_stride_bytes,
                      std::optional<uint64_t> target_stride_bytes, uint32_t inner_count,
                      uint64_t source_inner_stride_bytes, uint64_t target_inner_stride_bytes,
                      nb::handle imm, nb::handle priority, const TimeoutArg& timeout,
                      const PyBatch* batch) {
  const Layers layers(source, source_offsets, target, target_offsets, imm);
  const PagesArg from(source_pages, "source_pages");
  const PagesArg to(target_pages, "target_pages");
  const uint64_t page = page_bytes * inner_count;
  End end(timeout, batch, nb::none(), 0);
  fabric::PagedWrite request{.page_bytes = page_bytes,
                             .inner_count = inner_count,
                             .priority = priority_of(priority, fabric::Priority::kNormal),
                             .timeout = end.timeout,
                             .batch = end.batch};
  fabric::Engine& engine = self.get();
  const auto at = [](const auto& all, size_t i) { return all.size() == 1 ? all[0] : all[i]; };
  for (uint32_t i = 0; i < layers.count; ++i) {
    request.source = at(layers.sources, i).box->id();
    request.target = at(layers.targets, i);
    request.imm = at(layers.keys, i);
    request.source_pages =
        from.get(source_stride_bytes.value_or(page), layers.from[i], source_inner_stride_bytes);
    request.target_pages =
        to.get(target_stride_bytes.value_or(page), layers.to[i], target_inner_stride_bytes);
    const auto op = engine.submit(request);
    if (op) continue;
    if (i == 0) raise(op.error());
    return i;
  }
  return static_cast<uint32_t>(layers.count);
}

OpId write_listed(const PyEngine& self, PyWriteList& list, const PyRegion& source,
                  const RemoteRegion& target, uint32_t first, std::optional<uint32_t> count,
                  uint64_t source_offset, uint64_t target_offset, const CounterKey* imm,
                  nb::handle priority, const TimeoutArg& timeout, const PyBatch* batch,
                  nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  const uint32_t size = list.get().size();
  return submit(self,
                fabric::ListedWrites{.list = list.get().id(),
                                     .first = first,
                                     .count = count.value_or(first < size ? size - first : 0),
                                     .source = {source.box->id(), source_offset},
                                     .target = target.at(target_offset),
                                     .imm = key_of(imm),
                                     .priority = priority_of(priority, fabric::Priority::kNormal),
                                     .timeout = end.timeout,
                                     .batch = end.batch,
                                     .notify = end.notify.get()},
                end);
}

OpId scatter(const PyEngine& self, const PyRegion& source,
             const std::vector<fabric::ScatterTarget>& targets, PyPeerGroup* group,
             nb::handle priority, bool unsplit, const TimeoutArg& timeout, const PyBatch* batch,
             nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  return submit(self,
                fabric::Scatter{.source = source.box->id(),
                                .targets = targets,
                                .group = group == nullptr ? fabric::GroupId{} : group->get().id(),
                                .priority = priority_of(priority, fabric::Priority::kNormal),
                                .unsplit = unsplit,
                                .timeout = end.timeout,
                                .batch = end.batch,
                                .notify = end.notify.get()},
                end);
}

OpId signal(const PyEngine& self, PyPeerGroup& group, nb::handle keys, nb::handle priority,
            const TimeoutArg& timeout, const PyBatch* batch, nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  const auto all =
      regions_of<CounterKey>(keys, "keys", "a CounterKey, or a sequence with one for each member");
  return submit(self,
                fabric::Signal{.group = group.get().id(),
                               .keys = all,
                               .priority = priority_of(priority, fabric::Priority::kUrgent),
                               .timeout = end.timeout,
                               .batch = end.batch,
                               .notify = end.notify.get()},
                end);
}

OpId send(const PyEngine& self, fabric::PeerId peer, nb::handle data, uint16_t channel,
          const TimeoutArg& timeout, const PyBatch* batch, nb::handle notify, uint64_t tag) {
  if (PyObject_CheckBuffer(data.ptr()) == 0) {
    throw nb::type_error("data: expected bytes, or an object with the buffer protocol");
  }
  const Borrowed memory = borrow_memory(data, false, "data");
  End end(timeout, batch, notify, tag);
  return submit(self,
                fabric::Send{.peer = peer,
                             .channel = channel,
                             .bytes = {static_cast<const std::byte*>(memory.address),
                                       static_cast<size_t>(memory.size_bytes)},
                             .timeout = end.timeout,
                             .batch = end.batch,
                             .notify = end.notify.get()},
                end);
}

OpId timer(const PyEngine& self, const SecondsArg& after, const PyBatch* batch, nb::handle notify,
           uint64_t tag) {
  End end({}, batch, notify, tag);
  return submit(
      self,
      fabric::Timer{.after = after.get("after"), .batch = end.batch, .notify = end.notify.get()},
      end);
}

template <class Request, auto Member, class Id>
OpId submit_about(const PyEngine& self, Id id, const TimeoutArg& timeout, const PyBatch* batch,
                  nb::handle notify, uint64_t tag) {
  End end(timeout, batch, notify, tag);
  Request request{};
  request.*Member = id;
  request.timeout = end.timeout;
  request.batch = end.batch;
  request.notify = end.notify.get();
  return submit(self, request, end);
}

#define FABRIC_PYTHON_END_ARGS                                                                    \
  "timeout"_a.none() = nb::none(), "batch"_a.none() = nb::none(), "notify"_a.none() = nb::none(), \
  "tag"_a = 0

void bind_writes(nb::class_<PyEngine>& engine) {
  engine
      .def("write", &write, "source"_a, "target"_a, "size_bytes"_a, nb::kw_only(),
           "source_offset"_a = 0, "target_offset"_a = 0, "imm"_a.none() = nb::none(),
           "priority"_a.none() = nb::none(), "unsplit"_a = false, FABRIC_PYTHON_END_ARGS,
           nb::sig(
               "def write(self, source: MemoryRegion, target: RemoteRegion, size_bytes: int, "
               "*, source_offset: int = 0, target_offset: int = 0, imm: CounterKey | None = "
               "None, priority: Priority | None = None, unsplit: bool = False, " FABRIC_PYTHON_END
               ") -> OpId"),
           "One write; adds one to the target's counter when imm is given.")
      .def("write", &write_refs, "source"_a, "target"_a, "size_bytes"_a, nb::kw_only(),
           "imm"_a.none() = nb::none(), "priority"_a.none() = nb::none(), "unsplit"_a = false,
           FABRIC_PYTHON_END_ARGS,
           nb::sig("def write(self, source: LocalRef, target: RemoteRef, size_bytes: int, *, "
                   "imm: CounterKey | None = None, priority: Priority | None = None, unsplit: "
                   "bool = False, " FABRIC_PYTHON_END ") -> OpId"))
      .def("write_many", &write_many, "source"_a, "target"_a, "source_offsets"_a,
           "target_offsets"_a, "sizes_bytes"_a, nb::kw_only(), "imm"_a.none() = nb::none(),
           "priority"_a.none() = nb::none(), "unsplit"_a = false, "timeout"_a.none() = nb::none(),
           "batch"_a.none() = nb::none(),
           nb::sig("def write_many(self, source: MemoryRegion, target: RemoteRegion, "
                   "source_offsets: int | collections.abc.Sequence[int] | typing.Any, "
                   "target_offsets: int | collections.abc.Sequence[int] | typing.Any, sizes_bytes: "
                   "int | collections.abc.Sequence[int] | typing.Any, *, imm: CounterKey | None = "
                   "None, priority: Priority | None = None, unsplit: bool = False, timeout: float "
                   "| datetime.timedelta | None = None, batch: Batch | None = None) -> int"),
           "Many writes in one call. Accepts a prefix and returns its length, at least 1.")
      .def("write_listed", &write_listed, "list"_a, "source"_a, "target"_a, "first"_a = 0,
           "count"_a.none() = nb::none(), nb::kw_only(), "source_offset"_a = 0,
           "target_offset"_a = 0, "imm"_a.none() = nb::none(), "priority"_a.none() = nb::none(),
           FABRIC_PYTHON_END_ARGS,
           nb::sig("def write_listed(self, list: WriteList, source: MemoryRegion, target: "
                   "RemoteRegion, first: int = 0, count: int | None = None, *, source_offset: int "
                   "= 0, target_offset: int = 0, imm: CounterKey | None = None, priority: Priority "
                   "| None = None, " FABRIC_PYTHON_END ") -> OpId"),
           "The writes first to first + count - 1 of a prepared list.");
}

void bind_paged(nb::class_<PyEngine>& engine) {
  engine
      .def("write_pages", &write_pages, "source"_a, "source_pages"_a.none(), "target"_a,
           "target_pages"_a.none(), "page_bytes"_a, nb::kw_only(),
           "source_stride_bytes"_a.none() = nb::none(), "target_stride_bytes"_a.none() = nb::none(),
           "source_offset"_a = 0, "target_offset"_a = 0, "inner_count"_a = 1,
           "source_inner_stride_bytes"_a = 0, "target_inner_stride_bytes"_a = 0,
           "imm"_a.none() = nb::none(), "priority"_a.none() = nb::none(), FABRIC_PYTHON_END_ARGS,
           nb::sig("def write_pages(self, source: MemoryRegion, source_pages: " FABRIC_PYTHON_PAGES
                   ", target: RemoteRegion, target_pages: " FABRIC_PYTHON_PAGES
                   ", page_bytes: int, *, source_stride_bytes: int | None = "
                   "None, target_stride_bytes: int | None = None, source_offset: int = 0, "
                   "target_offset: int = 0, inner_count: int = 1, source_inner_stride_bytes: int "
                   "= 0, target_inner_stride_bytes: int = 0, imm: CounterKey | None = None, "
                   "priority: Priority | None = None, " FABRIC_PYTHON_END ") -> OpId"),
           "Pages of equal size: one count for each, one completion for all. Page lists are uint32 "
           "or int32 arrays, used without a copy, prepared lists, or other sequences of int, which "
           "are converted.")
      .def("write_layers", &write_layers, "source"_a, "source_pages"_a.none(), "target"_a,
           "target_pages"_a.none(), "page_bytes"_a, nb::kw_only(), "source_offsets"_a = 0,
           "target_offsets"_a = 0, "source_stride_bytes"_a.none() = nb::none(),
           "target_stride_bytes"_a.none() = nb::none(), "inner_count"_a = 1,
           "source_inner_stride_bytes"_a = 0, "target_inner_stride_bytes"_a = 0,
           "imm"_a.none() = nb::none(), "priority"_a.none() = nb::none(),
           "timeout"_a.none() = nb::none(), "batch"_a.none() = nb::none(),
           nb::sig("def write_layers(self, source: MemoryRegion | collections.abc.Sequence["
                   "MemoryRegion], source_pages: " FABRIC_PYTHON_PAGES ", target: RemoteRegion | "
                   "collections.abc.Sequence[RemoteRegion], target_pages: " FABRIC_PYTHON_PAGES
                   ", page_bytes: int, *, source_offsets: int | collections.abc.Sequence[int] | "
                   "typing.Any = 0, target_offsets: int | collections.abc.Sequence[int] | "
                   "typing.Any = 0, source_stride_bytes: int | None = None, target_stride_bytes: "
                   "int | None = None, inner_count: int = 1, source_inner_stride_bytes: int = 0, "
                   "target_inner_stride_bytes: int = 0, imm: CounterKey | collections.abc.Sequence["
                   "CounterKey] | None = None, priority: Priority | None = None, timeout: float | "
                   "datetime.timedelta | None = None, batch: Batch | None = None) -> int"),
           "write_pages() for all layers of a request: regions, offsets and counter keys are one "
           "for all, or one for each layer. Returns how many layers were accepted, at least 1.");
}

void bind_messages(nb::class_<PyEngine>& engine) {
  engine
      .def("scatter", &scatter, "source"_a, "targets"_a, "group"_a.none() = nb::none(),
           nb::kw_only(), "priority"_a.none() = nb::none(), "unsplit"_a = false,
           FABRIC_PYTHON_END_ARGS,
           nb::sig("def scatter(self, source: MemoryRegion, targets: collections.abc.Sequence["
                   "ScatterTarget], group: PeerGroup | None = None, *, priority: Priority | None = "
                   "None, unsplit: bool = False, " FABRIC_PYTHON_END ") -> OpId"),
           "One region to many peers, each with its own offsets, length and counter key.")
      .def("signal", &signal, "group"_a, "keys"_a, nb::kw_only(), "priority"_a.none() = nb::none(),
           FABRIC_PYTHON_END_ARGS,
           nb::sig("def signal(self, group: PeerGroup, keys: CounterKey | collections.abc.Sequence["
                   "CounterKey], *, priority: Priority | None = None, " FABRIC_PYTHON_END
                   ") -> OpId"),
           "Adds one to a counter of each member, without bytes.")
      .def("send", &send, "peer"_a, "data"_a, "channel"_a = 0, nb::kw_only(),
           FABRIC_PYTHON_END_ARGS,
           nb::sig("def send(self, peer: PeerId, data: bytes | bytearray | memoryview | "
                   "numpy.typing.NDArray[typing.Any], channel: int = 0, "
                   "*, " FABRIC_PYTHON_END ") -> OpId"),
           "A message, copied. Completes when it is queued at the peer's listener.")
      .def("timer", &timer, "after"_a, nb::kw_only(), "batch"_a.none() = nb::none(),
           "notify"_a.none() = nb::none(), "tag"_a = 0,
           nb::sig("def timer(self, after: float | datetime.timedelta, *, batch: Batch | None = "
                   "None, notify: " FABRIC_PYTHON_NOTIFY ", tag: int = 0) -> OpId"));
}

void bind_fences(nb::class_<PyEngine>& engine) {
  engine
      .def("fence", &submit_about<fabric::Fence, &fabric::Fence::peer, fabric::PeerId>, "peer"_a,
           nb::kw_only(), FABRIC_PYTHON_END_ARGS,
           nb::sig("def fence(self, peer: PeerId, *, " FABRIC_PYTHON_END ") -> OpId"),
           "Completes when no write of this session of the peer can land here any more.")
      .def("drop", &submit_about<fabric::Drop, &fabric::Drop::peer, fabric::PeerId>, "peer"_a,
           nb::kw_only(), FABRIC_PYTHON_END_ARGS,
           nb::sig("def drop(self, peer: PeerId, *, " FABRIC_PYTHON_END ") -> OpId"),
           "Goes on without a peer: masks it in all groups, disconnects and fences it.")
      .def("revoke", &submit_about<fabric::Revoke, &fabric::Revoke::grant, fabric::GrantId>,
           "grant"_a, nb::kw_only(), FABRIC_PYTHON_END_ARGS,
           nb::sig("def revoke(self, grant: GrantId, *, " FABRIC_PYTHON_END ") -> OpId"),
           "Ends one grant; completes when no write under it can land any more.")
      .def(
          "deregister",
          [](const PyEngine& self, const PyRegion& region, const TimeoutArg& timeout,
             const PyBatch* batch, nb::handle notify, uint64_t tag) {
            return submit_about<fabric::Deregister, &fabric::Deregister::region, fabric::RegionId>(
                self, region.box->id(), timeout, batch, notify, tag);
          },
          "region"_a, nb::kw_only(), FABRIC_PYTHON_END_ARGS,
          nb::sig("def deregister(self, region: MemoryRegion, *, " FABRIC_PYTHON_END ") -> OpId"),
          "Completes when no remote write can land in the region any more.");
}

}  // namespace

void bind_transfers(nb::class_<PyEngine>& engine) {
  bind_writes(engine);
  bind_paged(engine);
  bind_messages(engine);
  bind_fences(engine);
}

}  // namespace fabric_python

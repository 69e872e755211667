// <fabric/kv.h>: the decode side and page ids. The prefill side is in kv_prefiller.cc.

#include <fabric/kv.h>

#include "engine.h"
#include "kv_member.h"
#include "kv_refusal.h"
#include "record.h"

namespace fabric_python {

namespace {

namespace kv = fabric::kv;
using PyDecoder = PyMember<kv::Decoder>;

void bind_codes(nb::module_& m) {
  using Refuse = kv::RefuseCode;
  using Fail = kv::FailCode;
  nb::enum_<Refuse>(m, "RefuseCode", "Why a prefiller does not take a dispatch.")
      .value("NONE", Refuse::kNone)
      .value("CAPACITY", Refuse::kCapacity)
      .value("DRAINING", Refuse::kDraining)
      .value("NOT_OFFERED", Refuse::kNotOffered)
      .value("DUPLICATE", Refuse::kDuplicate)
      .value("LAYOUT", Refuse::kLayout)
      .value("PLAN_DIFFERS", Refuse::kPlanDiffers)
      .value("GRANTS", Refuse::kGrants)
      .value("PAGES", Refuse::kPages)
      .value("BAD_MESSAGE", Refuse::kBadMessage)
      .value("UNKNOWN_DECODER", Refuse::kUnknownDecoder);
  nb::enum_<Fail>(m, "FailCode", "Why a request will not complete.")
      .value("NONE", Fail::kNone)
      .value("REFUSED", Fail::kRefused)
      .value("NOT_DELIVERED", Fail::kNotDelivered)
      .value("PEER_LOST", Fail::kPeerLost)
      .value("STALLED", Fail::kStalled)
      .value("DEADLINE", Fail::kDeadline)
      .value("PREFILL_FAILED", Fail::kPrefillFailed)
      .value("POISONED", Fail::kPoisoned)
      .value("REVOKED", Fail::kRevoked);
  nb::enum_<kv::PageState>(m, "PageState")
      .value("UNLEASED", kv::PageState::kUnleased)
      .value("IN_FLIGHT", kv::PageState::kInFlight)
      .value("READABLE", kv::PageState::kReadable)
      .value("FENCING", kv::PageState::kFencing)
      .value("QUARANTINED", kv::PageState::kQuarantined);
  using Kind = kv::DecodeEvent::Kind;
  nb::enum_<Kind>(m, "DecodeEventKind")
      .value("ACCEPTED", Kind::kAccepted)
      .value("LAYER", Kind::kLayer)
      .value("COMPLETE", Kind::kComplete)
      .value("MAY_WRITE", Kind::kMayWrite)
      .value("FAILED", Kind::kFailed)
      .value("CANCELLED", Kind::kCancelled)
      .value("PAGES_FREE", Kind::kPagesFree)
      .value("QUARANTINED", Kind::kQuarantined)
      .value("DRAINED", Kind::kDrained);
}

void bind_decode_structs(nb::module_& m) {
  using kv::DecodeEvent;
  using kv::DecoderStats;
  using kv::Source;
  Record<kv::PrefillLoad>(m, "PrefillLoad", "How busy a prefiller is.", false)
      .field("requests", "int", &kv::PrefillLoad::requests)
      .field("requests_max", "int", &kv::PrefillLoad::requests_max)
      .field("queued", "int", &kv::PrefillLoad::queued);
  Record<Source>(m, "Source", "A prefill rank that a request draws from.")
      .field("rank", "int", &Source::rank)
      .field("peer", "fabric_lib._native.PeerId", &Source::peer)
      .field("address", "str", &Source::address)
      .field("channel", "int", &Source::channel);
  Record<DecodeEvent>(m, "DecodeEvent", "What happened to a request at the decoder.", false)
      .field("kind", "DecodeEventKind", &DecodeEvent::kind)
      .field("id", "str", &DecodeEvent::id)
      .field("attempt", "int", &DecodeEvent::attempt)
      .field("layer", "int", &DecodeEvent::layer)
      .field("rank", "int", &DecodeEvent::rank)
      .field("fail", "FailCode", &DecodeEvent::fail)
      .field("refused", "RefuseCode", &DecodeEvent::refused)
      .field("landed", "int", &DecodeEvent::landed)
      .field("text", "str", &DecodeEvent::text);
  Record<DecoderStats>(m, "DecoderStats", "What a decoder holds now, and has done.", false)
      .field("requests", "int", &DecoderStats::requests)
      .field("in_flight", "int", &DecoderStats::in_flight)
      .field("stopping", "int", &DecoderStats::stopping)
      .field("draining", "int", &DecoderStats::draining)
      .field("awaiting_quiet", "int", &DecoderStats::awaiting_quiet)
      .field("fencing", "int", &DecoderStats::fencing)
      .field("quarantined", "int", &DecoderStats::quarantined)
      .field("pages_leased", "int", &DecoderStats::pages_leased)
      .field("pages_quarantined", "int", &DecoderStats::pages_quarantined)
      .field("staging_records", "int", &DecoderStats::staging_records)
      .field("grants", "int", &DecoderStats::grants)
      .field("started", "int", &DecoderStats::started)
      .field("completed", "int", &DecoderStats::completed)
      .field("failed", "int", &DecoderStats::failed)
      .field("cancelled", "int", &DecoderStats::cancelled)
      .field("waited_for_counts", "int", &DecoderStats::waited_for_counts)
      .field("waited_for_quiet", "int", &DecoderStats::waited_for_quiet)
      .field("revokes", "int", &DecoderStats::revokes)
      .field("fences", "int", &DecoderStats::fences)
      .field("fences_proved", "int", &DecoderStats::fences_proved)
      .field("fences_late", "int", &DecoderStats::fences_late)
      .field("stale_messages", "int", &DecoderStats::stale_messages)
      .field("bad_messages", "int", &DecoderStats::bad_messages);
}

/// The keywords of Decoder() beyond engine, layout and regions.
void bind_decoder_options(nb::module_& m) {
  using kv::DecoderOptions;
  Record<DecoderOptions>(m, "DecoderOptions", "Bounds and times of a Decoder.")
      .field("tail_slot_bytes", "int", &DecoderOptions::tail_slot_bytes)
      .field("staging_record_bytes", "int", &DecoderOptions::staging_record_bytes)
      .field("plan", "PlanOptions", &DecoderOptions::plan)
      .field("channel", "int", &DecoderOptions::channel)
      .field("requests_max", "int", &DecoderOptions::requests_max)
      .field("inbox_depth", "int", &DecoderOptions::inbox_depth)
      .field("grants_per_peer", "int", &DecoderOptions::grants_per_peer)
      .field("reserve_pages", "int", &DecoderOptions::reserve_pages)
      .field("deadline", "float", &DecoderOptions::deadline, kSecondsText)
      .field("patience", "float", &DecoderOptions::patience, kSecondsText)
      .field("fence_timeout", "float", &DecoderOptions::fence_timeout, kSecondsText);
}

void construct_decoder(PyDecoder* self, const PyEngine& engine, const kv::Layout& layout,
                       const std::vector<PyRegion>& regions, const PyRegion* tail_region,
                       const kv::DecoderOptions* given, const PyRegion* staging_region) {
  kv::DecoderOptions options = given == nullptr ? kv::DecoderOptions{} : *given;
  options.layout = layout;
  std::vector<std::shared_ptr<RegionBox>> kept;
  for (const PyRegion& region : regions) {
    options.regions.push_back(&region.box->region());
    kept.push_back(region.box);
  }
  if (tail_region != nullptr) {
    options.tail_region = &tail_region->box->region();
    kept.push_back(tail_region->box);
  }
  if (staging_region != nullptr) {
    options.staging_region = &staging_region->box->region();
    kept.push_back(staging_region->box);
  }
  fabric::Engine& open = engine.get();
  auto decoder = without_gil([&] { return kv::Decoder::open(open, options); });
  if (!decoder) raise(decoder.error());
  new (self)
      PyDecoder{{engine.box->context, std::make_unique<KvMember<kv::Decoder>>(KvMember<kv::Decoder>{
                                          engine.box, std::move(kept), std::move(*decoder)})}};
}

kv::DecodeRequest request_of(const std::string& id, uint32_t attempt, uint32_t prefill,
                             const std::vector<kv::Source>& sources, uint32_t prompt_tokens,
                             nb::handle pages, std::vector<uint32_t> cached_tokens,
                             std::optional<uint32_t> tail_slot, std::optional<uint32_t> tail_rank,
                             bool per_layer, const std::optional<SecondsArg>& deadline,
                             const nb::bytes& info) {
  const auto bytes = span_of(info);
  return {.id = id,
          .attempt = attempt,
          .prefill = prefill,
          .sources = sources,
          .prompt_tokens = prompt_tokens,
          .cached_tokens = std::move(cached_tokens),
          .pages = page_ids(pages, "pages"),
          .tail_slot = tail_slot.value_or(kv::DecodeRequest::kNoTail),
          .tail_rank = tail_rank.value_or(kv::DecodeRequest::kNoTail),
          .per_layer = per_layer,
          .deadline = deadline ? deadline->get("deadline") : fabric::Nanos{},
          .info = {bytes.begin(), bytes.end()}};
}

template <class... Arguments>
void start(PyDecoder& self, Arguments... arguments) {
  kv::Decoder& decoder = self.get();
  const auto use = self.held.use_alone();
  const kv::DecodeRequest request = request_of(arguments...);
  unwrap(without_gil([&] { return decoder.start(request); }));
}

template <class... Arguments>
uint64_t count(PyDecoder& self, Arguments... arguments) {
  return unwrap(self.get().count(request_of(arguments...)));
}

std::string request_text(const char* name, const char* result) {
  return std::string("def ") + name +
         "(self, id: str, *, attempt: int = 0, prefill: int, sources: collections.abc.Sequence["
         "Source], prompt_tokens: int, pages: " +
         kPagesText +
         ", cached_tokens: collections.abc.Sequence[int] = (), tail_slot: int | None = None, "
         "tail_rank: int | None = None, per_layer: bool = False, deadline: float | "
         "datetime.timedelta | None = None, info: bytes = b'') -> " +
         result;
}

#define FABRIC_PYTHON_REQUEST_ARGS                                                                \
  "id"_a, nb::kw_only(), "attempt"_a = 0, "prefill"_a, "sources"_a, "prompt_tokens"_a, "pages"_a, \
                         "cached_tokens"_a = std::vector<uint32_t>{},                             \
                         "tail_slot"_a.none() = nb::none(), "tail_rank"_a.none() = nb::none(),    \
                         "per_layer"_a = false, "deadline"_a.none() = nb::none(),                 \
                         "info"_a = nb::bytes("", 0)
#define FABRIC_PYTHON_REQUEST_TYPES                                                             \
  const std::string&, uint32_t, uint32_t, const std::vector<kv::Source>&, uint32_t, nb::handle, \
      std::vector<uint32_t>, std::optional<uint32_t>, std::optional<uint32_t>, bool,            \
      const std::optional<SecondsArg>&, const nb::bytes&

void bind_requests(nb::class_<PyDecoder>& decoder) {
  decoder
      .def(
          "add_prefill",
          [](PyDecoder& self, const kv::Side& side) {
            kv::Decoder& object = self.get();
            const auto use = self.held.use_alone();
            kv::Refusal refusal;
            const auto number = object.add_prefill(side, &refusal);
            if (!number) raise_refused(number.error(), refusal);
            return *number;
          },
          "side"_a, "Plans the transfer from a prefill side. The same side, the same number.")
      .def(
          "source_ranks",
          [](PyDecoder& self, uint32_t prefill) {
            return unwrap(self.get().source_ranks(prefill));
          },
          "prefill"_a)
      .def("start", &start<FABRIC_PYTHON_REQUEST_TYPES>, FABRIC_PYTHON_REQUEST_ARGS,
           nb::sig(keep_text(request_text("start", "None"))),
           "Leases the pages and dispatches the request to its sources.")
      .def("count", &count<FABRIC_PYTHON_REQUEST_TYPES>, FABRIC_PYTHON_REQUEST_ARGS,
           nb::sig(keep_text(request_text("count", "int"))), "Writes of a request.")
      .def(
          "cancel", [](PyDecoder& self, const std::string& id) { unwrap(self.get().cancel(id)); },
          "id"_a)
      .def(
          "drain", [](PyDecoder& self, bool stop) { self.get().drain(stop); }, "stop"_a = false)
      .def(
          "layer_ready",
          [](PyDecoder& self, const std::string& id, uint32_t layer) {
            return unwrap(self.get().layer_ready(id, layer));
          },
          "id"_a, "layer"_a)
      .def(
          "wait_layer",
          [](PyDecoder& self, const std::string& id, uint32_t layer, TimeoutArg timeout) {
            kv::Decoder& object = self.get();
            const auto use = self.held.use_alone();
            unwrap(wait_in_slices(self.held.context(), timeout.get(), [&](fabric::Timeout slice) {
              return object.wait_layer(id, layer, slice);
            }));
          },
          "id"_a, "layer"_a, "timeout"_a.none() = nb::none(),
          "Blocks until the layer may be read.");
}

void bind_decoder(nb::module_& m) {
  nb::class_<PyDecoder> decoder(m, "Decoder", "The decode side of one rank; see <fabric/kv.h>.");
  decoder.def("__init__", &construct_decoder, "engine"_a, "layout"_a, "regions"_a,
              "tail_region"_a.none() = nb::none(), "options"_a.none() = nb::none(),
              "staging_region"_a.none() = nb::none(),
              nb::sig("def __init__(self, engine: fabric_lib._native.Engine, layout: Layout, "
                      "regions: collections.abc.Sequence[fabric_lib._native.MemoryRegion], "
                      "tail_region: fabric_lib._native.MemoryRegion | None = None, options: "
                      "DecoderOptions | None = None, staging_region: "
                      "fabric_lib._native.MemoryRegion | None = None) -> None"));
  bind_requests(decoder);
  decoder
      .def(
          "poll",
          [](PyDecoder& self, uint32_t max) {
            const auto use = self.held.use_alone();
            return poll_events<kv::DecodeEvent>(self, max);
          },
          "max"_a = 64, nb::sig("def poll(self, max: int = 64) -> list[DecodeEvent]"),
          "Does everything that is due; once per step of the inference engine.")
      .def(
          "wait",
          [](PyDecoder& self, const TimeoutArg& timeout) {
            self.get();
            const auto use = self.held.use_alone();
            wait_for_events(self, timeout);
          },
          "timeout"_a.none() = nb::none(), "Blocks until poll() has something to do.")
      .def(
          "fd", [](PyDecoder& self) { return unwrap(self.get().fd()); },
          "Readable when poll() has something to do.")
      .def(
          "page_state",
          [](PyDecoder& self, uint32_t group, uint32_t page) {
            return self.get().page_state(group, page);
          },
          "group"_a, "page"_a)
      .def(
          "load", [](PyDecoder& self, fabric::PeerId peer) { return self.get().load(peer); },
          "peer"_a)
      .def("stats", [](PyDecoder& self) { return self.get().stats(); })
      .def(
          "close", [](PyDecoder& self) { self.held.close(); },
          "Ends it. drain() it first: else no proof for its pages is left.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Decoder"))
      .def(
          "__exit__", [](PyDecoder& self, const nb::args&) { self.held.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

void bind_pool(nb::module_& m) {
  nb::class_<kv::PagePool>(m, "PagePool", "A small allocator of page ids, for examples and tests.")
      .def(nb::init<uint32_t>(), "pages"_a)
      .def(
          "allocate",
          [](kv::PagePool& self, uint32_t count) { return unwrap(self.allocate(count)); },
          "count"_a)
      .def(
          "release",
          [](kv::PagePool& self, nb::handle pages) {
            const PageIndices ids(pages, "pages");
            unwrap(self.release(ids.get()));
          },
          "pages"_a,
          nb::sig("def release(self, pages: collections.abc.Sequence[int] | typing.Any) -> None"))
      .def_prop_ro("free", &kv::PagePool::free)
      .def_prop_ro("size", &kv::PagePool::size)
      .def("is_free", &kv::PagePool::is_free, "page"_a);
}

}  // namespace

void bind_kv(nb::module_& m) {
  bind_codes(m);
  bind_decode_structs(m);
  bind_decoder_options(m);
  bind_decoder(m);
  bind_pool(m);
}

}  // namespace fabric_python

// <fabric/kv.h>: the prefill side.

#include <nanobind/stl/pair.h>

#include "engine.h"
#include "kv_member.h"
#include "record.h"

namespace fabric_python {

namespace {

namespace kv = fabric::kv;
using PyPrefiller = PyMember<kv::Prefiller>;

/// PassEntry borrows what it names; this owns it.
struct PyPassEntry {
  std::string id;
  uint32_t attempt = 0;
  std::pair<uint32_t, uint32_t> tokens;
  std::vector<std::vector<uint32_t>> more_pages;
};

void bind_prefill_structs(nb::module_& m) {
  using kv::PrefillerStats;
  using kv::PrefillEvent;
  using Kind = PrefillEvent::Kind;
  nb::enum_<Kind>(m, "PrefillEventKind")
      .value("DISPATCHED", Kind::kDispatched)
      .value("REFUSED", Kind::kRefused)
      .value("CANCELLED", Kind::kCancelled)
      .value("DECODER_LOST", Kind::kDecoderLost)
      .value("SOURCE_FREE", Kind::kSourceFree)
      .value("DRAINED", Kind::kDrained);
  Record<PrefillEvent>(m, "PrefillEvent", "What happened to a request at the prefiller.", false)
      .field("kind", "PrefillEventKind", &PrefillEvent::kind)
      .field("id", "str", &PrefillEvent::id)
      .field("attempt", "int", &PrefillEvent::attempt)
      .field("peer", "fabric_lib._native.PeerId", &PrefillEvent::peer)
      .field("code", "fabric_lib._native.Errc", &PrefillEvent::code)
      .field("refused", "RefuseCode", &PrefillEvent::refused)
      .field("prompt_tokens", "int", &PrefillEvent::prompt_tokens)
      .field("delivered", "int", &PrefillEvent::delivered)
      .field("unknown", "int", &PrefillEvent::unknown)
      .custom(
          "info", "bytes", nullptr, [](const PrefillEvent& self) { return to_bytes(self.info); },
          [](PrefillEvent&, nb::handle) {})
      .field("text", "str", &PrefillEvent::text);
  Record<PrefillerStats>(m, "PrefillerStats", "What a prefiller holds now, and has done.", false)
      .field("requests", "int", &PrefillerStats::requests)
      .field("dispatches", "int", &PrefillerStats::dispatches)
      .field("waiting", "int", &PrefillerStats::waiting)
      .field("blocked", "int", &PrefillerStats::blocked)
      .field("decoders", "int", &PrefillerStats::decoders)
      .field("tombstones", "int", &PrefillerStats::tombstones)
      .field("passes", "int", &PrefillerStats::passes)
      .field("staging_slots", "int", &PrefillerStats::staging_slots)
      .field("accepted", "int", &PrefillerStats::accepted)
      .field("refused", "int", &PrefillerStats::refused)
      .field("sent", "int", &PrefillerStats::sent)
      .field("cancelled", "int", &PrefillerStats::cancelled)
      .field("failed", "int", &PrefillerStats::failed)
      .field("layers_pushed", "int", &PrefillerStats::layers_pushed)
      .field("exhausted", "int", &PrefillerStats::exhausted)
      .field("bad_steps", "int", &PrefillerStats::bad_steps)
      .field("duplicates", "int", &PrefillerStats::duplicates)
      .field("stale_messages", "int", &PrefillerStats::stale_messages)
      .field("early_cancels", "int", &PrefillerStats::early_cancels)
      .field("bad_messages", "int", &PrefillerStats::bad_messages);
}

void bind_prefill_options(nb::module_& m) {
  using kv::PrefillerOptions;
  Record<PrefillerOptions>(m, "PrefillerOptions", "Bounds and times of a Prefiller.")
      .field("staging_slot_bytes", "int", &PrefillerOptions::staging_slot_bytes)
      .field("plan", "PlanOptions", &PrefillerOptions::plan)
      .field("channel", "int", &PrefillerOptions::channel)
      .field("requests_max", "int", &PrefillerOptions::requests_max)
      .field("offers_max", "int", &PrefillerOptions::offers_max)
      .field("decoders_max", "int", &PrefillerOptions::decoders_max)
      .field("passes_max", "int", &PrefillerOptions::passes_max)
      .field("prompt_tokens_max", "int", &PrefillerOptions::prompt_tokens_max)
      .field("inbox_depth", "int", &PrefillerOptions::inbox_depth)
      .field("watch_word", "bool", &PrefillerOptions::watch_word)
      .field("polled_word", "bool", &PrefillerOptions::polled_word)
      .field("offer_wait", "float", &PrefillerOptions::offer_wait, kSecondsText)
      .field("write_timeout", "float", &PrefillerOptions::write_timeout, kSecondsText);
  nb::class_<PyPassEntry>(m, "PassEntry", "One request in a pass of the model over all layers.")
      .def(
          "__init__",
          [](PyPassEntry* self, std::string id, std::pair<uint32_t, uint32_t> tokens,
             uint32_t attempt, nb::handle more_pages) {
            new (self)
                PyPassEntry{std::move(id), attempt, tokens, page_ids(more_pages, "more_pages")};
          },
          "id"_a, "tokens"_a, nb::kw_only(), "attempt"_a = 0, "more_pages"_a = nb::make_tuple(),
          nb::sig(keep_text(std::string("def __init__(self, id: str, tokens: tuple[int, int], *, "
                                        "attempt: int = 0, more_pages: ") +
                            kPagesText + " = ()) -> None")),
          "tokens: first and end of the chunk; the first chunk begins at 0.");
}

void construct_prefiller(PyPrefiller* self, const PyEngine& engine, const kv::Side& side,
                         uint32_t rank, const std::vector<PyRegion>& regions,
                         const kv::PrefillerOptions* given, const PyRegion* staging_region) {
  kv::PrefillerOptions options = given == nullptr ? kv::PrefillerOptions{} : *given;
  options.side = side;
  options.rank = rank;
  std::vector<std::shared_ptr<RegionBox>> kept;
  for (const PyRegion& region : regions) {
    options.regions.push_back(region.box->region().id());
    kept.push_back(region.box);
  }
  if (staging_region != nullptr) {
    options.staging_region = &staging_region->box->region();
    kept.push_back(staging_region->box);
    for (const PyRegion& region : regions) {
      options.staging_sources.push_back(region.box->region().bytes());
    }
  }
  fabric::Engine& open = engine.get();
  auto prefiller = without_gil([&] { return kv::Prefiller::open(open, options); });
  if (!prefiller) raise(prefiller.error());
  new (self) PyPrefiller{
      {engine.box->context, std::make_unique<KvMember<kv::Prefiller>>(KvMember<kv::Prefiller>{
                                engine.box, std::move(kept), std::move(*prefiller)})}};
}

void offer(PyPrefiller& self, const std::string& id, uint32_t prompt_tokens, nb::handle pages,
           uint32_t attempt, uint32_t targets) {
  kv::Prefiller& object = self.get();
  const auto use = self.held.use();
  const kv::OfferRequest request{.id = id,
                                 .attempt = attempt,
                                 .prompt_tokens = prompt_tokens,
                                 .pages = page_ids(pages, "pages"),
                                 .targets = targets};
  unwrap(without_gil([&] { return object.offer(request); }));
}

uint64_t begin_pass(PyPrefiller& self, const std::vector<PyPassEntry>& entries) {
  kv::Prefiller& object = self.get();
  const auto use = self.held.use();
  std::vector<kv::PassEntry> all;
  for (const PyPassEntry& entry : entries) {
    all.push_back({.id = entry.id,
                   .attempt = entry.attempt,
                   .tokens = {entry.tokens.first, entry.tokens.second},
                   .more_pages = entry.more_pages});
  }
  return unwrap(without_gil([&] { return object.pass(all); }));
}

void finish(PyPrefiller& self, const std::string& id, uint32_t attempt, const PyRegion* tail,
            uint64_t tail_offset, uint64_t tail_bytes) {
  kv::Prefiller& object = self.get();
  const auto use = self.held.use();
  kv::PrefillTail after{};
  if (tail != nullptr) {
    after = {.source = tail->box->region().at(tail_offset), .size_bytes = tail_bytes};
  }
  unwrap(without_gil([&] { return object.finish(id, attempt, after); }));
}

void bind_pushing(nb::class_<PyPrefiller>& prefiller) {
  prefiller
      .def(
          "offer", &offer, "id"_a, nb::kw_only(), "prompt_tokens"_a, "pages"_a, "attempt"_a = 0,
          "targets"_a = 1,
          nb::sig(keep_text(std::string("def offer(self, id: str, *, prompt_tokens: int, pages: ") +
                            kPagesText + ", attempt: int = 0, targets: int = 1) -> None")),
          "The pages that will hold the cache of a request.")
      .def("begin_pass", &begin_pass, "entries"_a,
           nb::sig("def begin_pass(self, entries: collections.abc.Sequence[PassEntry]) -> int"),
           "Prefiller::pass(): announces a pass before it is launched, returns its first step.")
      .def(
          "layer_done",
          [](PyPrefiller& self, uint64_t steps) {
            kv::Prefiller& object = self.get();
            const auto use = self.held.use();
            unwrap(without_gil([&] { return object.layer_done(steps); }));
          },
          "steps"_a, "All steps below `steps` are done: pushes the layers passed since then.")
      .def("finish", &finish, "id"_a, nb::kw_only(), "attempt"_a = 0, "tail"_a.none() = nb::none(),
           "tail_offset"_a = 0, "tail_bytes"_a = 0,
           nb::sig("def finish(self, id: str, *, attempt: int = 0, tail: "
                   "fabric_lib._native.MemoryRegion | None = None, tail_offset: int = 0, "
                   "tail_bytes: int = 0) -> None"),
           "The last pass of the request has been announced, and the tail is in place.")
      .def(
          "cancel",
          [](PyPrefiller& self, const std::string& id, uint32_t attempt) {
            unwrap(self.get().cancel(id, attempt));
          },
          "id"_a, nb::kw_only(), "attempt"_a = 0)
      .def(
          "drain", [](PyPrefiller& self, bool stop) { self.get().drain(stop); }, "stop"_a = false)
      .def(
          "set_load", [](PyPrefiller& self, uint64_t queued) { self.get().set_load(queued); },
          "queued"_a)
      .def_prop_ro(
          "layers",
          [](PyPrefiller& self) {
            const auto layers = self.get().layers();
            return std::vector<uint32_t>(layers.begin(), layers.end());
          },
          "The layers in the order of the steps of a pass.")
      .def_prop_ro(
          "word", [](PyPrefiller& self) { return reinterpret_cast<uintptr_t>(self.get().word()); },
          "The address that a GPU kernel stores the steps to; 0 without watch_word.")
      .def(
          "word_store", [](PyPrefiller& self, uint64_t steps) { self.get().word_store(steps); },
          "steps"_a);
}

}  // namespace

void bind_kv_prefiller(nb::module_& m) {
  bind_prefill_structs(m);
  bind_prefill_options(m);
  nb::class_<PyPrefiller> prefiller(m, "Prefiller",
                                    "The prefill side of one rank; see <fabric/kv.h>.");
  prefiller.def("__init__", &construct_prefiller, "engine"_a, "side"_a, "rank"_a, "regions"_a,
                "options"_a.none() = nb::none(), "staging_region"_a.none() = nb::none(),
                nb::sig("def __init__(self, engine: fabric_lib._native.Engine, side: Side, rank: "
                        "int, regions: collections.abc.Sequence[fabric_lib._native.MemoryRegion], "
                        "options: PrefillerOptions | None = None, staging_region: "
                        "fabric_lib._native.MemoryRegion | None = None) -> None"));
  bind_pushing(prefiller);
  prefiller
      .def("poll", &poll_events<kv::PrefillEvent, kv::Prefiller>, "max"_a = 64,
           nb::sig("def poll(self, max: int = 64) -> list[PrefillEvent]"))
      .def("wait", &wait_for_events<kv::Prefiller>, "timeout"_a.none() = nb::none())
      .def("fd", [](PyPrefiller& self) { return unwrap(self.get().fd()); })
      .def("stats", [](PyPrefiller& self) { return self.get().stats(); })
      .def("close", [](PyPrefiller& self) { self.held.close(); })
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Prefiller"))
      .def(
          "__exit__", [](PyPrefiller& self, const nb::args&) { self.held.close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace fabric_python

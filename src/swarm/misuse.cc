#include <array>

#include <fmt/format.h>

#include "swarm/runner.h"

// Invalid calls in the middle of a run: each must fail with the documented code and have no effect.

namespace fabric::swarm {

using namespace std::chrono_literals;

void Runner::must_fail(std::string_view what, Errc wanted, const Error& error) {
  coverage_.add("refusal", to_string(error.code));
  // A full queue or a lost peer may be detected before the invalid argument.
  if (error.code == wanted || error.code == Errc::kExhausted || error.code == Errc::kPeerLost) {
    return;
  }
  violated("invalid calls are refused with the documented code",
           fmt::format("{}: {} ({}) instead of {}", what, to_string(error.code),
                       error.what == nullptr ? "" : error.what, to_string(wanted)));
}

/// A blocking call inside a callback, which would deadlock.
void Runner::EventSink::on_misuse(void* self, const Event&) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  if (!sink.runner->is_running(sink.node, sink.incarnation)) return;
  sink.runner->must_fail("close() in a callback", Errc::kWouldDeadlock,
                         sink.runner->processes_[sink.node]->engine->close().error());
}

/// A revocation of a grant that another engine made: it must not be taken for one of this engine.
void Runner::EventSink::on_foreign_revoke(void* self, const Event& event) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  if (!sink.runner->is_running(sink.node, sink.incarnation)) return;
  if (event.code == Errc::kClosed) return;  // the engine began to close before it looked
  sink.runner->must_fail("a revocation of another engine's grant", Errc::kNotFound,
                         {.code = event.code});
}

/// A live or an ended grant of another engine, in the past or now.
void Runner::misuse_grants(Process& process, Rng& rng) {
  if (grants_.empty()) return;
  const GrantModel& grant = grants_[rng.below(grants_.size())];
  if (sessions_[grant.session].to_incarnation == process.incarnation) return;
  (void)process.engine->submit(
      Revoke{.grant = grant.id,
             .notify = Notify::call(&EventSink::on_foreign_revoke, process.sink.get())});
}

/// Connects an engine with another job key. Inconclusive if no reply comes in time.
void Runner::connect_from_other_job(Process& process, uint32_t other) {
  Config config;
  config.job_key = "of another job";
  config.log_level = LogLevel::kOff;
  auto engine = world_.open(process.node, config);
  Process* there = this->process_on(other);
  if (!engine || there == nullptr) return;
  const auto peer = engine->connect(there->engine->address());
  const auto batch = engine->make_batch();
  if (!peer || !batch) return;
  (void)engine->submit(Send{.peer = *peer, .channel = 1, .timeout = 20ms, .batch = *batch});
  const auto ended = engine->wait(*batch, 30ms);
  if (ended.error().code == Errc::kTimeout) return;
  must_fail("a peer of another job", Errc::kWrongJob, ended.error());
}

/// Valid calls in the wrong context: inside a callback, with another version, from another job.
void Runner::misuse_environment(Process& process, uint32_t other, Rng& rng) {
  Engine& engine = *process.engine;
  switch (rng.below(3)) {
    case 0:
      (void)engine.submit(
          Timer{.after = 1us, .notify = Notify::call(&EventSink::on_misuse, process.sink.get())});
      return;
    case 1: {
      auto address = this->process_on(other)->engine->address();
      address[4] ^= std::byte{0xff};  // the major version of its format
      return must_fail("an address of another version", Errc::kVersion,
                       engine.connect(address).error());
    }
    default:
      return connect_from_other_job(process, other);
  }
}

/// Lists that are empty or do not exist, and ranges that are not in their list.
void Runner::misuse_lists(Process& process, const SourceRange& source, RemoteRegion region,
                          Rng& rng) {
  Engine& engine = *process.engine;
  const uint64_t choice = rng.below(3);
  if (choice == 0) {
    return must_fail(
        "an empty page list", Errc::kInvalidArgument,
        engine.submit(PagedWrite{.source = source.ref.region, .target = region, .page_bytes = 64})
            .error());
  }
  if (choice == 1) {
    const Pages unknown{.list = PageListId(3, 1)};
    return must_fail("an unknown page list", Errc::kNotFound,
                     engine
                         .submit(PagedWrite{.source = source.ref.region,
                                            .source_pages = unknown,
                                            .target = region,
                                            .target_pages = unknown})
                         .error());
  }
  const ListedWrite one{.size_bytes = 1};
  const auto list = engine.make_write_list({&one, 1});
  if (!list) return;
  must_fail(
      "a range past its list", Errc::kOutOfBounds,
      engine
          .submit(ListedWrites{
              .list = *list, .first = 1, .count = 1, .source = source.ref, .target = region.at(0)})
          .error());
}

void Runner::misuse(Process& process, uint32_t other, Rng& rng) {
  Engine& engine = *process.engine;
  Session* session = session_to(process, other);
  if (session == nullptr) return;
  const SourceRange source = source_for(process, 64, 0);
  if (source.bytes.empty()) return;
  const uint32_t arena = arena_for(*session, 64);
  const RemoteRegion region = arena == kNone ? RemoteRegion{} : remote_region(*session, arena);
  if (!region) return;
  const std::array<std::byte, 8> nonsense{};
  switch (rng.below(15)) {
    case 0:
      return must_fail(
          "a write past its source", Errc::kOutOfBounds,
          engine
              .submit(Write{
                  .source = {source.ref.region, 1u << 20}, .target = region.at(0), .size_bytes = 1})
              .error());
    case 1:
      return must_fail("a write from no region", Errc::kInvalidArgument,
                       engine.submit(Write{.target = region.at(0), .size_bytes = 1}).error());
    case 2:
      return must_fail("a message that is too large", Errc::kTooLarge,
                       engine
                           .submit(Send{.peer = session->peer,
                                        .channel = 1,
                                        .bytes = std::vector<std::byte>((1u << 20) + 1)})
                           .error());
    case 3:
      return must_fail("an invalid address", Errc::kBadFormat, engine.connect(nonsense).error());
    case 4:
      return must_fail("an invalid descriptor", Errc::kBadFormat,
                       engine.import_region(session->peer, nonsense).error());
    case 5: {
      auto counter = engine.make_counter();
      if (!counter) return;
      const auto armed = counter->expect(1, {}, 1ms);
      if (!armed) return;
      return must_fail("a second expectation on one counter", Errc::kBusy,
                       counter->expect(1, {}, 1ms).error());
    }
    case 6:
      return must_fail(
          "a negative timeout", Errc::kInvalidArgument,
          engine.submit(Write{.source = source.ref, .target = region.at(0), .timeout = Nanos(-5)})
              .error());
    case 7:
      return must_fail("a cancel of an unknown operation", Errc::kNotFound,
                       engine.cancel(OpId(1u << 20, 7)).error());
    case 8:
      return must_fail("a descriptor of memory without remote_write", Errc::kPermission,
                       process.sources.back().region->desc().error());
    case 9:
      return must_fail(
          "a second listener", Errc::kBusy,
          engine.listen(1, Notify::call(&EventSink::on_message, process.sink.get())).error());
    case 10:
      return must_fail("a send to an unknown peer", Errc::kNotFound,
                       engine.submit(Send{.peer = PeerId(77, 77), .channel = 1}).error());
    case 11:
    case 12:
      return misuse_environment(process, other, rng);
    case 13:
      return misuse_grants(process, rng);
    default:
      return misuse_lists(process, source, region, rng);
  }
}

}  // namespace fabric::swarm

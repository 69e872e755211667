#include <fabric/kv.h>

#include "workloads/kv/prefiller_core.h"

namespace fabric::kv {

struct Prefiller::Impl {
  Impl(Engine& engine, const PrefillerOptions& options, Inbox inbox)
      : core(engine, options, std::move(inbox)) {}
  prefill::PrefillerCore core;
};

namespace {

Result<void> check_staging(const PrefillerOptions& options) {
  if (options.staging_region == nullptr) return {};
  if (options.staging_slot_bytes == 0 ||
      options.staging_slot_bytes > options.staging_region->size_bytes()) {
    return fail(Errc::kInvalidArgument, "staging_slot_bytes: 0, or larger than staging_region");
  }
  if (options.staging_region->bytes().empty()) {
    return fail(Errc::kUnsupported, "staging_region: not host memory");
  }
  const std::vector<uint64_t>& sizes = options.side.ranks[options.rank].region_bytes;
  bool enough = options.staging_sources.size() == sizes.size();
  for (size_t i = 0; enough && i < sizes.size(); ++i) {
    enough = options.staging_sources[i].size() >= sizes[i];
  }
  if (!enough) {
    return fail(Errc::kInvalidArgument,
                "staging_sources: not the bytes of each region of the layout",
                static_cast<int32_t>(sizes.size()));
  }
  return {};
}

Result<void> check_prefiller(const PrefillerOptions& options) {
  // encode() checks every layout and their order.
  if (auto ok = encode(options.side); !ok) return ok.error();
  if (options.rank >= options.side.ranks.size()) {
    return fail(Errc::kInvalidArgument, "rank: not in the side",
                static_cast<int32_t>(options.side.ranks.size()));
  }
  const size_t regions = options.side.ranks[options.rank].region_bytes.size();
  if (options.regions.size() != regions) {
    return fail(Errc::kInvalidArgument, "regions: not one for each region of the layout",
                static_cast<int32_t>(regions));
  }
  if (auto ok = check_staging(options); !ok) return ok;
  const char* wrong = options.requests_max == 0          ? "requests_max"
                      : options.offers_max == 0          ? "offers_max"
                      : options.decoders_max == 0        ? "decoders_max"
                      : options.passes_max == 0          ? "passes_max"
                      : options.prompt_tokens_max == 0   ? "prompt_tokens_max"
                      : options.inbox_depth == 0         ? "inbox_depth"
                      : options.offer_wait <= Nanos{}    ? "offer_wait"
                      : options.write_timeout <= Nanos{} ? "write_timeout"
                                                         : nullptr;
  if (wrong != nullptr) return fail(Errc::kInvalidArgument, wrong);
  return {};
}

}  // namespace

Result<Prefiller> Prefiller::open(Engine& engine, const PrefillerOptions& options) {
  if (auto ok = check_prefiller(options); !ok) return ok.error();
  auto inbox = engine.make_inbox(options.inbox_depth);
  if (!inbox) return inbox.error();
  auto impl = std::make_unique<Impl>(engine, options, *std::move(inbox));
  if (auto opened = impl->core.open(); !opened) return opened.error();
  return Prefiller(std::move(impl));
}

Prefiller::Prefiller(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Prefiller::Prefiller(Prefiller&&) noexcept = default;
Prefiller& Prefiller::operator=(Prefiller&&) noexcept = default;
Prefiller::~Prefiller() = default;

Result<void> Prefiller::offer(const OfferRequest& request) { return impl_->core.offer(request); }
Result<uint64_t> Prefiller::pass(std::span<const PassEntry> entries) {
  return impl_->core.pass(entries);
}
Result<void> Prefiller::layer_done(uint64_t steps) { return impl_->core.layer_done(steps); }
uint64_t* Prefiller::word() const noexcept {
  Watcher* watcher = impl_->core.watcher();
  return watcher == nullptr ? nullptr : watcher->word();
}
uint64_t Prefiller::word_gpu_address() const noexcept {
  Watcher* watcher = impl_->core.watcher();
  return watcher == nullptr ? 0 : watcher->gpu_address();
}
void Prefiller::word_store(uint64_t steps) noexcept {
  if (Watcher* watcher = impl_->core.watcher(); watcher != nullptr) watcher->store(steps);
}
std::span<const uint32_t> Prefiller::layers() const noexcept { return impl_->core.layers(); }
Result<void> Prefiller::finish(std::string_view id, uint32_t attempt, const PrefillTail& tail) {
  return impl_->core.finish(id, attempt, tail);
}
Result<void> Prefiller::cancel(std::string_view id, uint32_t attempt) {
  return impl_->core.cancel(id, attempt);
}
void Prefiller::drain(bool stop) { impl_->core.drain(stop); }
void Prefiller::set_load(uint64_t queued) noexcept { impl_->core.set_load(queued); }
uint32_t Prefiller::poll(std::span<PrefillEvent> out) { return impl_->core.poll(out); }
Result<void> Prefiller::wait(Timeout timeout) { return impl_->core.wait(timeout); }
Result<int> Prefiller::fd() { return impl_->core.fd(); }
PrefillerStats Prefiller::stats() const { return impl_->core.stats(); }

}  // namespace fabric::kv

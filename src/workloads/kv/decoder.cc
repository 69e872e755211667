#include <fabric/kv.h>

#include "workloads/kv/decoder_core.h"

namespace fabric::kv {

struct Decoder::Impl {
  Impl(Engine& engine, const DecoderOptions& options, Inbox inbox)
      : core(engine, options, std::move(inbox)) {}
  decode::DecoderCore core;
};

namespace {

Result<void> check_regions(const DecoderOptions& options) {
  const std::vector<uint64_t>& sizes = options.layout.region_bytes;
  if (options.regions.size() != sizes.size()) {
    return fail(Errc::kInvalidArgument, "regions: not one for each region of the layout",
                static_cast<int32_t>(sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (options.regions[i] == nullptr || options.regions[i]->size_bytes() < sizes[i]) {
      return fail(Errc::kInvalidArgument, "regions: null, or smaller than the layout says",
                  static_cast<int32_t>(i));
    }
  }
  if (options.tail_region != nullptr &&
      (options.tail_slot_bytes == 0 ||
       options.tail_slot_bytes > options.tail_region->size_bytes())) {
    return fail(Errc::kInvalidArgument, "tail_slot_bytes: 0, or larger than tail_region");
  }
  if (options.staging_region == nullptr) return {};
  if (options.staging_record_bytes == 0 || options.staging_record_bytes > kStagingRecordBytesMax ||
      options.staging_record_bytes > options.staging_region->size_bytes()) {
    return fail(Errc::kInvalidArgument,
                "staging_record_bytes: 0, or larger than staging_region or "
                "kStagingRecordBytesMax");
  }
  bool host = !options.staging_region->bytes().empty();
  for (const MemoryRegion* region : options.regions) host = host && !region->bytes().empty();
  if (!host) return fail(Errc::kUnsupported, "staging_region: it and regions are host memory");
  return {};
}

Result<void> check_limits(const DecoderOptions& options) {
  const char* wrong = options.requests_max == 0      ? "requests_max"
                      : options.inbox_depth == 0     ? "inbox_depth"
                      : options.grants_per_peer == 0 ? "grants_per_peer"
                      : options.grants_per_peer > decode::kGrantsPerPeerMax
                          ? "grants_per_peer: more than 32"
                      : options.deadline <= Nanos{}      ? "deadline"
                      : options.patience <= Nanos{}      ? "patience"
                      : options.fence_timeout <= Nanos{} ? "fence_timeout"
                                                         : nullptr;
  if (wrong != nullptr) return fail(Errc::kInvalidArgument, wrong);
  return {};
}

}  // namespace

Result<Decoder> Decoder::open(Engine& engine, const DecoderOptions& options) {
  if (auto ok = check(options.layout); !ok) return ok.error();
  if (auto ok = check_regions(options); !ok) return ok.error();
  if (auto ok = check_limits(options); !ok) return ok.error();
  auto inbox = engine.make_inbox(options.inbox_depth);
  if (!inbox) return inbox.error();
  auto impl = std::make_unique<Impl>(engine, options, *std::move(inbox));
  if (auto opened = impl->core.open(); !opened) return opened.error();
  return Decoder(std::move(impl));
}

Decoder::Decoder(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

Result<uint32_t> Decoder::add_prefill(const Side& side, Refusal* refusal) {
  return impl_->core.add_prefill(side, refusal);
}
Result<std::vector<uint32_t>> Decoder::source_ranks(uint32_t prefill) const {
  const auto found = impl_->core.find_prefill(prefill);
  if (!found) return found.error();
  return (*found)->ranks;
}
Result<uint64_t> Decoder::count(const DecodeRequest& request) const {
  return impl_->core.count(request);
}
Result<void> Decoder::start(const DecodeRequest& request) { return impl_->core.start(request); }
Result<void> Decoder::cancel(std::string_view id) { return impl_->core.cancel(id); }
void Decoder::drain(bool stop) { impl_->core.drain(stop); }
Result<bool> Decoder::layer_ready(std::string_view id, uint32_t layer) const {
  return impl_->core.layer_ready(id, layer);
}
Result<void> Decoder::wait_layer(std::string_view id, uint32_t layer, Timeout timeout) {
  return impl_->core.wait_layer(id, layer, timeout);
}
uint32_t Decoder::poll(std::span<DecodeEvent> out) { return impl_->core.poll(out); }
Result<void> Decoder::wait(Timeout timeout) { return impl_->core.wait(timeout); }
Result<int> Decoder::fd() { return impl_->core.fd(); }
PageState Decoder::page_state(uint32_t group, uint32_t page) const noexcept {
  return impl_->core.page_state(group, page);
}
std::optional<PrefillLoad> Decoder::load(PeerId peer) const { return impl_->core.load(peer); }
DecoderStats Decoder::stats() const { return impl_->core.stats(); }

}  // namespace fabric::kv

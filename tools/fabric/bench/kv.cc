// kv: the KV cache of requests, from a kv::Prefiller to a kv::Decoder, one request after the other.
// Each layer is pushed when it is done. Then the time from the layer word to the first post.

#include <algorithm>
#include <atomic>
#include <optional>

#include <fabric/kv.h>

#include "pattern.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

constexpr uint64_t kSamples = 1000;
/// On networks whose sender copies the bytes (shm) the turn of the first post copies what it posts.
/// With larger layers the copy would be all that is measured.
constexpr uint64_t kSampledLayerBytesMax = 4u << 10;
constexpr uint32_t kTurnsBetweenSamples = 32;

/// A token is a page, and an element a byte: a page is one write of any size.
kv::Layout cache_layout(const BenchPlan& plan, uint64_t page_bytes) {
  kv::CacheGroup group{.name = "full", .page_tokens = 1, .pages = plan.pages};
  for (uint32_t i = 0; i < plan.layers; ++i) group.layers.push_back(i);
  kv::Layout layout{.region_bytes = {0}};
  for (uint32_t i = 0; i < plan.tensors; ++i) {
    kv::Tensor tensor{.name = plan.tensors == 1 ? "kv" : i == 0 ? "k" : "v", .dtype = "bytes"};
    tensor.element_bytes = 1;
    tensor.heads_total = 1;
    tensor.head_size = static_cast<uint32_t>(page_bytes);
    tensor.offset_bytes = layout.region_bytes[0];
    layout.region_bytes[0] += need(kv::place_tensor(tensor, {.page_tokens = 1,
                                                             .pages = plan.pages,
                                                             .layers = plan.layers,
                                                             .page_align_bytes = kWordBytes}),
                                   "the layout");
    group.tensors.push_back(tensor);
  }
  layout.groups = {std::move(group)};
  return layout;
}

class Kv final : public Workload {
 public:
  Kv(Side& side, const Layout& layout)
      : Workload(side, layout),
        cache_(cache_layout(side.plan(), layout.size)),
        from_(page_order(side.plan().pages, kSourceOrder)),
        to_(page_order(side.plan().pages, kTargetOrder)),
        has_samples_(!side.plan().threaded &&
                     layout.counts / side.plan().layers * layout.size <= kSampledLayerBytesMax) {}

  void fill_source(uint64_t round) override {
    Workload::fill_source(round);
    if (prefiller_) return;
    prefiller_ =
        need(kv::Prefiller::open(side_.first().engine, {.side = kv::Side{{cache_}},
                                                        .regions = {side_.first().memory.id()},
                                                        .watch_word = true}),
             "prefiller");
  }

  void ready_target(uint64_t) override {
    if (decoder_) return;
    BenchEngine& local = side_.first();
    decoder_ = need(kv::Decoder::open(local.engine, {.layout = cache_, .regions = {&local.memory}}),
                    "decoder");
    prefill_ = need(decoder_->add_prefill(kv::Side{{cache_}}), "add_prefill");
  }

  void send(uint64_t operations) override {
    offer(requests_ + 1);
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t begin = begin_pass();
      for (uint32_t layer = 1; layer <= side_.plan().layers; ++layer) {
        need(prefiller_->layer_done(begin + layer), "layer_done");
        side_.turn();
      }
      // The next one is offered early, so that its dispatch need not wait.
      if (i + 1 < operations) offer(requests_ + 1);
      finish();
    }
    side_.await(side_.first(), 1);
    await_sources();
  }

  void receive(uint64_t operations) override {
    for (uint64_t i = 0; i < operations; ++i) receive_one();
    side_.send_reply();
  }

  /// From the store to the word until the end of the turn that posts the first write: never less
  /// than the time to the post.
  void send_trips() override {
    word_to_post_ns.clear();
    while (has_samples_ && word_to_post_ns.size() < kSamples) {
      offer(requests_ + 1);
      const uint64_t begin = begin_pass();
      for (uint32_t layer = 1; layer <= side_.plan().layers; ++layer) {
        word_to_post_ns.push_back(time_of(begin + layer));
        for (uint32_t i = 0; i < kTurnsBetweenSamples; ++i) side_.turn();
      }
      finish();
      await_sources();
    }
  }

  void receive_trips() override {
    const uint64_t layers = side_.plan().layers;
    for (uint64_t i = 0; has_samples_ && i < (kSamples + layers - 1) / layers; ++i) receive_one();
  }

  bool verify(uint64_t round, uint64_t) override {
    for (uint64_t first = 0; first < layout_.counts; first += from_.size()) {
      for (uint64_t page = 0; page < from_.size(); ++page) {
        const auto bytes =
            side_.first().bytes.subspan((first + to_[page]) * layout_.stride, layout_.size);
        if (!matches(bytes, round, (first + from_[page]) * layout_.stride)) return false;
      }
    }
    return true;
  }

 private:
  // ---- The sender: a prefill rank ----

  void offer(uint64_t number) {
    need(prefiller_->offer(
             {.id = std::to_string(number), .prompt_tokens = side_.plan().pages, .pages = {from_}}),
         "offer");
  }

  /// Begins the next request as soon as it is asked for.
  uint64_t begin_pass() {
    ++requests_;
    while (dispatched_ < requests_) turn_prefiller();
    const std::string id = std::to_string(requests_);
    const kv::PassEntry entry{.id = id, .tokens = {0, side_.plan().pages}};
    return need(prefiller_->pass({&entry, 1}), "pass");
  }
  void finish() { need(prefiller_->finish(std::to_string(requests_), 0), "finish"); }
  void await_sources() {
    while (freed_ < requests_) turn_prefiller();
  }

  void turn_prefiller() {
    side_.turn();
    kv::PrefillEvent event;
    while (prefiller_->poll({&event, 1}) == 1) {
      using Kind = kv::PrefillEvent::Kind;
      side_.note_progress();
      dispatched_ += event.kind == Kind::kDispatched;
      freed_ += event.kind == Kind::kSourceFree;
      if (event.kind == Kind::kDispatched ||
          (event.kind == Kind::kSourceFree && event.code == Errc::kOk)) {
        continue;
      }
      throw BenchError(fmt::format("request {}: {} ({}) {}", event.id, to_string(event.kind),
                                   to_string(event.code), event.text));
    }
  }

  uint32_t time_of(uint64_t steps) {
    using std::chrono::steady_clock;
    const Engine& engine = side_.first().engine;
    const auto posted = [&] {
      const Traffic tx = engine.stats().tx;
      return tx.posted + tx.ops;
    };
    const uint64_t before = posted();
    auto begin = steady_clock::now();
    // As a GPU stores it. Pairs with the acquire load of the watcher.
    std::atomic_ref(*prefiller_->word()).store(steps, std::memory_order_release);
    steady_clock::duration took{};
    for (;;) {
      side_.turn();
      took += steady_clock::now() - begin;
      if (posted() != before) break;
      begin = steady_clock::now();
    }
    return static_cast<uint32_t>(std::chrono::nanoseconds(took).count());
  }

  // ---- The receiver: a decode rank ----

  void receive_one() {
    ++requests_;
    need(decoder_->start({.id = std::to_string(requests_),
                          .prefill = prefill_,
                          .sources = {{.rank = 0, .peer = side_.first().remote.peer}},
                          .prompt_tokens = side_.plan().pages,
                          .pages = {to_}}),
         "start");
    for (bool free = false; !free;) {
      side_.turn();
      kv::DecodeEvent event;
      while (decoder_->poll({&event, 1}) == 1) {
        using Kind = kv::DecodeEvent::Kind;
        side_.note_progress();
        free = event.kind == Kind::kMayWrite;
        if (free || event.kind == Kind::kAccepted || event.kind == Kind::kComplete) continue;
        throw BenchError(fmt::format("request {}: {} ({}) {}", event.id, to_string(event.kind),
                                     to_string(event.fail), event.text));
      }
    }
  }

  const kv::Layout cache_;
  const std::vector<uint32_t> from_, to_;  ///< the pages of a request, here and there
  const bool has_samples_;
  uint64_t requests_ = 0;  ///< begun; the same numbers on both sides are their ids
  // One of them, by side.
  std::optional<kv::Prefiller> prefiller_;
  std::optional<kv::Decoder> decoder_;
  uint64_t dispatched_ = 0, freed_ = 0;
  uint32_t prefill_ = 0;
};

}  // namespace

std::unique_ptr<Workload> make_kv(Side& side, const Layout& layout) {
  return std::make_unique<Kv>(side, layout);
}

}  // namespace fabric::tool::bench

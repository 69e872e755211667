#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "model.h"
#include "roles.h"

// A decoder: requests prompts into pages of its cache, waits until all pages are counted, checks
// every byte and acknowledges. Each slot has a thread, so that one request is checked while the
// next arrives.

namespace demo {

namespace {

constexpr uint32_t kPoolPages = kSlots * kLayers * kPagesPerLayer + kPagesLong;

class Decoder {
 public:
  Decoder(const ControlSocket& control, const RoleOptions& options)
      : control_(control),
        receiver_id_(options.receiver_id),
        engine_(open_engine(control, options, "decode")),
        cache_(
            need(engine_.allocate({.size_bytes = uint64_t{kPoolPages} * kPageBytes}), "allocate")),
        subscription_(
            need(engine_.subscribe(fabric::Notify::call<&Decoder::on_event>(this)), "subscribe")) {
    // Touch the pages of ordinary prompts now, as a server does when it starts.
    const auto hot = cache_.bytes().first(uint64_t{kPoolPages - kPagesLong} * kPageBytes);
    std::memset(hot.data(), 0, hot.size());
    for (uint32_t i = 0; i < kSlots; ++i) {
      counters_.push_back(need(engine_.make_counter(), "make_counter"));
    }
  }

  int run() {
    const std::string offer = need(engine_.offer(cache_, {}), "offer");
    control_.send({.kind = MessageHeader::Kind::kOffer, .receiver_id = receiver_id_}, offer);
    std::vector<std::thread> slots;
    for (fabric::Counter& counter : counters_) {
      slots.emplace_back([this, &counter] { serve(counter); });
    }
    for (;;) {
      const Message message = control_.read();
      if (message.header.kind == MessageHeader::Kind::kDie) {
        die_requested_ = true;
      } else {
        // kFinish, or the parent has died.
        finish(slots);
        return 0;
      }
    }
  }

 private:
  /// Runs on the engine's callback thread.
  void on_event(const fabric::Event& event) {
    const auto connected = static_cast<uint64_t>(fabric::PeerState::kConnected);
    if (event.kind != fabric::EventKind::kPeer || event.value != connected) return;
    const std::lock_guard lock(mutex_);
    source_ = event.peer;
    source_connected_.notify_all();
  }

  void serve(fabric::Counter& counter) {
    {
      std::unique_lock lock(mutex_);
      source_connected_.wait(lock, [&] { return source_ || finishing_; });
    }
    while (!finishing_) {
      // The pool has pages for only one long request.
      const bool last = die_requested_.exchange(false);
      const uint32_t per_layer = last ? kPagesPerLayerLong : kPagesPerLayer;
      const std::vector<uint32_t> pages = pool_.take(kLayers * per_layer);
      const PageRequest page_request{
          .key = counter.key().wire(), .request = ++requests_, .pages_per_layer = per_layer};
      send(page_request, std::as_bytes(std::span(pages)));
      if (last) die_mid_request(counter, page_request.request, pages.size());

      // One count per page, whichever lane it took and in any order.
      const auto all = counter.wait(pages.size(), fabric::Timeout::forever());
      if (!all && all.error().code == fabric::Errc::kReleased) return;
      need(all, "wait");
      Ack ack{
          .request = page_request.request, .pages_counted = pages.size(), .counted_ns = now_ns()};
      ack.counts_extra = counter.count();
      check_pages(pages, page_request, ack);
      pool_.give_back(pages);
      if (last)
        die_requested_ = true;  // it completed too early to be interrupted: try the next one
      send(ack, {});
    }
  }

  /// Kills its own process in the middle of a request: the parent could not time that precisely.
  /// Nothing is closed or shut down before. Returns if the request completed too early.
  void die_mid_request(const fabric::Counter& counter, uint64_t request, uint64_t pages) {
    uint64_t there = 0;
    while (there < pages / 8 && !finishing_) there = counter.count();
    if (there == pages || finishing_) return;
    control_.send({.kind = MessageHeader::Kind::kDying,
                   .receiver_id = receiver_id_,
                   .request = request,
                   .count = there,
                   .at_ns = now_ns()});
    ::kill(::getpid(), SIGKILL);
  }

  void check_pages(const std::vector<uint32_t>& pages, const PageRequest& page_request, Ack& ack) {
    for (uint32_t i = 0; i < pages.size(); ++i) {
      const Stamp expected{.receiver = receiver_id_,
                           .request = page_request.request,
                           .layer = i / page_request.pages_per_layer,
                           .page = i % page_request.pages_per_layer};
      if (page_is_correct(page_at(cache_.bytes(), pages[i]), expected)) {
        ack.bytes_correct += kPageBytes;
      } else {
        ++ack.pages_wrong;
      }
    }
  }

  template <class T>
  void send(const T& message, std::span<const std::byte> rest) {
    std::vector<std::byte> bytes(sizeof(message) + rest.size());
    std::memcpy(bytes.data(), &message, sizeof(message));
    if (!rest.empty()) std::memcpy(bytes.data() + sizeof(message), rest.data(), rest.size());
    fabric::PeerId source;
    {
      const std::lock_guard lock(mutex_);
      source = source_;
    }
    need(engine_.submit(fabric::Send{.peer = source, .channel = kChannel, .bytes = bytes}), "send");
  }

  void finish(std::vector<std::thread>& slots) {
    uint64_t left = 0;
    for (const fabric::Counter& counter : counters_) left += counter.count();
    {
      const std::lock_guard lock(mutex_);
      finishing_ = true;
      source_connected_.notify_all();
    }
    for (fabric::Counter& counter : counters_) counter.release();
    for (std::thread& slot : slots) slot.join();
    control_.send(
        {.kind = MessageHeader::Kind::kFinished, .receiver_id = receiver_id_, .count = left});
  }

  const ControlSocket& control_;
  const uint32_t receiver_id_;
  Pool pool_{kPoolPages, Pool::Reuse::kNewestFirst};
  std::atomic<uint64_t> requests_{0};
  std::atomic<bool> die_requested_{false};
  std::atomic<bool> finishing_{false};
  std::mutex mutex_;
  std::condition_variable source_connected_;
  fabric::PeerId source_{};  ///< under mutex_
  fabric::Engine engine_;
  fabric::MemoryRegion cache_;
  std::vector<fabric::Counter> counters_;
  fabric::Subscription subscription_;
};

}  // namespace

int run_receiver(const ControlSocket& control, const RoleOptions& options) {
  Decoder receiver(control, options);
  return receiver.run();
}

}  // namespace demo

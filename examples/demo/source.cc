#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "model.h"
#include "roles.h"

// A prefiller: writes the pages of a layer as soon as it is computed, one operation for each layer,
// while the next layer is computed. A decoder then waits only for the last layer.

namespace demo {

namespace {

using fabric::Errc;
using fabric::PeerState;

/// A long prompt and twice an ordinary one per receiver, so that pages rotate and the same bytes do
/// not go to the same target twice.
constexpr uint32_t kPoolPages = kPagesLong + 4 * kLayers * kPagesPerLayer;

struct Request {
  PageRequest page_request{};
  std::vector<uint32_t> pages{};  ///< of the receiver's cache
};

class Source;

/// One receiver, and the thread that serves it.
struct Stream {
  Stream(Source& owner, uint32_t number, const fabric::Offer& theirs, fabric::Batch operations)
      : source(owner), receiver_id(number), offer(theirs), batch(std::move(operations)) {}

  Source& source;
  const uint32_t receiver_id;
  const fabric::Offer offer;
  fabric::Batch batch;
  std::thread thread{};

  std::mutex mutex{};
  std::condition_variable changed{};
  std::deque<Request> requests{};
  std::map<uint64_t, int64_t> submitted_ns{};  ///< last layer of requests not yet acknowledged
  bool stopping = false;                       ///< start no more requests
  bool lost = false;

  void on_completion(const fabric::Event& event);
};

class Source {
 public:
  Source(const ControlSocket& control, const RoleOptions& options)
      : control_(control),
        engine_(open_engine(control, options, "prefill")),
        cache_(
            need(engine_.allocate({.size_bytes = uint64_t{kPoolPages} * kPageBytes}), "allocate")),
        listening_(need(engine_.listen(kChannel, fabric::Notify::call<&Source::on_message>(this)),
                        "listen")),
        subscription_(
            need(engine_.subscribe(fabric::Notify::call<&Source::on_event>(this)), "subscribe")) {
    for (uint32_t i = 0; i < kPoolPages; ++i) {
      body_sums_.push_back(fill_body(page_at(cache_.bytes(), i), i));
    }
  }

  int run() {
    control_.send({.kind = MessageHeader::Kind::kReady});
    for (;;) {
      const Message message = control_.read();
      switch (message.header.kind) {
        case MessageHeader::Kind::kJoin:
          join(message.header.receiver_id, message.text);
          break;
        case MessageHeader::Kind::kPace:
          layer_ns_ = message.header.since_ns;
          request_ns_ = message.header.at_ns;
          break;
        case MessageHeader::Kind::kDrain:
          drain();
          control_.send(
              {.kind = MessageHeader::Kind::kDrained, .count = accepted_, .extra = completed_});
          break;
        default:  // kFinish, or the parent has died
          drain();
          return 0;
      }
    }
  }

  void on_completion(Stream& stream, const fabric::Event& event) {
    ++completed_;
    if (event.code == Errc::kOk) return;
    control_.send({.kind = MessageHeader::Kind::kFailed,
                   .receiver_id = stream.receiver_id,
                   .code = static_cast<uint32_t>(event.code),
                   .request = event.tag,
                   .count = event.parts_failed,
                   .at_ns = now_ns()});
  }

 private:
  void join(uint32_t receiver_id, const std::string& offer) {
    // Held until the stream is on the list: its first request may arrive right after accept().
    const std::lock_guard lock(mutex_);
    auto stream =
        std::make_unique<Stream>(*this, receiver_id, need(engine_.accept(offer), "accept"),
                                 need(engine_.make_batch(), "make_batch"));
    stream->thread = std::thread([this, &s = *stream] { serve(s); });
    streams_.push_back(std::move(stream));
  }

  Stream* find(fabric::PeerId peer) {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      if (stream->offer.peer == peer) return stream.get();
    }
    return nullptr;
  }

  // Callbacks run on the engine's callback thread.

  void on_message(const fabric::Event& event) {
    Stream* stream = find(event.peer);
    uint32_t tag = 0;
    if (stream == nullptr || event.size_bytes < sizeof(tag)) return;
    std::memcpy(&tag, event.data, sizeof(tag));
    if (tag == PageRequest::kTag && event.size_bytes >= sizeof(PageRequest)) {
      on_page_request(*stream, event.bytes());
    } else if (tag == Ack::kTag && event.size_bytes == sizeof(Ack)) {
      Ack ack;
      std::memcpy(&ack, event.data, sizeof(ack));
      on_ack(*stream, ack);
    }
  }

  void on_page_request(Stream& stream, std::span<const std::byte> bytes) {
    Request request;
    std::memcpy(&request.page_request, bytes.data(), sizeof(PageRequest));
    request.pages.resize(kLayers * request.page_request.pages_per_layer);
    const auto pages = std::as_writable_bytes(std::span(request.pages));
    if (bytes.size() != sizeof(PageRequest) + pages.size()) return;
    std::memcpy(pages.data(), bytes.data() + sizeof(PageRequest), pages.size());
    const std::lock_guard lock(stream.mutex);
    stream.requests.push_back(std::move(request));
    stream.changed.notify_all();
  }

  void on_ack(Stream& stream, const Ack& ack) {
    const std::lock_guard lock(stream.mutex);
    const auto submitted = stream.submitted_ns.find(ack.request);
    if (submitted == stream.submitted_ns.end()) return;
    control_.send({.kind = MessageHeader::Kind::kDone,
                   .receiver_id = stream.receiver_id,
                   .request = ack.request,
                   .count = ack.pages_counted,
                   .wrong = ack.pages_wrong,
                   .extra = ack.counts_extra,
                   .bytes = ack.bytes_correct,
                   .since_ns = submitted->second,
                   .at_ns = ack.counted_ns});
    stream.submitted_ns.erase(submitted);
    stream.changed.notify_all();
  }

  void on_event(const fabric::Event& event) {
    Stream* stream = find(event.peer);
    if (event.kind != fabric::EventKind::kPeer || stream == nullptr) return;
    control_.send({.kind = MessageHeader::Kind::kState,
                   .receiver_id = stream->receiver_id,
                   .code = static_cast<uint32_t>(event.value),
                   .at_ns = now_ns()});
    if (static_cast<PeerState>(event.value) < PeerState::kLost) return;
    const std::lock_guard lock(stream->mutex);
    stream->stopping = stream->lost = true;
    stream->changed.notify_all();
  }

  // One thread for each receiver.

  void serve(Stream& stream) {
    int64_t due_ns = now_ns();
    while (auto request = next_request(stream, due_ns)) {
      due_ns = std::max(due_ns, now_ns() - request_ns_) + request_ns_;
      push(stream, *request);
    }
  }

  std::optional<Request> next_request(Stream& stream, int64_t due_ns) {
    sleep_until(due_ns);
    std::unique_lock lock(stream.mutex);
    stream.changed.wait(lock, [&] { return stream.stopping || !stream.requests.empty(); });
    if (stream.stopping) return std::nullopt;
    Request request = std::move(stream.requests.front());
    stream.requests.pop_front();
    return request;
  }

  void push(Stream& stream, const Request& request) {
    const PageRequest& page_request = request.page_request;
    const uint32_t per_layer = page_request.pages_per_layer;
    const std::vector<uint32_t> pages = pool_.take(kLayers * per_layer);
    // A long prompt is taken as already computed: all layers are sent at once.
    const int64_t pace_ns = per_layer == kPagesPerLayerLong ? 0 : layer_ns_.load();
    control_.send({.kind = MessageHeader::Kind::kStarted,
                   .receiver_id = stream.receiver_id,
                   .request = page_request.request,
                   .count = pages.size()});
    int64_t due_ns = now_ns();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto from = std::span(pages).subspan(layer * per_layer, per_layer);
      const auto to = std::span(request.pages).subspan(layer * per_layer, per_layer);
      sleep_until(due_ns += pace_ns);
      compute(stream, page_request, layer, from);
      if (layer + 1 == kLayers) {
        const std::lock_guard lock(stream.mutex);
        stream.submitted_ns[page_request.request] = now_ns();
      }
      const auto taken = engine_.submit(fabric::PagedWrite{
          .source = cache_.id(),
          .source_pages = {.indices = from, .stride_bytes = kPageBytes},
          .target = stream.offer.region,
          .target_pages = {.indices = to, .stride_bytes = kPageBytes},
          .page_bytes = kPageBytes,
          .imm = fabric::CounterKey::from_wire(page_request.key),
          .batch = stream.batch,
          .notify = fabric::Notify::call<&Stream::on_completion>(&stream, page_request.request)});
      if (!taken) {
        control_.send({.kind = MessageHeader::Kind::kRefused,
                       .receiver_id = stream.receiver_id,
                       .code = static_cast<uint32_t>(taken.error().code),
                       .request = page_request.request,
                       .at_ns = now_ns()});
        break;
      }
      ++accepted_;
    }
    // The pages may be reused once every operation has completed, successfully or not.
    const auto all = engine_.wait(stream.batch, fabric::Timeout::forever());
    if (!all && stream.batch.pending() > 0) need(all, "wait");
    need(stream.batch.reset(), "reset");
    pool_.give_back(pages);
  }

  /// Stands in for a GPU: stamps the pages with receiver, request, layer and page.
  void compute(const Stream& stream, const PageRequest& page_request, uint32_t layer,
               std::span<const uint32_t> pages) {
    for (uint32_t i = 0; i < pages.size(); ++i) {
      put_stamp(page_at(cache_.bytes(), pages[i]), {.receiver = stream.receiver_id,
                                                    .request = page_request.request,
                                                    .layer = layer,
                                                    .page = i,
                                                    .body_sum = body_sums_[pages[i]]});
    }
  }

  static void sleep_until(int64_t due_ns) {
    const int64_t left_ns = due_ns - now_ns();
    if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
  }

  /// Stops all streams and waits for acknowledgements and completions.
  void drain() {
    for (const auto& stream : streams_) {
      {
        const std::lock_guard lock(stream->mutex);
        stream->requests.clear();
        stream->stopping = true;
        stream->changed.notify_all();
      }
      if (stream->thread.joinable()) stream->thread.join();
      std::unique_lock lock(stream->mutex);
      stream->changed.wait(lock, [&] { return stream->lost || stream->submitted_ns.empty(); });
    }
    // A callback may run after the wait on its batch returns. Bounded: a missing completion must
    // fail the checks, not hang.
    for (int i = 0; i < 10'000 && completed_ != accepted_; ++i) sleep_until(now_ns() + 1'000'000);
  }

  const ControlSocket& control_;
  Pool pool_{kPoolPages, Pool::Reuse::kOldestFirst};
  std::vector<uint64_t> body_sums_{};
  std::atomic<int64_t> layer_ns_{0}, request_ns_{0};
  std::atomic<uint64_t> accepted_{0}, completed_{0};
  std::mutex mutex_{};
  std::vector<std::unique_ptr<Stream>> streams_{};  ///< guarded by mutex_; never shrinks
  fabric::Engine engine_;
  fabric::MemoryRegion cache_;
  fabric::Subscription listening_;
  fabric::Subscription subscription_;
};

void Stream::on_completion(const fabric::Event& event) { source.on_completion(*this, event); }

}  // namespace

int run_source(const ControlSocket& control, const RoleOptions& options) {
  Source source(control, options);
  return source.run();
}

}  // namespace demo

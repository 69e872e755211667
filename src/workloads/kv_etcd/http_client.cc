#include "workloads/kv_etcd/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace fabric::kv {

namespace {

// Of all headers of an answer: etcd's have some 200 bytes.
constexpr size_t kHeaderBytesMax = 64u << 10;
// How soon a watch notices that its server's host is gone, where no other request does.
constexpr long kKeepIdleS = 10;
constexpr long kKeepIntervalS = 5;

long to_ms(Nanos time) {
  return static_cast<long>(std::chrono::ceil<std::chrono::milliseconds>(time).count());
}

/// libcurl wants its global state set up before any thread uses it, and never needs it torn down.
bool curl_is_ready() {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  return kReady == CURLE_OK;
}

}  // namespace

struct HttpClient::Multi {
  CURLM* handle = curl_multi_init();
  Multi() = default;
  Multi(const Multi&) = delete;
  Multi& operator=(const Multi&) = delete;
  ~Multi() {
    if (handle != nullptr) curl_multi_cleanup(handle);
  }
};

/// One request. Its handle is in the multi handle from post() until it is destroyed.
struct HttpClient::Transfer {
  Transfer(CURLM* in, HttpRequest what, Done then)
      : multi(in), request(std::move(what)), done(std::move(then)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    if (easy != nullptr) {
      curl_multi_remove_handle(multi, easy);
      curl_easy_cleanup(easy);
    }
    curl_slist_free_all(headers);
  }

  bool start(const HttpOptions& options);
  static size_t take_body(char* bytes, size_t, size_t size, void* self);
  static size_t take_header(char* bytes, size_t, size_t size, void* self);

  CURLM* multi;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  HttpRequest request;
  Done done;
  std::string received;  ///< of a stream: since the last call of `arrived`
  size_t header_bytes = 0;
  bool too_large = false;
  char failure[CURL_ERROR_SIZE] = "";
};

size_t HttpClient::Transfer::take_body(char* bytes, size_t, size_t size, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  if (size > transfer.request.bytes_max - transfer.received.size()) {
    transfer.too_large = true;
    return 0;  // ends the transfer
  }
  transfer.received.append(bytes, size);
  return size;
}

size_t HttpClient::Transfer::take_header(char*, size_t, size_t size, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  transfer.header_bytes += size;
  transfer.too_large = transfer.too_large || transfer.header_bytes > kHeaderBytesMax;
  return transfer.too_large ? 0 : size;
}

bool HttpClient::Transfer::start(const HttpOptions& options) {
  easy = curl_easy_init();
  headers = curl_slist_append(headers, "Content-Type: application/json");
  if (easy == nullptr || headers == nullptr) return false;
  bool ok = true;
  const auto set = [&](CURLoption option, auto value) {
    ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK;
  };
  const auto set_file = [&](CURLoption option, const std::string& path) {
    if (!path.empty()) set(option, path.c_str());
  };
  set(CURLOPT_URL, request.url.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
  set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  set(CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  set(CURLOPT_POSTFIELDS, request.body.c_str());
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_PROXY, options.proxy.c_str());  // empty: none
  set(CURLOPT_CONNECTTIMEOUT_MS, to_ms(options.connect_timeout));
  set(CURLOPT_TIMEOUT_MS, to_ms(request.timeout));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, kKeepIdleS);
  set(CURLOPT_TCP_KEEPINTVL, kKeepIntervalS);
  set_file(CURLOPT_CAINFO, options.ca_file);
  set_file(CURLOPT_SSLCERT, options.cert_file);
  set_file(CURLOPT_SSLKEY, options.private_key_file);
  set(CURLOPT_WRITEFUNCTION, &Transfer::take_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(CURLOPT_HEADERFUNCTION, &Transfer::take_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(this));
  set(CURLOPT_ERRORBUFFER, &failure[0]);
  set(CURLOPT_PRIVATE, static_cast<void*>(this));
  return ok && curl_multi_add_handle(multi, easy) == CURLM_OK;
}

Result<std::unique_ptr<HttpClient>> HttpClient::make(const HttpOptions& options) {
  if (!curl_is_ready()) return fail(Errc::kExhausted, "curl_global_init");
  auto multi = std::make_unique<Multi>();
  if (multi->handle == nullptr) return fail(Errc::kExhausted, "curl_multi_init");
  return std::unique_ptr<HttpClient>(new HttpClient(options, std::move(multi)));
}

HttpClient::HttpClient(HttpOptions options, std::unique_ptr<Multi> multi)
    : options_(std::move(options)), multi_(std::move(multi)) {}
HttpClient::~HttpClient() = default;

uint64_t HttpClient::post(HttpRequest request, Done done) {
  auto transfer = std::make_unique<Transfer>(multi_->handle, std::move(request), std::move(done));
  if (!transfer->start(options_)) return 0;
  transfers_[next_] = std::move(transfer);
  return next_++;
}

void HttpClient::cancel(uint64_t number) { transfers_.erase(number); }

void HttpClient::run(Nanos wait) {
  int running = 0;
  const int wait_ms = static_cast<int>(std::clamp<long>(to_ms(wait), 0, 60'000));
  // Both fail only without memory; the transfers then end by their timeouts.
  (void)curl_multi_poll(multi_->handle, nullptr, 0, wait_ms, nullptr);
  (void)curl_multi_perform(multi_->handle, &running);
  take_arrived();
  take_completed();
}

void HttpClient::wake() noexcept { (void)curl_multi_wakeup(multi_->handle); }

void HttpClient::take_arrived() {
  std::vector<uint64_t> streams;
  for (const auto& [number, transfer] : transfers_) {
    if (transfer->request.arrived && !transfer->received.empty()) streams.push_back(number);
  }
  for (const uint64_t number : streams) {
    const auto found = transfers_.find(number);
    if (found == transfers_.end()) continue;  // cancelled by an earlier callback
    // Copies: the call may cancel the transfer that it comes from.
    const std::string bytes = std::exchange(found->second->received, {});
    const auto arrived = found->second->request.arrived;
    arrived(bytes);
  }
}

void HttpClient::take_completed() {
  struct Completed {
    uint64_t number;
    CURLcode code;
  };
  std::vector<Completed> completed;
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_->handle, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    for (const auto& [number, transfer] : transfers_) {
      if (transfer->easy == message->easy_handle) {
        completed.push_back({number, message->data.result});
      }
    }
  }
  for (const Completed& one : completed) {
    const auto found = transfers_.find(one.number);
    if (found == transfers_.end()) continue;  // cancelled by an earlier callback
    const std::unique_ptr<Transfer> transfer = std::move(found->second);
    transfers_.erase(found);
    HttpAnswer answer{.complete = one.code == CURLE_OK, .too_large = transfer->too_large};
    curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &answer.status);
    answer.body = std::move(transfer->received);
    if (!answer.complete) {
      answer.failure =
          transfer->failure[0] != '\0' ? &transfer->failure[0] : curl_easy_strerror(one.code);
    }
    transfer->done(answer);
  }
}

}  // namespace fabric::kv

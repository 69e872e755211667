#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include <fabric/kv_etcd.h>

#include "base/unique_fd.h"
#include "workloads/kv_etcd/etcd_context.h"
#include "workloads/kv_etcd/etcd_registration.h"
#include "workloads/kv_etcd/etcd_watch.h"

namespace fabric::kv {

namespace {

constexpr size_t kEndpointsMax = 16;
constexpr size_t kEndpointBytesMax = 512;
constexpr size_t kJobBytesMax = 128;
constexpr uint32_t kMembersMax = 65536;

bool is_endpoint(std::string_view text) {
  const bool scheme = text.starts_with("http://") || text.starts_with("https://");
  return scheme && text.size() <= kEndpointBytesMax && !text.ends_with('/') &&
         std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

bool is_job(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kJobBytesMax && std::ranges::all_of(text, allowed);
}

Result<void> check(const EtcdOptions& options) {
  using namespace std::chrono_literals;
  const auto bad = [](const char* what) { return fail(Errc::kInvalidArgument, what); };
  if (options.endpoints.empty() || options.endpoints.size() > kEndpointsMax) {
    return bad("endpoints: 1 to 16");
  }
  if (!std::ranges::all_of(options.endpoints, is_endpoint)) {
    return bad("endpoints: http://host:port or https://host:port");
  }
  if (!is_job(options.job)) return bad("job: 1 to 128 letters, digits, '.', '_', '-'");
  if (options.role > Role::kRouter) return bad("role");
  if (options.cert_file.empty() != options.private_key_file.empty()) {
    return bad("cert_file and private_key_file: both or none");
  }
  if (options.lease_ttl < 1s || options.lease_ttl > 1h || options.lease_ttl % 1s != 0s) {
    return bad("lease_ttl: whole seconds, 1 s to 1 h");
  }
  if (options.request_timeout < 1ms) return bad("request_timeout: at least 1 ms");
  if (options.relist < 1ms) return bad("relist: at least 1 ms");
  if (options.retry < 1ms) return bad("retry: at least 1 ms");
  if (options.retry_max < options.retry) return bad("retry_max: less than retry");
  if (options.members_max == 0 || options.members_max > kMembersMax) return bad("members_max");
  return {};
}

uint64_t random_seed() {
  std::random_device source;
  return uint64_t{source()} << 32 | source();
}

/// The application's signal handlers never run on this thread.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

/// The thread owns HTTP client, watch and registration. The mutex guards what is handed over: views
/// and statistics to the callers, announce() and leave() requests to the thread.
struct EtcdDirectory::Impl {
  Impl(const EtcdOptions& options, std::unique_ptr<HttpClient> client, UniqueFd event)
      : http(std::move(client)),
        context(options, *http, options.jitter_seed != 0 ? options.jitter_seed : random_seed()),
        watch(context),
        registration(context),
        changed(std::move(event)) {}

  void run();
  bool take_wishes();
  void publish();

  const pid_t process = ::getpid();
  std::unique_ptr<HttpClient> http;
  EtcdContext context;
  EtcdWatch watch;
  EtcdRegistration registration;

  mutable std::mutex mutex;
  View view{.revision = 1};
  View polled{};  ///< as of the last poll()
  EtcdStats stats{};
  std::optional<Member> self{};
  bool self_changed = false;
  bool stopping = false;
  UniqueFd changed;
  std::thread thread;
};

EtcdDirectory::EtcdDirectory(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

EtcdDirectory::~EtcdDirectory() {
  if (impl_->process != ::getpid()) {
    // The thread exists only in the parent, and may hold the mutex in this copy for ever.
    static_cast<void>(impl_.release());
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->http->wake();
  impl_->thread.join();
}

Result<std::unique_ptr<EtcdDirectory>> EtcdDirectory::open(const EtcdOptions& options) {
  if (const auto checked = check(options); !checked) return checked.error();
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail(Errc::kExhausted, "eventfd", errno);
  auto http = HttpClient::make({.ca_file = options.ca_file,
                                .cert_file = options.cert_file,
                                .private_key_file = options.private_key_file,
                                .proxy = options.proxy,
                                .connect_timeout = options.request_timeout});
  if (!http) return http.error();
  auto impl = std::make_unique<Impl>(options, *std::move(http), std::move(event));
  impl->stats = impl->context.stats;
  try {
    const BlockedSignals blocked;
    impl->thread = std::thread([raw = impl.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return fail(Errc::kExhausted, "thread", error.code().value());
  }
  pthread_setname_np(impl->thread.native_handle(), "fabric-etcd");
  return std::unique_ptr<EtcdDirectory>(new EtcdDirectory(std::move(impl)));
}

Result<void> EtcdDirectory::announce(const Member& self) {
  if (impl_->process != ::getpid()) return fail(Errc::kClosed, "announce: after fork()");
  if (const auto bytes = encode(self); !bytes) return bytes.error();
  {
    const std::lock_guard lock(impl_->mutex);
    const auto& known = impl_->self;
    if (known && (known->engine_id != self.engine_id || known->role != self.role)) {
      return fail(Errc::kInvalidArgument, "announce: another engine_id or role; leave() first");
    }
    impl_->self = self;
    impl_->self_changed = true;
  }
  impl_->http->wake();
  return {};
}

Result<void> EtcdDirectory::leave() {
  if (impl_->process != ::getpid()) return fail(Errc::kClosed, "leave: after fork()");
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->self) return fail(Errc::kNotFound, "leave: nothing is announced");
    impl_->self.reset();
    impl_->self_changed = true;
  }
  impl_->http->wake();
  return {};
}

bool EtcdDirectory::poll() {
  uint64_t ignored = 0;
  // Before the view is read: a change after that makes the descriptor readable again.
  (void)!::read(impl_->changed.get(), &ignored, sizeof ignored);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->polled.revision == impl_->view.revision) return false;
  impl_->polled = impl_->view;
  return true;
}

View EtcdDirectory::members() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->polled;
}

Result<int> EtcdDirectory::fd() { return impl_->changed.get(); }

EtcdStats EtcdDirectory::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

// ---- The thread --------------------------------------------------------------------------------

bool EtcdDirectory::Impl::take_wishes() {
  const std::lock_guard lock(mutex);
  if (std::exchange(self_changed, false)) registration.want(self);
  return stopping;
}

void EtcdDirectory::Impl::publish() {
  const bool view_changed = watch.take_changed();
  const std::lock_guard lock(mutex);
  stats = context.stats;
  stats.endpoint = context.endpoint();
  if (!view_changed) return;
  const auto& members = watch.members().members();
  const auto same = [](const auto& entry, const Member& member) { return entry.second == member; };
  const bool stale = !watch.fresh();
  if (stale == view.stale &&
      std::equal(members.begin(), members.end(), view.members.begin(), view.members.end(), same)) {
    return;
  }
  view.stale = stale;
  view.members.clear();
  for (const auto& [engine_id, member] : members) view.members.push_back(member);
  ++view.revision;
  const uint64_t one = 1;
  (void)!::write(changed.get(), &one, sizeof one);  // full: it is readable already
}

void EtcdDirectory::Impl::run() {
  Nanos stop_by = Nanos::max();
  while (true) {
    const bool stop = take_wishes();
    const Nanos now = EtcdContext::now();
    if (stop && stop_by == Nanos::max()) {
      // A leave() is completed; what was not left stays until its lease ends.
      const std::lock_guard lock(mutex);
      stop_by = self ? now : now + context.options.request_timeout;
    }
    if (stop && (now >= stop_by || registration.idle())) return;
    Nanos next = stop_by;
    if (context.options.watch) {
      if (registration.take_failed()) watch.check_now();
      next = std::min(next, watch.step());
      if (watch.fresh()) registration.check(watch.members());
    }
    next = std::min(next, registration.step());
    publish();
    http->run(std::max(next - EtcdContext::now(), Nanos{}));
  }
}

}  // namespace fabric::kv

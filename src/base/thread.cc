#include "base/thread.h"

#include <sched.h>

#include <cerrno>
#include <csignal>
#include <memory>

#include "base/check.h"

namespace fabric {

namespace {

struct Start {
  const char* name;
  std::function<void()> body;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  // Fails if the name is too long; the thread then keeps the default name.
  pthread_setname_np(pthread_self(), start->name);
  start->body();
  return nullptr;
}

struct Attributes {
  pthread_attr_t value;
  const int rc = pthread_attr_init(&value);
  ~Attributes() {
    if (rc == 0) pthread_attr_destroy(&value);
  }
};

Result<void> bind(pthread_attr_t& attributes, const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return fail(Errc::kInvalidArgument, "cpus");
    CPU_SET(cpu, &set);
  }
  const int rc = pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
  if (rc != 0) return fail(Errc::kExhausted, "pthread_attr_setaffinity_np", rc);
  return {};
}

}  // namespace

Result<Thread> Thread::start(const Options& options, std::function<void()> body) {
  Attributes attributes;
  if (attributes.rc != 0) return fail(Errc::kExhausted, "pthread_attr_init", attributes.rc);
  if (const Result<void> bound = bind(attributes.value, options.cpus); !bound) return bound.error();
  auto start = std::make_unique<Start>(Start{options.name, std::move(body)});

  // The new thread inherits the mask, so a signal never reaches it.
  sigset_t all, before;
  sigfillset(&all);
  FABRIC_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  pthread_t handle{};
  const int rc = pthread_create(&handle, &attributes.value, &run, start.get());
  FABRIC_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);

  // EINVAL can only be about the CPUs: none of them exists or is allowed.
  if (rc == EINVAL) return fail(Errc::kInvalidArgument, "cpus", rc);
  if (rc != 0) return fail(Errc::kExhausted, "pthread_create", rc);
  static_cast<void>(start.release());  // run() owns it from here
  return Thread(handle);
}

void Thread::join() noexcept {
  if (!std::exchange(joinable_, false)) return;
  FABRIC_CHECK(pthread_join(handle_, nullptr) == 0, "a thread joined itself");
}

}  // namespace fabric

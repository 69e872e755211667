#pragma once

// What all bindings share: errors, the GIL, waits that Ctrl-C ends, and who owns what.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fabric/fabric.h>

#include "seconds.h"

namespace fabric_python {

namespace nb = nanobind;
using nb::literals::operator""_a;

/// Throws the Python class of the code (python/fabric_lib/_errors.py). The GIL is held.
[[noreturn]] void raise(const fabric::Error& error);
[[noreturn]] void raise(fabric::Errc code, const std::string& what, int native = 0);
/// The exception object for an event that failed.
nb::object make_error(fabric::Errc code, const std::string& what, int native,
                      const std::string& where);

template <class T>
T unwrap(fabric::Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Runs `call` without the GIL: for everything that may block or takes a lock of the engine. The
/// engine's callback thread takes the GIL, so a blocking call that held it would never return.
template <class F>
auto without_gil(F&& call) {
  nb::gil_scoped_release release;
  return call();
}

/// What all objects of one engine (or of one simulated world) share: the thread that may use them,
/// when they are inline, and the clock of their waits.
///
/// An object of an inline engine may lose its last reference on another thread, by the garbage
/// collector. Its destructor is deferred then, until the owner thread makes its next call.
class Context {
 public:
  /// `clock`: empty for real time. `inline_engine`: bound to the calling thread.
  Context(bool inline_engine, std::function<int64_t()> clock);
  /// Throws when this is not the thread that may use the objects; runs deferred destructors.
  void check() {
    if (bound_ && (owner_ != this_thread() || has_deferred_.load(std::memory_order_relaxed))) {
      check_slowly();
    }
  }
  bool is_inline() const noexcept { return bound_; }
  int64_t now_ns() const;
  /// Destroys `object`, which holds C++ objects of the engine only, without the GIL: destructors
  /// wait for threads that may want it.
  template <class T>
  void destroy(T&& object) {
    if (!can_destroy_here()) {
      auto shared = std::make_shared<std::optional<std::decay_t<T>>>(std::move(object));
      defer([shared] { shared->reset(); });
      return;
    }
    release_gil_and([&] { std::optional<std::decay_t<T>> last(std::move(object)); });
  }

  int64_t default_timeout_ns = 30'000'000'000;

 private:
  static uintptr_t this_thread() noexcept;
  void check_slowly();
  bool can_destroy_here() const noexcept;
  void defer(std::function<void()> destructor);
  static void release_gil_and(const std::function<void()>& call);

  const bool bound_;
  const uintptr_t owner_;
  std::function<int64_t()> clock_;
  std::mutex mutex_;  ///< of deferred_
  std::vector<std::function<void()>> deferred_;
  std::atomic<bool> has_deferred_ = false;
};

using SharedContext = std::shared_ptr<Context>;

/// An object of an engine and what its methods need.
template <class T>
class Held {
 public:
  Held(SharedContext context, T&& value) : context_(std::move(context)), value_(std::move(value)) {}
  Held(Held&& other) noexcept : context_(other.context_), value_(std::move(other.value_)) {
    other.value_.reset();
  }
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (value_) context_->destroy(std::move(*value_));
  }
  /// Throws when it was closed, or this is the wrong thread.
  T& get() {
    context_->check();
    if (!value_) raise(fabric::Errc::kClosed, "self: closed");
    return *value_;
  }
  /// While a method runs without the GIL: close() is refused then. Made and destroyed under it.
  class Use {
   public:
    explicit Use(Held& held) : held_(held) { ++held_.users_; }
    ~Use() { --held_.users_; }
    Use(const Use&) = delete;

   private:
    Held& held_;
  };
  [[nodiscard]] Use use() { return Use(*this); }
  /// Refuses a second thread, where the library allows one at a time.
  [[nodiscard]] Use use_alone() {
    refuse_other_users();
    return Use(*this);
  }
  void close() {
    context_->check();
    if (!value_) return;
    refuse_other_users();
    T last = std::move(*value_);
    value_.reset();
    context_->destroy(std::move(last));
  }
  Context& context() const { return *context_; }
  const SharedContext& shared_context() const { return context_; }

 private:
  void refuse_other_users() const {
    if (users_ > 0)
      raise(fabric::Errc::kBusy, "thread: another thread is in a call of this object");
  }

  SharedContext context_;
  std::optional<T> value_;
  int users_ = 0;  ///< under the GIL
};

/// Calls `step` with slices of the timeout until it ends otherwise than by its slice, so that a
/// signal (Ctrl-C) is handled within 50 ms. `ended`: a kTimeout was no slice but the result.
fabric::Result<void> wait_in_slices(
    Context& context, fabric::Timeout timeout,
    const std::function<fabric::Result<void>(fabric::Timeout)>& step,
    const std::function<bool()>& ended = [] { return false; });

/// Set while a Python callback runs on this thread.
bool in_callback() noexcept;
/// Destroys what could not be destroyed inside a callback. Called without the GIL.
void run_postponed();

/// An engine, shared by its Python object and everything that must not outlive it.
struct EngineBox {
  EngineBox(SharedContext context_, fabric::Engine&& engine_);
  EngineBox(const EngineBox&) = delete;
  ~EngineBox();
  SharedContext context;
  std::optional<fabric::Engine> engine;
};
using SharedEngine = std::shared_ptr<EngineBox>;

/// Closes every engine that is still open: at interpreter exit the engine's threads must not take
/// the GIL any more.
void close_all_engines();

/// The Python class Engine.
struct PyEngine {
  SharedEngine box;
  fabric::Engine& get() const {
    box->context->check();
    return *box->engine;
  }
};

/// Reads FABRICLIB_DEFAULT_TIMEOUT as the library does; else the field.
int64_t default_timeout_ns(const fabric::Config& config);

// One function for each public header, in the file of its name.
void bind_result(nb::module_& m);
void bind_types(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_lists(nb::module_& m);
void bind_notify(nb::module_& m);
void bind_batch(nb::module_& m);
void bind_counter(nb::module_& m);
void bind_watcher(nb::module_& m);
void bind_peer(nb::module_& m);
void bind_stats(nb::module_& m);
void bind_config(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_sim(nb::module_& m);
void bind_kv_layout(nb::module_& m);
void bind_kv_plan(nb::module_& m);
void bind_kv(nb::module_& m);
void bind_kv_prefiller(nb::module_& m);
void bind_kv_directory(nb::module_& m);
void bind_kv_router(nb::module_& m);
/// Adds the operations to the class; in transfer.cc.
void bind_transfers(nb::class_<PyEngine>& engine);

}  // namespace fabric_python

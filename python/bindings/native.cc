#include "native.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

#include "callback.h"

namespace fabric_python {

namespace {

constexpr int64_t kSliceNs = 50'000'000;  // short enough for a person who presses Ctrl-C

struct Postponed {
  std::mutex mutex;
  std::vector<std::function<void()>> destructors;
};

Postponed& postponed() {
  static Postponed* const all = new Postponed;  // outlives every static destructor
  return *all;
}

struct OpenEngines {
  std::mutex mutex;
  std::set<EngineBox*> boxes;
};

OpenEngines& open_engines() {
  static OpenEngines* const all = new OpenEngines;
  return *all;
}

}  // namespace

bool read_seconds(nb::handle value, int64_t& ns, bool& valid) noexcept {
  double seconds = 0;
  if (PyFloat_Check(value.ptr())) {
    seconds = PyFloat_AsDouble(value.ptr());
  } else if (PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
    seconds = PyLong_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      seconds = HUGE_VAL;
    }
  } else {
    PyObject* total = PyObject_CallMethod(value.ptr(), "total_seconds", nullptr);
    if (total == nullptr) {
      PyErr_Clear();
      return false;
    }
    seconds = PyFloat_AsDouble(total);
    Py_DECREF(total);
  }
  valid = seconds >= 0;       // false for not-a-number, too
  const double most = 9.2e9;  // nanoseconds in 63 bits: 292 years
  ns = !valid ? 0 : seconds >= most ? fabric::Timeout::kForever : std::llround(seconds * 1e9);
  return true;
}

fabric::Timeout TimeoutArg::get(const char* name) const {
  if (!valid) raise(fabric::Errc::kInvalidArgument, std::string(name) + ": negative, or no number");
  fabric::Timeout timeout;
  timeout.ns = ns;
  return timeout;
}

fabric::Nanos SecondsArg::get(const char* name) const {
  if (!valid) raise(fabric::Errc::kInvalidArgument, std::string(name) + ": negative, or no number");
  return fabric::Nanos{ns};
}

Context::Context(bool inline_engine, std::function<int64_t()> clock)
    : bound_(inline_engine), owner_(this_thread()), clock_(std::move(clock)) {}

uintptr_t Context::this_thread() noexcept {
  thread_local char mark;  // its address names the thread
  return reinterpret_cast<uintptr_t>(&mark);
}

int64_t Context::now_ns() const {
  if (clock_) return clock_();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<fabric::Nanos>(now).count();
}

void Context::check_slowly() {
  if (owner_ != this_thread()) {
    raise(fabric::Errc::kInvalidArgument,
          "thread: an inline engine and its objects belong to the thread that opened it");
  }
  if (in_callback()) return;  // inside a turn; the next call will do
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  release_gil_and([&] { due.clear(); });
}

bool Context::can_destroy_here() const noexcept {
  return !in_callback() && (!bound_ || owner_ == this_thread());
}

void Context::defer(std::function<void()> destructor) {
  if (bound_) {
    const std::lock_guard lock(mutex_);
    deferred_.push_back(std::move(destructor));
    has_deferred_.store(true, std::memory_order_relaxed);
    return;
  }
  const std::lock_guard lock(postponed().mutex);
  postponed().destructors.push_back(std::move(destructor));
}

void Context::release_gil_and(const std::function<void()>& call) {
  if (PyGILState_Check() == 0) return call();
  nb::gil_scoped_release release;
  call();
}

void run_postponed() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(postponed().mutex);
    due.swap(postponed().destructors);
  }
  for (const auto& destructor : due) destructor();
}

fabric::Result<void> wait_in_slices(
    Context& context, fabric::Timeout timeout,
    const std::function<fabric::Result<void>(fabric::Timeout)>& step,
    const std::function<bool()>& ended) {
  context.check();
  int64_t total = timeout.ns;
  if (total == fabric::Timeout::kDefault) total = context.default_timeout_ns;
  const int64_t begin = context.now_ns();
  for (;;) {
    const int64_t left = total == fabric::Timeout::kForever
                             ? fabric::Timeout::kForever
                             : std::max<int64_t>(0, total - (context.now_ns() - begin));
    fabric::Timeout slice;
    slice.ns = std::min(left, kSliceNs);
    const fabric::Result<void> result = without_gil([&] { return step(slice); });
    if (result || result.error().code != fabric::Errc::kTimeout) return result;
    if (left <= kSliceNs || ended()) return result;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

EngineBox::EngineBox(SharedContext context_, fabric::Engine&& engine_)
    : context(std::move(context_)), engine(std::move(engine_)) {
  const std::lock_guard lock(open_engines().mutex);
  open_engines().boxes.insert(this);
}

EngineBox::~EngineBox() {
  {
    const std::lock_guard lock(open_engines().mutex);
    open_engines().boxes.erase(this);
  }
  if (engine) context->destroy(std::move(*engine));
}

void close_all_engines() {
  std::vector<EngineBox*> boxes;
  {
    const std::lock_guard lock(open_engines().mutex);
    boxes.assign(open_engines().boxes.begin(), open_engines().boxes.end());
  }
  // Only the main thread runs Python code now, and this holds no reference away from it: boxes that
  // another thread destroys would need the GIL first, which is released only inside close().
  for (EngineBox* box : boxes) {
    if (box->context->is_inline()) continue;  // has no threads that could take the GIL
    without_gil([&] { (void)box->engine->close(); });
  }
  without_gil([] { run_postponed(); });
}

int64_t default_timeout_ns(const fabric::Config& config) {
  const char* text = std::getenv("FABRICLIB_DEFAULT_TIMEOUT");
  if (text == nullptr) return config.default_timeout.count();
  const std::string_view all = text;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number);
  const std::string_view unit = all.substr(static_cast<size_t>(end - all.data()));
  const int64_t factor = unit == "ns"   ? 1
                         : unit == "us" ? 1'000
                         : unit == "ms" ? 1'000'000
                                        : 1'000'000'000;
  return error == std::errc() ? number * factor : config.default_timeout.count();
}

}  // namespace fabric_python

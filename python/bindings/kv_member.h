#pragma once

#include <fabric/kv.h>

#include "lists.h"
#include "memory.h"

namespace fabric_python {

/// A decoder, prefiller or directory with what must outlive it: the engine and the regions.
template <class T>
struct KvMember {
  SharedEngine engine;
  std::vector<std::shared_ptr<RegionBox>> regions{};
  T object;  // declared last: it ends first
};

/// The Python class of it.
template <class T>
struct PyMember {
  Held<std::unique_ptr<KvMember<T>>> held;
  bool waiting = false;  ///< a thread is in wait(); under the GIL
  T& get() { return held.get()->object; }
};

/// Page ids for each group of a layout.
inline std::vector<std::vector<uint32_t>> page_ids(nb::handle pages, const char* name) {
  if (PySequence_Check(pages.ptr()) == 0) {
    throw nb::type_error((std::string(name) + ": expected page ids for each group").c_str());
  }
  std::vector<std::vector<uint32_t>> all;
  for (nb::handle group : nb::iter(pages)) {
    const PageIndices ids(group, name);
    all.emplace_back(ids.get().begin(), ids.get().end());
  }
  return all;
}

/// poll() of decoders and prefillers.
template <class Event, class T>
nb::list poll_events(PyMember<T>& self, uint32_t max) {
  T& object = self.get();
  const auto use = self.held.use();
  std::vector<Event> events(std::min(max, 256u));
  const uint32_t n = without_gil([&] { return object.poll(events); });
  nb::list out;
  for (uint32_t i = 0; i < n; ++i) out.append(nb::cast(std::move(events[i])));
  return out;
}

/// wait() of decoders and prefillers.
template <class T>
void wait_for_events(PyMember<T>& self, const TimeoutArg& timeout) {
  T& object = self.get();
  const auto use = self.held.use();
  if (self.waiting) raise(fabric::Errc::kBusy, "thread: another thread waits");
  self.waiting = true;
  struct Waiting {
    bool& flag;
    ~Waiting() { flag = false; }
  } const reset{self.waiting};
  unwrap(wait_in_slices(self.held.context(), timeout.get(),
                        [&](fabric::Timeout slice) { return object.wait(slice); }));
}

constexpr const char* kPagesText =
    "collections.abc.Sequence[collections.abc.Sequence[int] | typing.Any]";

}  // namespace fabric_python

#include "harness/event_recorder.h"

#include <gtest/gtest.h>

namespace fabric::test {

Nanos EventRecorder::when(uint64_t tag) const {
  const Event* event = find(tag);
  EXPECT_NE(event, nullptr) << "no event with tag " << tag << " was reported";
  return event == nullptr ? Nanos::max() : times[static_cast<size_t>(event - events.data())];
}

}  // namespace fabric::test

#pragma once

#include <fabric/sim.h>

// NICs whose times the tests know. The presets of NicModel follow published systems and may change;
// faults that are timed to hit a write in flight, and times that are asserted, must not.

namespace fabric::test {

/// Connections with exact replay, like RC: 400 Gb/s, 90 ns an operation, 2 us one way.
inline sim::NicModel rc_model() {
  sim::NicModel model;
  model.gbit_per_s = 400;
  model.per_op = Nanos(90);
  model.latency = Nanos(2'000);
  return model;
}

/// Datagrams without replay, like SRD: 200 Gb/s, 950 ns an operation, 8 to 14 us one way.
inline sim::NicModel srd_model() {
  sim::NicModel model;
  model.gbit_per_s = 200;
  model.per_op = Nanos(950);
  model.latency = Nanos(8'000);
  model.jitter = Nanos(6'000);
  model.ordered = false;
  model.slice_safe = false;
  model.exact_replay = false;
  model.fence = FenceKind::kRekey;
  return model;
}

}  // namespace fabric::test

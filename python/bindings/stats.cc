// <fabric/stats.h>: counters of the engine, as answers.

#include <nanobind/stl/pair.h>

#include "record.h"

namespace fabric_python {

void bind_stats(nb::module_& m) {
  using fabric::EngineStats;
  using fabric::PeerStats;
  using fabric::RailStats;
  using fabric::Traffic;
  nb::class_<fabric::Histogram>(
      m, "Histogram", "Log2 buckets of nanoseconds: bucket i counts times in [2**i, 2**(i+1)).")
      .def_prop_ro("bucket", [](const fabric::Histogram& self) {
        return std::vector<uint64_t>(self.bucket.begin(), self.bucket.end());
      });
  Record<Traffic>(m, "Traffic", "What was sent or received.", false)
      .field("ops", "int", &Traffic::ops)
      .field("bytes", "int", &Traffic::bytes)
      .field("failed", "int", &Traffic::failed)
      .field("retried", "int", &Traffic::retried)
      .field("imms", "int", &Traffic::imms)
      .field("messages", "int", &Traffic::messages)
      .field("queued", "int", &Traffic::queued)
      .field("posted", "int", &Traffic::posted)
      .field("submit_to_post", "Histogram", &Traffic::submit_to_post)
      .field("post_to_done", "Histogram", &Traffic::post_to_done);
  Record<RailStats>(m, "RailStats", "A rail of a network.", false)
      .field("network", "str", &RailStats::network)
      .field("device", "str", &RailStats::device)
      .field("index", "int", &RailStats::index)
      .field("up", "bool", &RailStats::up)
      .field("tx", "Traffic", &RailStats::tx)
      .field("rx", "Traffic", &RailStats::rx)
      .field("facts", "tuple[tuple[str, str], ...]", &RailStats::facts);
  Record<PeerStats>(m, "PeerStats", "A peer.", false)
      .field("peer", "PeerId", &PeerStats::peer)
      .field("silent_for", "float", &PeerStats::silent_for)
      .field("tx", "Traffic", &PeerStats::tx)
      .field("rx", "Traffic", &PeerStats::rx);
  Record<EngineStats>(m, "EngineStats", "An engine.", false)
      .field("tx", "Traffic", &EngineStats::tx)
      .field("rx", "Traffic", &EngineStats::rx)
      .field("stale_imms", "int", &EngineStats::stale_imms)
      .field("exhausted", "int", &EngineStats::exhausted)
      .field("turns", "int", &EngineStats::turns)
      .field("sleeps", "int", &EngineStats::sleeps)
      .field("callbacks", "int", &EngineStats::callbacks)
      .field("control_bad", "int", &EngineStats::control_bad)
      .field("peers", "int", &EngineStats::peers)
      .field("regions", "int", &EngineStats::regions)
      .field("counters", "int", &EngineStats::counters)
      .field("ops_in_flight", "int", &EngineStats::ops_in_flight);
}

}  // namespace fabric_python

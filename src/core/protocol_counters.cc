#include "core/protocol_counters.h"

namespace fabric::core {
namespace {

constexpr std::array<const char*, kSteps> kNames = {"path opened",
                                                    "path broke",
                                                    "path torn down",
                                                    "path rested",
                                                    "other rail paired",
                                                    "piece stranded",
                                                    "piece found taken",
                                                    "piece repeated",
                                                    "shard repeated",
                                                    "piece given up",
                                                    "piece given up again",
                                                    "settled unproved",
                                                    "probe sent",
                                                    "probe answered",
                                                    "probe failed",
                                                    "rail down",
                                                    "rail up",
                                                    "rerouted",
                                                    "stopped queued",
                                                    "stopped posted",
                                                    "bound passed",
                                                    "key spoiled",
                                                    "key aborted",
                                                    "peer stalled",
                                                    "peer resumed",
                                                    "peer lost by evidence",
                                                    "peer lost by silence",
                                                    "lease over",
                                                    "fence by word",
                                                    "fence alone",
                                                    "fence proved late",
                                                    "region proved",
                                                    "region proved late",
                                                    "grace over"};

}  // namespace

const char* to_string(Step step) noexcept { return kNames[static_cast<uint32_t>(step)]; }

}  // namespace fabric::core

#include "core/protocol_counters.h"

// Names of protocol events, for dumps. A pure function: any thread.

namespace fabric::core {
namespace {

constexpr std::array<const char*, kProtocolEvents> kNames = {"path opened",
                                                             "path broke",
                                                             "path torn down",
                                                             "path backed off",
                                                             "other rail paired",
                                                             "write in doubt",
                                                             "write found delivered",
                                                             "write replayed",
                                                             "shard replayed",
                                                             "write given up",
                                                             "given-up write resent",
                                                             "reconciled unproved",
                                                             "probe sent",
                                                             "probe answered",
                                                             "probe failed",
                                                             "rail down",
                                                             "rail up",
                                                             "rerouted",
                                                             "stopped queued",
                                                             "stopped posted",
                                                             "drain timed out",
                                                             "key poisoned",
                                                             "key aborted",
                                                             "peer stalled",
                                                             "peer resumed",
                                                             "peer lost by evidence",
                                                             "peer lost by silence",
                                                             "lease expired",
                                                             "fence by reply",
                                                             "fence without peer",
                                                             "fence proved late",
                                                             "region proved",
                                                             "region proved late",
                                                             "grace expired",
                                                             "message early",
                                                             "grant proved",
                                                             "grant proved late"};

}  // namespace

const char* to_string(ProtocolEvent event) noexcept { return kNames[static_cast<uint32_t>(event)]; }

}  // namespace fabric::core

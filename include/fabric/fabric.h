#pragma once

// Everything a user of the engine needs. The simulator (sim.h) and the provider contract
// (provider.h) are included on their own.
#include <fabric/caps.h>
#include <fabric/config.h>
#include <fabric/counter.h>
#include <fabric/engine.h>
#include <fabric/log.h>
#include <fabric/memory.h>
#include <fabric/notify.h>
#include <fabric/peer.h>
#include <fabric/result.h>
#include <fabric/stats.h>
#include <fabric/transfer.h>
#include <fabric/types.h>
#include <fabric/verbs.h>
#include <fabric/version.h>
#include <fabric/watcher.h>

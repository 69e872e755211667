#pragma once

// Everything that applications need. The simulator (sim.h) and the provider contract (provider.h)
// are included separately.
#include <fabric/caps.h>
#include <fabric/config.h>
#include <fabric/counter.h>
#include <fabric/engine.h>
#include <fabric/lists.h>
#include <fabric/log.h>
#include <fabric/memory.h>
#include <fabric/notify.h>
#include <fabric/peer.h>
#include <fabric/result.h>
#include <fabric/shm.h>
#include <fabric/stats.h>
#include <fabric/transfer.h>
#include <fabric/types.h>
#include <fabric/verbs.h>
#include <fabric/version.h>
#include <fabric/watcher.h>

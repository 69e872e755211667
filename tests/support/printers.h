#pragma once

#include <iosfwd>

#include <fabric/engine.h>
#include <fabric/notify.h>
#include <fabric/result.h>

// gtest prints these as words. The precompiled header includes this file, so that every test file
// prints a type in the same way.

namespace fabric {

void PrintTo(Errc code, std::ostream* out);
void PrintTo(Remote remote, std::ostream* out);
void PrintTo(PeerState state, std::ostream* out);

}  // namespace fabric

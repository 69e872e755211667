#include "support/printers.h"

#include <ostream>

namespace fabric {

void PrintTo(Errc code, std::ostream* out) { *out << to_string(code); }
void PrintTo(Remote remote, std::ostream* out) { *out << to_string(remote); }
void PrintTo(PeerState state, std::ostream* out) { *out << to_string(state); }

}  // namespace fabric

#pragma once

#include "native.h"

namespace fabric_python {

using PyPeerGroup = Held<fabric::PeerGroup>;

}  // namespace fabric_python

// <fabric/peer.h>: peers and groups of them.

#include "peer.h"

#include "record.h"

namespace fabric_python {

void bind_peer(nb::module_& m) {
  using fabric::PeerInfo;
  using fabric::PeerState;
  nb::enum_<PeerState>(m, "PeerState")
      .value("CONNECTING", PeerState::kConnecting)
      .value("CONNECTED", PeerState::kConnected)
      .value("STALLED", PeerState::kStalled)
      .value("LOST", PeerState::kLost)
      .value("FENCED", PeerState::kFenced);
  nb::enum_<fabric::PeerFilter>(m, "PeerFilter")
      .value("OPEN", fabric::PeerFilter::kOpen)
      .value("LOST_UNFENCED", fabric::PeerFilter::kLostUnfenced);
  nb::enum_<fabric::FenceKind>(m, "FenceKind")
      .value("NONE", fabric::FenceKind::kNone)
      .value("LOCAL", fabric::FenceKind::kLocal)
      .value("REKEY", fabric::FenceKind::kRekey)
      .value("HOST", fabric::FenceKind::kHost);
  Record<PeerInfo::Route>(m, "Route", "The network for a peer and a pair of memory kinds.", false)
      .field("here", "MemoryKind", &PeerInfo::Route::here)
      .field("there", "MemoryKind", &PeerInfo::Route::there)
      .field("network", "str", &PeerInfo::Route::network)
      .field("why", "str", &PeerInfo::Route::why);
  Record<PeerInfo>(m, "PeerInfo", "What is known of a peer.", false)
      .field("state", "PeerState", &PeerInfo::state)
      .field("routes", "tuple[Route, ...]", &PeerInfo::routes)
      .field("rails_here", "int", &PeerInfo::rails_here)
      .field("rails_there", "int", &PeerInfo::rails_there)
      .field("message_bytes_max", "int", &PeerInfo::message_bytes_max)
      .field("fence", "FenceKind", &PeerInfo::fence)
      .field("count_is_final", "bool", &PeerInfo::count_is_final)
      .field("app_info", "str", &PeerInfo::app_info)
      .field("engine_id", "int", &PeerInfo::engine_id)
      .field("incarnation", "int", &PeerInfo::incarnation);
  nb::class_<PyPeerGroup>(m, "PeerGroup", "A fixed list of peers for scatters and signals.")
      .def("__len__", [](PyPeerGroup& self) { return self.get().size(); })
      .def(
          "__getitem__",
          [](PyPeerGroup& self, uint32_t i) {
            if (i >= self.get().size()) throw nb::index_error();
            return self.get()[i];
          },
          "i"_a)
      .def_prop_ro("peers", [](PyPeerGroup& self) {
        const auto peers = self.get().peers();
        return std::vector<fabric::PeerId>(peers.begin(), peers.end());
      });
}

}  // namespace fabric_python

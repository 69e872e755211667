#include <fabric/counter.h>
#include <fabric/memory.h>
#include <fabric/notify.h>
#include <fabric/peer.h>
#include <fabric/types.h>

namespace fabric {

// Names of public enumerators. Pure functions: any thread.
//
// No default in these switches, so that the compiler reports a missing enumerator. The return after
// a switch is for values that are no enumerator.

const char* to_string(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::kDone:
      return "Done";
    case EventKind::kMessage:
      return "Message";
    case EventKind::kWatch:
      return "Watch";
    case EventKind::kPeer:
      return "Peer";
    case EventKind::kRail:
      return "Rail";
    case EventKind::kRoom:
      return "Room";
    case EventKind::kFenceProved:
      return "FenceProved";
    case EventKind::kUnhandled:
      return "Unhandled";
  }
  return "?";
}

const char* to_string(Remote remote) noexcept {
  switch (remote) {
    case Remote::kDelivered:
      return "Delivered";
    case Remote::kNotDelivered:
      return "NotDelivered";
    case Remote::kUnknown:
      return "Unknown";
  }
  return "?";
}

const char* to_string(Priority priority) noexcept {
  switch (priority) {
    case Priority::kNormal:
      return "Normal";
    case Priority::kUrgent:
      return "Urgent";
    case Priority::kBulk:
      return "Bulk";
  }
  return "?";
}

const char* to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost:
      return "Host";
    case MemoryKind::kCuda:
      return "Cuda";
    case MemoryKind::kRocm:
      return "Rocm";
  }
  return "?";
}

const char* to_string(Quiescence quiescence) noexcept {
  switch (quiescence) {
    case Quiescence::kProved:
      return "Proved";
    case Quiescence::kQuarantined:
      return "Quarantined";
  }
  return "?";
}

const char* to_string(PeerState state) noexcept {
  switch (state) {
    case PeerState::kConnecting:
      return "Connecting";
    case PeerState::kConnected:
      return "Connected";
    case PeerState::kStalled:
      return "Stalled";
    case PeerState::kLost:
      return "Lost";
    case PeerState::kFenced:
      return "Fenced";
  }
  return "?";
}

const char* to_string(FenceKind kind) noexcept {
  switch (kind) {
    case FenceKind::kNone:
      return "None";
    case FenceKind::kLocal:
      return "Local";
    case FenceKind::kRekey:
      return "Rekey";
    case FenceKind::kHost:
      return "Host";
  }
  return "?";
}

}  // namespace fabric

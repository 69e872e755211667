#include <fabric/log.h>
#include <fabric/result.h>

namespace fabric {

// No default in these switches, so that the compiler warns about a missing enumerator. The return
// after them is for values that are no enumerator.

const char* to_string(Errc code) noexcept {
  switch (code) {
    case Errc::kOk:
      return "Ok";
    case Errc::kInvalidArgument:
      return "InvalidArgument";
    case Errc::kOutOfBounds:
      return "OutOfBounds";
    case Errc::kUnsupported:
      return "Unsupported";
    case Errc::kExhausted:
      return "Exhausted";
    case Errc::kTooLarge:
      return "TooLarge";
    case Errc::kBadFormat:
      return "BadFormat";
    case Errc::kVersion:
      return "Version";
    case Errc::kNotFound:
      return "NotFound";
    case Errc::kTimeout:
      return "Timeout";
    case Errc::kCancelled:
      return "Cancelled";
    case Errc::kAborted:
      return "Aborted";
    case Errc::kReleased:
      return "Released";
    case Errc::kOverrun:
      return "Overrun";
    case Errc::kBusy:
      return "Busy";
    case Errc::kWouldDeadlock:
      return "WouldDeadlock";
    case Errc::kClosed:
      return "Closed";
    case Errc::kPermission:
      return "Permission";
    case Errc::kPeerLost:
      return "PeerLost";
    case Errc::kUnreachable:
      return "Unreachable";
    case Errc::kRemoteAccess:
      return "RemoteAccess";
    case Errc::kWrongJob:
      return "WrongJob";
    case Errc::kRailLost:
      return "RailLost";
  }
  return "?";
}

const char* to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kTrace:
      return "trace";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "?";
}

}  // namespace fabric

// <fabric/result.h>: error codes, and the exceptions that carry them.

#include "native.h"

namespace fabric_python {

namespace {

/// python/fabric_lib/_errors.py has the classes. Imported at the first failure, as it imports Errc
/// from this module.
nb::object make_exception() { return nb::module_::import_("fabric_lib._errors").attr("make"); }

}  // namespace

nb::object make_error(fabric::Errc code, const std::string& what, int native,
                      const std::string& where) {
  return make_exception()(nb::cast(code), what, native, where);
}

void raise(const fabric::Error& error) {
  const std::string where = std::string(error.file) + ":" + std::to_string(error.line);
  nb::object exception = make_error(error.code, error.what, error.native, where);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

void raise(fabric::Errc code, const std::string& what, int native) {
  nb::object exception = make_error(code, what, native, "");
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

void bind_result(nb::module_& m) {
  using fabric::Errc;
  nb::enum_<Errc>(m, "Errc", "Why a call or an operation failed; see <fabric/result.h>.")
      .value("OK", Errc::kOk)
      .value("INVALID_ARGUMENT", Errc::kInvalidArgument)
      .value("OUT_OF_BOUNDS", Errc::kOutOfBounds)
      .value("UNSUPPORTED", Errc::kUnsupported)
      .value("EXHAUSTED", Errc::kExhausted)
      .value("TOO_LARGE", Errc::kTooLarge)
      .value("BAD_FORMAT", Errc::kBadFormat)
      .value("VERSION", Errc::kVersion)
      .value("NOT_FOUND", Errc::kNotFound)
      .value("TIMEOUT", Errc::kTimeout)
      .value("CANCELLED", Errc::kCancelled)
      .value("ABORTED", Errc::kAborted)
      .value("RELEASED", Errc::kReleased)
      .value("OVERRUN", Errc::kOverrun)
      .value("BUSY", Errc::kBusy)
      .value("WOULD_DEADLOCK", Errc::kWouldDeadlock)
      .value("CLOSED", Errc::kClosed)
      .value("PERMISSION", Errc::kPermission)
      .value("PEER_LOST", Errc::kPeerLost)
      .value("UNREACHABLE", Errc::kUnreachable)
      .value("REMOTE_ACCESS", Errc::kRemoteAccess)
      .value("WRONG_JOB", Errc::kWrongJob)
      .value("RAIL_LOST", Errc::kRailLost);
}

}  // namespace fabric_python

#pragma once

// Durations: Python programs give seconds (int, float or timedelta), and get seconds as a float.

#include <nanobind/nanobind.h>

#include <fabric/types.h>

namespace fabric_python {

/// A timeout as an argument. None: the default of the engine; inf: for ever, where a call allows
/// it.
struct TimeoutArg {
  int64_t ns = fabric::Timeout::kDefault;
  bool valid = true;
  /// Throws ValueError with the argument's name for negative times and not-a-number.
  fabric::Timeout get(const char* name = "timeout") const;
};

/// A duration as an argument, without a default.
struct SecondsArg {
  int64_t ns = 0;
  bool valid = true;
  fabric::Nanos get(const char* name) const;
};

/// False with no Python error set when it is no duration.
bool read_seconds(nanobind::handle value, int64_t& ns, bool& valid) noexcept;

}  // namespace fabric_python

namespace nanobind::detail {

template <>
struct type_caster<fabric::Nanos> {
  NB_TYPE_CASTER(fabric::Nanos, const_name("float"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    int64_t ns = 0;
    bool valid = true;
    if (!fabric_python::read_seconds(source, ns, valid) || !valid) return false;
    value = fabric::Nanos{ns};
    return true;
  }
  static handle from_cpp(fabric::Nanos time, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(static_cast<double>(time.count()) / 1e9);
  }
};

template <>
struct type_caster<fabric_python::SecondsArg> {
  NB_TYPE_CASTER(fabric_python::SecondsArg, const_name("float | datetime.timedelta"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    return fabric_python::read_seconds(source, value.ns, value.valid);
  }
  static handle from_cpp(fabric_python::SecondsArg, rv_policy, cleanup_list*) noexcept {
    return none().release();
  }
};

template <>
struct type_caster<fabric_python::TimeoutArg> {
  NB_TYPE_CASTER(fabric_python::TimeoutArg, const_name("float | datetime.timedelta | None"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    value = {};
    return source.is_none() || fabric_python::read_seconds(source, value.ns, value.valid);
  }
  static handle from_cpp(fabric_python::TimeoutArg, rv_policy, cleanup_list*) noexcept {
    return none().release();  // as the default of an argument only
  }
};

}  // namespace nanobind::detail

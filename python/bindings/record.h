#pragma once

// Plain structs of the library as Python classes: a constructor with keywords, typed properties, a
// representation. Properties of lists return tuples: an append() to a copy would be lost silently.

#include <deque>
#include <string>
#include <type_traits>

#include "native.h"

namespace fabric_python {

inline constexpr const char* kInts = "tuple[int, ...]";
inline constexpr const char* kIntSequence = "collections.abc.Sequence[int]";
inline constexpr const char* kSecondsText = "float | datetime.timedelta";

/// Keeps a text for as long as the process lives: nanobind stores pointers to signatures.
inline const char* keep_text(std::string text) {
  static std::deque<std::string>* const all = new std::deque<std::string>;
  return all->emplace_back(std::move(text)).c_str();
}

[[noreturn]] void refuse_field(const char* type, const char* field, const std::string& wanted,
                               nb::handle value);
/// Type(field=value, ...), all fields in order.
nb::str describe(nb::handle self, const char* type, const std::vector<const char*>& fields);
/// Sets each keyword as an attribute; TypeError for one that is no field.
void set_fields(nb::handle self, const char* type, const std::vector<const char*>& fields,
                const nb::kwargs& values);

template <class F>
struct IsVector : std::false_type {};
template <class E>
struct IsVector<std::vector<E>> : std::true_type {};

template <class F>
nb::object to_python(const F& value) {
  if constexpr (IsVector<F>::value) {
    return nb::tuple(nb::cast(value));
  } else {
    return nb::cast(value);
  }
}

template <class T>
class Record {
 public:
  /// `writable`: the caller fills it in. Else it is an answer, without a constructor.
  Record(nb::handle scope, const char* name, const char* doc, bool writable = true)
      : class_(scope, name, doc), name_(name), writable_(writable) {
    fields_ = new std::vector<const char*>;  // lives as long as the class: for ever
  }
  ~Record() { finish(); }

  nb::class_<T>& python() { return class_; }

  /// `type`: of what is read. `accepts`: of what may be assigned, if that is more.
  template <class F>
  Record& field(const char* name, const char* type, F T::*member, const char* accepts = nullptr) {
    const char* record = name_;
    const std::string wanted = accepts == nullptr ? type : accepts;
    return custom(
        name, type, accepts, [member](const T& self) { return to_python(self.*member); },
        [member, record, name, wanted](T& self, nb::handle value) {
          F cast{};
          if (!nb::try_cast(value, cast)) refuse_field(record, name, wanted, value);
          self.*member = std::move(cast);
        });
  }

  /// A field with functions of its own.
  template <class Get, class Set>
  Record& custom(const char* name, const char* type, const char* accepts, Get get, Set set) {
    fields_->push_back(name);
    const std::string wanted = accepts == nullptr ? type : accepts;
    constructor_ += std::string(", ") + name + ": " + wanted + " = ...";
    const char* getter = keep_text(std::string("def ") + name + "(self) -> " + type);
    if (!writable_) {
      class_.def_prop_ro(name, get, nb::for_getter(nb::sig(getter)));
      return *this;
    }
    const char* setter =
        keep_text(std::string("def ") + name + "(self, value: " + wanted + ") -> None");
    class_.def_prop_rw(name, get, set, nb::for_getter(nb::sig(getter)),
                       nb::for_setter(nb::sig(setter)), nb::for_setter(nb::arg("value").none()));
    return *this;
  }

  const std::vector<const char*>* fields() const noexcept { return fields_; }

 private:
  void finish() {
    const char* record = name_;
    const std::vector<const char*>* fields = fields_;
    class_.def("__repr__",
               [record, fields](nb::handle self) { return describe(self, record, *fields); });
    if (!writable_) return;
    const char* text = keep_text("def __init__(self, *" + constructor_ + ") -> None");
    class_.def(
        "__init__",
        [record, fields](nb::pointer_and_handle<T> self, const nb::kwargs& values) {
          new (self.p) T{};
          nb::inst_mark_ready(self.h);
          set_fields(self.h, record, *fields, values);
        },
        nb::sig(text));
  }

  nb::class_<T> class_;
  const char* name_;
  bool writable_;
  std::vector<const char*>* fields_;
  std::string constructor_;
};

}  // namespace fabric_python

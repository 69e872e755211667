// <fabric/lists.h>: prepared lists, and the numbers that calls take.

#include "lists.h"

#include <nanobind/ndarray.h>

#include <cstring>

namespace fabric_python {

namespace {

[[noreturn]] void refuse_type(const char* name, const std::string& why) {
  throw nb::type_error((std::string(name) + ": " + why).c_str());
}

/// "I" and "i" on Linux; "L", "l", "Q" and "q" are 64 bits there.
char format_of(const Py_buffer& view) {
  const char* format = view.format == nullptr ? "B" : view.format;
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  return std::strlen(format) == 1 ? *format : '?';
}

constexpr const char* kPageTypes =
    "expected a PageList, an array of uint32, int32 or int64, a range or a sequence of int";

}  // namespace

PageIndices::PageIndices(nb::handle object, const char* name) {
  if (PyObject_CheckBuffer(object.ptr()) != 0 && from_buffer(object, name)) return;
  nb::ndarray<nb::ro, nb::device::cpu> array;
  if (nb::hasattr(object, "__dlpack__") && nb::try_cast(nb::borrow(object), array, false)) {
    if (array.ndim() != 1) refuse_type(name, "expected one dimension");
    if (array.size() > 1 && array.stride(0) != 1) refuse_type(name, "not contiguous");
    const size_t count = array.size();
    if (array.dtype() == nb::dtype<uint32_t>() || array.dtype() == nb::dtype<int32_t>()) {
      // The tensor keeps the memory for the call, as the caller holds it.
      span_ = {static_cast<const uint32_t*>(array.data()), count};
    } else if (array.dtype() == nb::dtype<int64_t>()) {
      convert(static_cast<const int64_t*>(array.data()), count, name);
    } else {
      refuse_type(name, kPageTypes);
    }
    return;
  }
  from_sequence(object, name);
}

PageIndices::~PageIndices() {
  if (has_view_) PyBuffer_Release(&view_);
}

bool PageIndices::from_buffer(nb::handle object, const char* name) {
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) != 0) {
    PyErr_Clear();
    refuse_type(name, "not contiguous");
  }
  has_view_ = true;
  if (view_.ndim != 1) refuse_type(name, "expected one dimension");
  const char format = format_of(view_);
  const size_t count = static_cast<size_t>(view_.len) / static_cast<size_t>(view_.itemsize);
  if (view_.itemsize == 4 && std::strchr("IiLl", format) != nullptr) {
    // A negative int32 is a page past 2^31, and refused as one that the region does not have.
    span_ = {static_cast<const uint32_t*>(view_.buf), count};
  } else if (view_.itemsize == 8 && std::strchr("lq", format) != nullptr) {
    convert(static_cast<const int64_t*>(view_.buf), count, name);
  } else if (view_.itemsize == 8 && std::strchr("LQ", format) != nullptr) {
    convert(static_cast<const uint64_t*>(view_.buf), count, name);
  } else {
    refuse_type(name, kPageTypes);
  }
  return true;
}

template <class T>
void PageIndices::convert(const T* numbers, size_t count, const char* name) {
  converted_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    if (numbers[i] < 0 || numbers[i] > T{UINT32_MAX}) {
      raise(fabric::Errc::kOutOfBounds,
            std::string(name) + ": " + std::to_string(numbers[i]) + " is not a page");
    }
    converted_[i] = static_cast<uint32_t>(numbers[i]);
  }
  span_ = converted_;
}

void PageIndices::from_sequence(nb::handle object, const char* name) {
  if (PySequence_Check(object.ptr()) == 0 || PyUnicode_Check(object.ptr())) {
    refuse_type(name, std::string(kPageTypes) + ", got " + nb::type_name(object.type()).c_str());
  }
  const Py_ssize_t count = PySequence_Size(object.ptr());
  if (count < 0) throw nb::python_error();
  converted_.reserve(static_cast<size_t>(count));
  for (nb::handle item : nb::iter(object)) {
    const unsigned long page = PyLong_AsUnsignedLong(item.ptr());
    if (PyErr_Occurred() != nullptr) {
      const bool overflow = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
      PyErr_Clear();
      if (!overflow) refuse_type(name, kPageTypes);
    } else if (page <= UINT32_MAX) {
      converted_.push_back(static_cast<uint32_t>(page));
      continue;
    }
    raise(fabric::Errc::kOutOfBounds,
          std::string(name) + ": " + nb::str(item).c_str() + " is not a page");
  }
  span_ = converted_;
}

Offsets::Offsets(nb::handle object, const char* name) : name_(name) {
  const auto take = [&](nb::handle number) {
    nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    const unsigned long long value = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse_type(name, "expected an int from 0 on, or a sequence of them");
    }
    numbers_.push_back(value);
  };
  if (PyLong_Check(object.ptr())) {
    single_ = true;
    take(object);
    return;
  }
  if (PySequence_Check(object.ptr()) == 0 && !nb::hasattr(object, "__array__")) {
    refuse_type(name, "expected an int from 0 on, or a sequence of them");
  }
  for (nb::handle item : nb::iter(object)) take(item);
}

void Offsets::expect_count(size_t count) const {
  if (!single_ && numbers_.size() != count) {
    raise(fabric::Errc::kInvalidArgument, std::string(name_) + ": " +
                                              std::to_string(numbers_.size()) + " of them, not " +
                                              std::to_string(count));
  }
}

std::optional<size_t> Offsets::count() const {
  return single_ ? std::nullopt : std::optional<size_t>(numbers_.size());
}

void bind_lists(nb::module_& m) {
  nb::class_<PyPageList>(m, "PageList", "Page indices that were copied once; see make_page_list().")
      .def_prop_ro("size", [](PyPageList& self) { return self.get().size(); })
      .def("__len__", [](PyPageList& self) { return self.get().size(); })
      .def("__repr__", [](PyPageList& self) {
        return "PageList(" + std::to_string(self.get().size()) + " pages)";
      });
  nb::class_<PyWriteList>(m, "WriteList", "Writes that were copied once; see make_write_list().")
      .def_prop_ro("size", [](PyWriteList& self) { return self.get().size(); })
      .def("__len__", [](PyWriteList& self) { return self.get().size(); })
      .def("__repr__", [](PyWriteList& self) {
        return "WriteList(" + std::to_string(self.get().size()) + " writes)";
      });
}

}  // namespace fabric_python

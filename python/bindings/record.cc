#include "record.h"

#include <algorithm>
#include <cstring>

namespace fabric_python {

void refuse_field(const char* type, const char* field, const std::string& wanted,
                  nb::handle value) {
  const std::string shown = nb::repr(value).c_str();
  const std::string text =
      std::string(type) + "." + field + ": expected " + wanted + ", got " + shown.substr(0, 80);
  throw nb::type_error(text.c_str());
}

nb::str describe(nb::handle self, const char* type, const std::vector<const char*>& fields) {
  std::string text = std::string(type) + "(";
  for (const char* field : fields) {
    if (text.back() != '(') text += ", ";
    text += std::string(field) + "=" + nb::repr(self.attr(field)).c_str();
  }
  return nb::str((text + ")").c_str());
}

void set_fields(nb::handle self, const char* type, const std::vector<const char*>& fields,
                const nb::kwargs& values) {
  for (const auto& [key, value] : values) {
    const std::string name = nb::cast<std::string>(key);
    const bool known =
        std::any_of(fields.begin(), fields.end(), [&](const char* field) { return name == field; });
    if (!known) {
      throw nb::type_error((std::string(type) + ": no field '" + name + "'").c_str());
    }
    nb::setattr(self, key, value);
  }
}

}  // namespace fabric_python

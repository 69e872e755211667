#pragma once

#include <string>

namespace demo {

/// Text as it may be in a page or in an attribute.
std::string escaped(const std::string& text);

/// A picture for a page. Colours come from the page's classes. What has a title shows it when the
/// pointer is over it.
class Svg {
 public:
  Svg(double width, double height, const std::string& label);

  struct Box {
    double x = 0, y = 0, width = 0, height = 0;
  };
  void box(const Box& box, const std::string& css_class, const std::string& title = {});
  void vertical(double x, double top, double bottom, const std::string& css_class,
                const std::string& title = {});
  enum class Anchor { kStart, kMiddle, kEnd };
  void text(double x, double y, Anchor anchor, const std::string& text,
            const std::string& css_class = "label");
  std::string str() const { return out_ + "</svg>\n"; }

 private:
  std::string out_{};
};

}  // namespace demo

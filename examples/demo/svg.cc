#include "svg.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace demo {

namespace {

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  char buffer[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(buffer, sizeof(buffer), format, values);
  va_end(values);
  return buffer;
}

std::string titled(const std::string& title, const char* end) {
  return title.empty() ? "/>\n" : "><title>" + escaped(title) + "</title>" + end + "\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Svg::Svg(double width, double height, const std::string& label) {
  out_ = text_of("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height) +
         escaped(label) + "\">\n";
}

void Svg::box(const Box& box, const std::string& css_class, const std::string& title) {
  // Half a unit is the narrowest visible bar.
  out_ += text_of("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"", box.x,
                  box.y, std::max(box.width, 0.5), box.height) +
          css_class + "\"" + titled(title, "</rect>");
}

void Svg::vertical(double x, double top, double bottom, const std::string& css_class,
                   const std::string& title) {
  out_ +=
      text_of("<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%.2f\" y2=\"%.2f\" class=\"", x, x, top, bottom) +
      css_class + "\"" + titled(title, "</line>");
}

void Svg::text(double x, double y, Anchor anchor, const std::string& text,
               const std::string& css_class) {
  const char* name = anchor == Anchor::kStart ? "start" : anchor == Anchor::kEnd ? "end" : "middle";
  out_ += text_of("<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\" class=\"", x, y, name) +
          css_class + "\">" + escaped(text) + "</text>\n";
}

}  // namespace demo

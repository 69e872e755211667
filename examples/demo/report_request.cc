#include <algorithm>
#include <cstdio>

#include "report.h"
#include "svg.h"

// The picture of one request: for every attempt and layer, when it was computed and when it had
// arrived.

namespace demo {

namespace {

constexpr double kWidth = 1200;
constexpr double kLeft = 90;
constexpr double kRight = 1190;
constexpr double kRowHeight = 12;

std::string ms_text(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f ms", static_cast<double>(ns) / 1e6);
  return text;
}

/// A round number of milliseconds that gives at most twelve grid lines.
int64_t grid_step_ns(int64_t span_ns) {
  int64_t step = 1'000'000;
  for (int i = 0; span_ns / step > 12; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;
  return step;
}

class RequestPicture {
 public:
  RequestPicture(uint64_t number, const RequestRecord& request, uint32_t layers)
      : request_(request), layers_(layers), begin_ns_(request.submitted_ns), end_ns_(begin_ns_) {
    for (const auto& [index, attempt] : request.attempts) {
      end_ns_ = std::max({end_ns_, attempt.complete_ns, attempt.failed_ns, attempt.pages_free_ns});
      for (const ComputedLayer& layer : attempt.computed) end_ns_ = std::max(end_ns_, layer.end_ns);
    }
    end_ns_ += (end_ns_ - begin_ns_) / 12 + 1000;  // room for the last label
    height_ = 8 + static_cast<double>(request.attempts.size()) * ((layers + 1) * kRowHeight + 26);
    label_ = "Layers of request " + std::to_string(number);
  }

  std::string draw() {
    Svg svg(kWidth, height_ + 20, label_);
    const int64_t step = grid_step_ns(end_ns_ - begin_ns_);
    for (int64_t ns = 0; ns <= end_ns_ - begin_ns_; ns += step) {
      svg.vertical(x(begin_ns_ + ns), 4, height_, "grid");
      svg.text(x(begin_ns_ + ns), height_ + 14, Svg::Anchor::kMiddle,
               std::to_string(ns / 1'000'000) + " ms");
    }
    double y = 18;
    for (const auto& [index, attempt] : request_.attempts) {
      svg.text(
          kLeft, y, Svg::Anchor::kStart,
          "attempt " + std::to_string(index) + ": " + attempt.prefiller + " to " + attempt.decoder,
          "name");
      draw_attempt(svg, attempt, y + 6);
      y += (layers_ + 1) * kRowHeight + 26;
    }
    return svg.str();
  }

 private:
  double x(int64_t ns) const {
    return kLeft + (kRight - kLeft) * static_cast<double>(ns - begin_ns_) /
                       static_cast<double>(end_ns_ - begin_ns_);
  }

  void draw_attempt(Svg& svg, const AttemptRecord& attempt, double top) const {
    std::vector<int64_t> computed_ns(layers_);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      svg.text(kLeft - 6, top + (layer + 0.8) * kRowHeight, Svg::Anchor::kEnd,
               "layer " + std::to_string(layer));
    }
    for (const ComputedLayer& layer : attempt.computed) {
      if (layer.layer >= layers_) continue;
      const double y = top + layer.layer * kRowHeight + 1;
      svg.box(
          {x(layer.begin_ns), y, x(layer.end_ns) - x(layer.begin_ns), kRowHeight - 2}, "compute",
          "layer " + std::to_string(layer.layer) + ", tokens " + std::to_string(layer.first_token) +
              " to " + std::to_string(layer.first_token + layer.tokens - 1) + ": computed in " +
              ms_text(layer.end_ns - layer.begin_ns));
      computed_ns[layer.layer] = layer.end_ns;
    }
    for (const auto& [layer, arrived_ns] : attempt.arrived_ns) {
      if (layer >= layers_ || computed_ns[layer] == 0) continue;
      svg.box({x(computed_ns[layer]), top + layer * kRowHeight + 3,
               x(arrived_ns) - x(computed_ns[layer]), kRowHeight - 6},
              "transfer",
              "layer " + std::to_string(layer) + ": all of it at the decoder " +
                  ms_text(arrived_ns - computed_ns[layer]) + " after it was computed");
    }
    draw_ends(svg, attempt, top);
  }

  void draw_ends(Svg& svg, const AttemptRecord& attempt, double top) const {
    const double bottom = top + layers_ * kRowHeight;
    const double label_y = bottom + kRowHeight;
    const auto mark = [&](int64_t ns, const std::string& text, const char* css_class) {
      svg.vertical(x(ns), top - 2, bottom + 3, css_class,
                   text + " after " + ms_text(ns - begin_ns_));
      const bool late = x(ns) > kRight - 200;
      svg.text(x(ns), label_y, late ? Svg::Anchor::kEnd : Svg::Anchor::kMiddle, text, "mark-label");
    };
    if (attempt.failed_ns > 0) mark(attempt.failed_ns, "failed: " + attempt.why, "mark");
    if (attempt.pages_free_ns > 0) {
      // Beside the failure when both are close.
      const bool close = x(attempt.pages_free_ns) - x(attempt.failed_ns) < 130;
      svg.box({x(attempt.failed_ns), bottom, x(attempt.pages_free_ns) - x(attempt.failed_ns), 3},
              "fenced", "pages not proved quiet yet");
      if (!close) mark(attempt.pages_free_ns, "pages proved quiet", "done");
    }
    if (attempt.complete_ns > 0) mark(attempt.complete_ns, "first token", "done");
  }

  const RequestRecord& request_;
  uint32_t layers_;
  int64_t begin_ns_;
  int64_t end_ns_;
  double height_ = 0;
  std::string label_{};
};

}  // namespace

std::string draw_request(uint64_t number, const RequestRecord& request, uint32_t layers) {
  return RequestPicture(number, request, layers).draw();
}

}  // namespace demo

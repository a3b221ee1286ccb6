#include "store/replay/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/tools/text_table.h"

namespace kv {
namespace {

constexpr double kPanelWidth = 430, kHeight = 380;                  // pixels
constexpr double kLeft = 62, kRight = 18, kTop = 92, kBottom = 58;  // around a panel's drawing
constexpr double kLabelDistance = 44;                               // between two labels below the axis
constexpr std::size_t kLooks = 6;                                   // colours and markers

constexpr const char* kStyle = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .head { font-weight: 600 } .tick { fill: #59636e }
  .paper { fill: #ffffff } .grid { stroke: #d8dee4 } .axis { stroke: #818b98 }
  polyline { fill: none; stroke-width: 2 } .bound { stroke-dasharray: 6 4 }
  .c0 { stroke: #57606a } .c1 { stroke: #bc4c00 } .c2 { stroke: #0969da }
  .c3 { stroke: #1a7f37 } .c4 { stroke: #8250df } .c5 { stroke: #bf3989 }
  .mark { fill: #ffffff; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .tick { fill: #9198a1 }
    .paper, .mark { fill: #0d1117 } .grid { stroke: #2b3138 } .axis { stroke: #656c76 }
    .c0 { stroke: #9198a1 } .c1 { stroke: #f0883e } .c2 { stroke: #58a6ff }
    .c3 { stroke: #3fb950 } .c4 { stroke: #bc8cff } .c5 { stroke: #ff80c8 }
  }
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default:
        // XML excludes most control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string at(double value) { return format_number(value, 1); }

std::string text(double x, double y, const char* anchor, const char* of_class, const std::string& words) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor + "\" class=\"" + of_class + "\">" +
         escaped(words) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* of_class) {
  return "<line x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) + "\" class=\"" +
         of_class + "\"/>\n";
}

/// Circle, square, diamond, triangle, inverted triangle, hexagon.
std::string marker(double x, double y, std::size_t look) {
  const std::string of_class = "class=\"mark c" + std::to_string(look) + "\"/>\n";
  if (look == 0) return "<circle cx=\"" + at(x) + "\" cy=\"" + at(y) + "\" r=\"3.5\" " + of_class;
  static const std::vector<std::pair<double, double>> shapes[kLooks] = {
      {},
      {{-3.5, -3.5}, {3.5, -3.5}, {3.5, 3.5}, {-3.5, 3.5}},
      {{0, -5}, {5, 0}, {0, 5}, {-5, 0}},
      {{0, -5}, {4.5, 3.5}, {-4.5, 3.5}},
      {{0, 5}, {4.5, -3.5}, {-4.5, -3.5}},
      {{-4, 0}, {-2, -3.5}, {2, -3.5}, {4, 0}, {2, 3.5}, {-2, 3.5}}};
  std::string points;
  for (const auto& [dx, dy] : shapes[look]) points += (points.empty() ? "" : " ") + at(x + dx) + "," + at(y + dy);
  return "<polygon points=\"" + points + "\" " + of_class;
}

/// 3,000 as 3k, 1,500,000 as 1.5M.
std::string short_count(double value) {
  const char* unit = value >= 1e6 ? "M" : value >= 1e3 ? "k" : "";
  const double scaled = value >= 1e6 ? value / 1e6 : value >= 1e3 ? value / 1e3 : value;
  std::string digits = format_number(scaled, 2);
  while (digits.ends_with('0')) digits.pop_back();
  if (digits.ends_with('.')) digits.pop_back();
  return digits + unit;
}

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// Round steps, about five; from zero unless that would hide the differences.
struct Scale {
  explicit Scale(Range of) {
    if (of.least > of.most) of = {0, 1};
    if (of.least >= 0 && of.least < of.most / 2) of.least = 0;
    if (of.most - of.least < 1e-9) of.most = of.least + (of.least == 0 ? 1 : std::abs(of.least) / 10);
    const double rough = (of.most - of.least) / 5;
    step = std::pow(10, std::floor(std::log10(rough)));
    for (const double factor : {10.0, 5.0, 2.0})
      if (step * factor <= rough * 1.5) {
        step *= factor;
        break;
      }
    least = std::floor(of.least / step + 1e-9) * step;
    most = std::ceil(of.most / step - 1e-9) * step;
    digits = step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  }
  double least = 0, most = 1, step = 1;
  int digits = 0;
};

std::string draw(const PlotPanel& panel, double left) {
  Range xs, ys;
  std::vector<double> ticks;
  for (const PlotLine& of : panel.lines)
    for (const auto& [x, y] : of.points) {
      xs.add(std::log(x));
      ys.add(y);
      ticks.push_back(x);
    }
  std::ranges::sort(ticks);
  ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  const Scale scale(ys);
  const double x0 = left + kLeft, x1 = left + kPanelWidth - kRight, y0 = kHeight - kBottom, y1 = kTop;
  const auto x_of = [&](double x) {
    return xs.most > xs.least ? x0 + 12 + (std::log(x) - xs.least) / (xs.most - xs.least) * (x1 - x0 - 24)
                              : (x0 + x1) / 2;
  };
  const auto y_of = [&](double y) { return y0 - (y - scale.least) / (scale.most - scale.least) * (y0 - y1); };

  std::string out = text((x0 + x1) / 2, y1 - 12, "middle", "head", panel.title);
  const int steps = static_cast<int>(std::lround((scale.most - scale.least) / scale.step));
  for (int i = 0; i <= steps; ++i) {
    const double value = scale.least + i * scale.step;
    out += line(x0, y_of(value), x1, y_of(value), "grid");
    out += text(x0 - 6, y_of(value) + 4, "end", "tick", format_number(value, scale.digits));
  }
  out += line(x0, y0, x1, y0, "axis") + line(x0, y0, x0, y1, "axis");
  double labelled = -kLabelDistance;
  for (const double tick : ticks) {
    out += line(x_of(tick), y0, x_of(tick), y0 + 4, "axis");
    if (x_of(tick) - labelled < kLabelDistance) continue;
    labelled = x_of(tick);
    out += text(labelled, y0 + 18, "middle", "tick", short_count(tick));
  }
  out += text((x0 + x1) / 2, y0 + 38, "middle", "", panel.x_label);
  out += "<text transform=\"translate(" + at(left + 16) + " " + at((y0 + y1) / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">" + escaped(panel.y_label) + "</text>\n";
  for (std::size_t i = 0; i < panel.lines.size(); ++i) {
    const PlotLine& of = panel.lines[i];
    const std::size_t look = i % kLooks;
    std::string points;
    for (const auto& [x, y] : of.points) points += (points.empty() ? "" : " ") + at(x_of(x)) + "," + at(y_of(y));
    out += "<polyline points=\"" + points + "\" class=\"c" + std::to_string(look) + (of.is_bound ? " bound" : "") +
           "\"/>\n";
    for (const auto& [x, y] : of.points) out += marker(x_of(x), y_of(y), look);
  }
  return out;
}

std::string legend(const std::vector<PlotLine>& lines) {
  std::string out;
  double x = kLeft;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t look = i % kLooks;
    out += "<polyline points=\"" + at(x) + ",50.0 " + at(x + 28) + ",50.0\" class=\"c" + std::to_string(look) +
           (lines[i].is_bound ? " bound" : "") + "\"/>\n" + marker(x + 14, 50, look);
    out += text(x + 34, 54, "start", "", lines[i].name);
    x += 52 + 7.2 * static_cast<double>(lines[i].name.size());
  }
  return out;
}

}  // namespace

std::string svg_plot(const std::string& title, const std::vector<PlotPanel>& panels) {
  const std::string width = format_number(kPanelWidth * static_cast<double>(panels.size()), 0);
  const std::string height = format_number(kHeight, 0);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + width + " " + height + "\" width=\"" +
                    width + "\" height=\"" + height + "\" role=\"img\">\n<title>" + escaped(title) + "</title>\n" +
                    kStyle + "<rect class=\"paper\" width=\"" + width + "\" height=\"" + height + "\"/>\n";
  out += text(kLeft, 26, "start", "title", title);
  if (!panels.empty()) out += legend(panels.front().lines);
  for (std::size_t i = 0; i < panels.size(); ++i) out += draw(panels[i], static_cast<double>(i) * kPanelWidth);
  return out + "</svg>\n";
}

}  // namespace kv

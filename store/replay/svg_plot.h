// store/replay/svg_plot.h: lines over a logarithmic axis, as a picture for documents.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kv {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x > 0, in order of x; all finite.
  bool is_bound = false;                          ///< An upper bound: drawn broken.
};
struct PlotPanel {
  std::string title, x_label, y_label;
  std::vector<PlotLine> lines;
};

/// An SVG document: the panels side by side, each with its axes, ticks at the points' x, and one legend for the lines
/// of the first panel; lines of one name look alike in all panels. Colours follow the reader's light or dark mode, and
/// each line has its own marker for readers who do not distinguish the colours. Texts may hold any characters.
std::string svg_plot(const std::string& title, const std::vector<PlotPanel>& panels);

}  // namespace kv

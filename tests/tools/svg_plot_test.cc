#include "store/replay/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace kv {
namespace {

using testing::HasSubstr;
using testing::Not;

PlotPanel panel(std::vector<PlotLine> lines) {
  return {.title = "Hit rate", .x_label = "capacity", .y_label = "share", .lines = std::move(lines)};
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(SvgPlotTest, AxesAndLinesAreNamed) {
  const std::string svg =
      svg_plot("a trace", {panel({{"lru", {{3000, .1}, {10000, .2}}, false}, {"optimum", {{3000, .3}}, true}})});
  for (const char* text : {">capacity<", ">share<", ">Hit rate<", ">lru<", ">optimum<", ">3k<", ">10k<", ">a trace<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_EQ(count(svg, "<polyline"), 4u) << "two in the legend, two drawn";
}

TEST(SvgPlotTest, TextsCannotBreakTheDocument) {
  const std::string svg = svg_plot("<script>&\"\x01", {panel({{"a<b", {{1, 1}}, false}})});
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;&quot; "));
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
}

TEST(SvgPlotTest, EveryPointLiesInsideThePicture) {
  const std::vector<std::vector<std::pair<double, double>>> series = {
      {},
      {{5, 0}},
      {{1, 0.9001}, {1e8, 0.9002}},
      {{3000, 0}, {3001, 1234567}},
      {{10, .33}, {20, .33}},
      {{2, -4}, {4, 5}},
  };
  for (const auto& points : series) {
    const std::string svg = svg_plot("t", {panel({{"a", points, false}})});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    static const std::regex circle("<circle cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
    std::size_t found = 0;
    for (std::sregex_iterator at(svg.begin(), svg.end(), circle), end; at != end; ++at, ++found) {
      const double x = std::stod((*at)[1]), y = std::stod((*at)[2]);
      EXPECT_TRUE(x >= 0 && x <= 430 && y >= 0 && y <= 380) << x << ", " << y;
    }
    EXPECT_EQ(found, points.size() + 1) << "and one in the legend";
  }
}

TEST(SvgPlotTest, HigherIsFurtherUpAndLaterFurtherRight) {
  const std::string svg = svg_plot("t", {panel({{"a", {{1000, .1}, {2000, .4}}, false}})});
  static const std::regex circle("<circle cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
  std::vector<std::pair<double, double>> at;
  for (std::sregex_iterator i(svg.begin(), svg.end(), circle), end; i != end; ++i)
    at.emplace_back(std::stod((*i)[1]), std::stod((*i)[2]));
  ASSERT_EQ(at.size(), 3u);
  EXPECT_LT(at[1].first, at[2].first);
  EXPECT_GT(at[1].second, at[2].second);
}

}  // namespace
}  // namespace kv

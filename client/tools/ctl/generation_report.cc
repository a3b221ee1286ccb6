#include "client/tools/ctl/generation_report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

std::string format_flops(double count) {
  for (const char* const unit : {" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP"}) {
    if (count < 1000) return format_number(count, 2) + unit;
    count /= 1000;
  }
  return format_number(count, 2) + " ZFLOP";
}

Work operator+(const Work& a, const Work& b) {
  return {.with_cache = a.with_cache + b.with_cache, .without_cache = a.without_cache + b.without_cache};
}

}  // namespace

GenerationReport::GenerationReport(ModelCache model, double parameters, bool has_own_logits,
                                   const Generation& generation)
    : model_(std::move(model)), parameters_(parameters), has_own_logits_(has_own_logits), generation_(generation) {}

std::string GenerationReport::heading() const {
  return format_count(generation_.batch) + " x " + format_count(generation_.prompt_tokens + generation_.new_tokens) +
         " tokens";
}

std::uint64_t GenerationReport::peak_bytes(CacheFormat format) const {
  const auto bytes = peak_cache_bytes(model_, format, generation_);
  if (!bytes) throw ToolFailed("--batch: so many states are beyond any machine");
  return *bytes;
}

std::vector<GenerationReport::Row> GenerationReport::rows() const {
  const GenerationWork work(model_, parameters_);
  const double prompt = work.prompt(generation_);
  const Work last = work.last_step(generation_), steps = work.steps(generation_);
  std::vector<Row> rows = {{"prompt", "prompt", {prompt, prompt}}};
  const bool is_uniform = model_.groups.size() == 1 && model_.groups[0].layers.size() == model_.shape.layer_count;
  if (is_uniform) {
    const auto layers = static_cast<double>(model_.shape.layer_count);
    rows.push_back(
        {"last step, one layer", "last_step_layer", {last.with_cache / layers, last.without_cache / layers}});
  }
  rows.push_back({"last step", "last_step", last});
  rows.push_back({"all steps", "steps", steps});
  Work sum = Work{prompt, prompt} + steps;
  if (has_own_logits_ && model_.shape.vocabulary_size > 0) {
    rows.push_back({"last step's logits", "last_step_logits", work.step_logits(generation_)});
    rows.push_back({"all logits", "logits", work.all_logits(generation_)});
    sum = sum + work.all_logits(generation_);
  }
  rows.push_back({"in all", "all", sum});
  return rows;
}

nlohmann::json GenerationReport::json() const {
  nlohmann::json document = {{"batch", generation_.batch},
                             {"prompt_tokens", generation_.prompt_tokens},
                             {"new_tokens", generation_.new_tokens}};
  if (parameters_ == 0) return document;
  for (const auto& [name, key, work] : rows()) {
    document["flops"][key] = {
        {"with_cache", work.with_cache}, {"without_cache", work.without_cache}, {"ratio", work.ratio()}};
  }
  return document;
}

void GenerationReport::print(std::ostream& out) const {
  out << "\n"
      << format_count(generation_.batch) << (generation_.batch == 1 ? " sequence of " : " sequences of ")
      << format_count(generation_.prompt_tokens) << " tokens, then " << format_count(generation_.new_tokens)
      << (generation_.new_tokens == 1 ? " step\n" : " steps\n");
  if (parameters_ == 0) return;
  TextTable table({"operations", "with a cache", "without", "ratio"});
  for (const auto& [name, key, work] : rows())
    table.add(
        {name, format_flops(work.with_cache), format_flops(work.without_cache), format_number(work.ratio(), 1) + "x"});
  out << '\n';
  table.print(out);
}

}  // namespace kv

// kvstorectl size: size of a model's cache, and the bandwidth at which fetching beats computing.
//
// Arithmetic on the model's shape (gpu/paging/cache_size.h), without nodes: people size a store before they have one.
#include <fstream>
#include <iostream>
#include <sstream>

#include "client/models/known_models.h"
#include "client/models/model_config.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/generation_report.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"
#include "gpu/paging/cache_size.h"
#include "gpu/paging/generation_work.h"

namespace kv {
namespace {

struct SizeOptions {
  std::string config_file, model, format;
  ModelShape shape{.head_size = 128};
  bool plain_ffn = false, full = false, list_models = false, json = false;
  double parameter_count = 0, flops_per_second = 4e14;
  std::size_t bandwidth = 50'000'000'000;
  std::uint64_t token_count = 8192, block_size = 16;
  std::uint64_t batch = 1, new_token_count = 0;
};

void list_models(bool as_json) {
  nlohmann::json document = nlohmann::json::array();
  TextTable table({"model", "facts from"});
  for (const KnownModel& model : known_models()) {
    table.add({std::string(model.name), std::string(model.source)});
    document.push_back(
        {{"model", model.name}, {"source", model.source}, {"config", nlohmann::json::parse(model.config)}});
  }
  print_answer(as_json, {{"models", document}}, table);
}

/// Of the file or the name, if either is given.
std::optional<ModelCache> named_model(const SizeOptions& options) {
  if (!options.model.empty()) {
    const KnownModel* const known = known_model(options.model);
    if (known == nullptr)
      throw CLI::ValidationError("--model", "'" + options.model + "' is not known; --list-models shows the names");
    std::istringstream text{std::string(known->config)};
    return read_model(text);
  }
  if (options.config_file.empty()) return std::nullopt;
  std::ifstream file(options.config_file);
  if (!file) throw ToolFailed(options.config_file + ": cannot be read");
  try {
    return read_model(file);
  } catch (const std::runtime_error& error) {
    throw ToolFailed(options.config_file + ": " + error.what());
  }
}

/// A model's own shape, overridden by the command line.
void override_shape(const SizeOptions& options, const CLI::App& command, ModelShape& shape) {
  const std::pair<const char*, std::uint64_t ModelShape::*> members[] = {
      {"--layers", &ModelShape::layer_count},
      {"--kv-heads", &ModelShape::kv_head_count},
      {"--head-size", &ModelShape::head_size},
      {"--latent", &ModelShape::latent_size},
      {"--rope", &ModelShape::rope_size},
      {"--heads", &ModelShape::query_head_count},
      {"--hidden", &ModelShape::hidden_size},
      {"--ffn", &ModelShape::ffn_size},
      {"--vocabulary", &ModelShape::vocabulary_size},
  };
  for (const auto& [name, member] : members) {
    if (command.count(name) > 0) shape.*member = options.shape.*member;
  }
  shape.has_sparse_index |= options.shape.has_sparse_index;  // a flag can only add
}

ModelCache model_of(const SizeOptions& options, const CLI::App& command) {
  auto named = named_model(options);
  ModelCache model = named ? *std::move(named) : ModelCache{.shape = options.shape, .groups = {}};
  if (!model.groups.empty()) override_shape(options, command, model.shape);
  if (options.plain_ffn) model.shape.has_gated_ffn = false;
  if (options.full) model = without_windows(std::move(model));
  const bool is_uniform = model.groups.empty() || (model.groups.size() == 1 && model.groups[0].token_limit == 0 &&
                                                   model.groups[0].kind == LayerKind::kFull);
  if (!is_uniform && command.count("--layers") > 0)
    throw CLI::ValidationError("--layers", "this model's layers differ; their number cannot be changed");
  ModelShape& shape = model.shape;
  if (shape.kv_head_count == 0) shape.kv_head_count = shape.query_head_count;  // no grouping: one for each query head
  const bool has_attention =
      std::ranges::any_of(model.groups, [](const LayerGroup& group) { return group.kind != LayerKind::kState; });
  if ((is_uniform || has_attention) && !check_shape(shape)) {
    throw CLI::ValidationError("size",
                               "give a model: --model NAME, --config FILE, or --layers, --kv-heads and --head-size");
  }
  return model.groups.empty() || command.count("--layers") > 0 ? uniform_cache(shape) : model;
}

/// Without --format every format that fits the model, for comparison.
std::vector<CacheFormat> formats_of(const SizeOptions& options, const ModelCache& model) {
  std::vector<CacheFormat> formats;
  for (const CacheFormat format : kCacheFormats) {
    const bool is_asked = options.format.empty() || cache_format_from_name(options.format) == format;
    if (is_asked && cache_bytes(model, format, 1)) formats.push_back(format);
  }
  if (formats.empty()) throw CLI::ValidationError("--format", "'" + options.format + "' does not fit this model");
  return formats;
}

std::string describe_group(const LayerGroup& group) {
  const std::string layers = format_count(group.layers.size());
  switch (group.kind) {
    case LayerKind::kFull: return layers + " full";
    case LayerKind::kWindow: return layers + " with windows of " + format_count(group.token_limit);
    case LayerKind::kChunk: return layers + " with chunks of " + format_count(group.token_limit);
    case LayerKind::kState: return layers + " with states";
  }
  return layers;
}

std::string describe_model(const ModelCache& model, double parameters) {
  const ModelShape& shape = model.shape;
  std::string text = format_count(shape.layer_count) + " layers";
  if (model.groups.size() > 1 || model.groups[0].layers.size() < shape.layer_count ||
      model.groups[0].kind != LayerKind::kFull) {
    std::string groups;
    for (const LayerGroup& group : model.groups) groups += (groups.empty() ? "" : ", ") + describe_group(group);
    text += " (" + groups + ")";
  }
  if (shape.latent_size > 0) {
    text += ", MLA of " + format_count(shape.latent_size) + " + " + format_count(shape.rope_size);
  } else if (shape.kv_head_count > 0) {
    text += ", " + format_count(shape.kv_head_count) + " KV heads of " + format_count(shape.head_size);
  }
  if (shape.has_sparse_index) text += ", sparse indexer";
  if (parameters > 0) text += ", a token meets " + format_number(parameters / 1e9, 2) + " billion parameters";
  return text;
}

nlohmann::json groups_json(const ModelCache& model) {
  nlohmann::json groups = nlohmann::json::array();
  for (const LayerGroup& group : model.groups) {
    groups.push_back({{"kind", layer_kind_name(group.kind)},
                      {"token_limit", group.token_limit},
                      {"layers", group.layers.size()},
                      {"sharing_layers", group.sharing_layer_count}});
  }
  return groups;
}

std::uint64_t bytes_per_token(const ModelCache& model, CacheFormat format) {
  std::uint64_t bytes = 0;
  for (const LayerGroup& group : model.groups) bytes += group_bytes_per_token(model.shape, group, format).value();
  return bytes;
}

/// One format, for the document and as a row of the table.
struct FormatLine {
  nlohmann::json entry;
  std::vector<std::string> row;
};

/// `flops`: of a prefill, 0 if unknown.
FormatLine format_line(const SizeOptions& options, const ModelCache& model, CacheFormat format, double flops) {
  const std::uint64_t token_bytes = bytes_per_token(model, format);  // 0 if there are states alone
  const std::uint64_t bytes = cache_bytes(model, format, options.token_count).value();
  const auto total_bytes = static_cast<double>(bytes), bandwidth = static_cast<double>(options.bandwidth);
  nlohmann::json entry = {{"format", cache_format_name(format)},
                          {"bytes_per_token", token_bytes},
                          {"block_bytes", token_bytes * options.block_size},
                          {"bytes", bytes},
                          {"fetch_seconds", total_bytes / bandwidth}};
  std::string per_gib = "-", computed = "-", speedup = "-", equal = "-";
  if (token_bytes > 0) {
    entry["tokens_per_gib"] = (std::uint64_t{1} << 30) / token_bytes;
    per_gib = format_count((std::uint64_t{1} << 30) / token_bytes);
  }
  if (flops > 0) {
    const BreakEven even = break_even(total_bytes, flops, options.flops_per_second);
    entry["compute_seconds"] = even.recompute_seconds;
    entry["fetch_speedup"] = even.fetch_speedup(bandwidth);
    entry["break_even_bandwidth"] = even.bandwidth;
    computed = format_seconds(even.recompute_seconds);
    speedup = format_number(even.fetch_speedup(bandwidth), 1) + "x";
    equal = format_number(even.bandwidth / 1e9, 2) + " GB/s";
  }
  return {entry,
          {std::string(cache_format_name(format)), format_count(token_bytes), per_gib,
           format_bytes(token_bytes * options.block_size), format_bytes(bytes), format_seconds(total_bytes / bandwidth),
           computed, speedup, equal}};
}

nlohmann::json describe_json(const SizeOptions& options, const ModelCache& model, double parameters, double flops) {
  const ModelShape& shape = model.shape;
  return {{"layers", shape.layer_count},
          {"kv_heads", shape.kv_head_count},
          {"head_size", shape.head_size},
          {"latent_size", shape.latent_size},
          {"rope_size", shape.rope_size},
          {"parameters", parameters},
          {"tokens", options.token_count},
          {"block_tokens", options.block_size},
          {"bandwidth", options.bandwidth},
          {"flops_per_second", options.flops_per_second},
          {"prefill_flops", flops},
          {"groups", groups_json(model)},
          {"formats", nlohmann::json::array()}};
}

void run_size(const SizeOptions& options, const CLI::App& command) {
  if (options.list_models) return list_models(options.json);
  const ModelCache model = model_of(options, command);
  const double parameters = options.parameter_count > 0 ? options.parameter_count : layer_parameter_count(model);
  const Generation generation{options.batch, options.token_count, options.new_token_count};
  if (!check_generation(generation))
    throw CLI::ValidationError("--batch", "all sequences together have more than 2^31 tokens");
  const GenerationReport report(model, parameters, /*has_own_logits=*/options.parameter_count == 0, generation);
  // Attention grows with the square of the tokens, so long prompts gain more from a cache than the break-even of their
  // first tokens.
  const double flops = parameters > 0 ? GenerationWork(model, parameters).masked_pass(options.token_count) : 0;

  nlohmann::json document = describe_json(options, model, parameters, flops);
  std::vector<std::string> headings = {"format",
                                       "bytes/token",
                                       "tokens/GiB",
                                       "block of " + format_count(options.block_size),
                                       format_count(options.token_count) + " tokens",
                                       "fetched in",
                                       "computed in",
                                       "speedup",
                                       "break-even"};
  if (report.is_asked()) headings.push_back(report.heading());
  TextTable table(headings);
  for (const CacheFormat format : formats_of(options, model)) {
    FormatLine line = format_line(options, model, format, flops);
    if (report.is_asked()) {
      line.entry["peak_bytes"] = report.peak_bytes(format);
      line.row.push_back(format_bytes(report.peak_bytes(format)));
    }
    document["formats"].push_back(line.entry);
    table.add(line.row);
  }
  if (report.is_asked()) document["generation"] = report.json();
  if (options.json) {
    std::cout << json_text(document) << '\n';
    return;
  }
  std::cout << describe_model(model, parameters) << "\nfetched at "
            << format_number(static_cast<double>(options.bandwidth) / 1e9, 1) << " GB/s, computed at "
            << format_number(options.flops_per_second / 1e12, 0) << " TFLOP/s\n\n";
  table.print(std::cout);
  if (report.is_asked()) report.print(std::cout);
  if (flops == 0) std::cout << "\nto compare with computing, give --parameters (those that one token meets)\n";
}

}  // namespace

void add_size_command(CLI::App& app) {
  auto options = std::make_shared<SizeOptions>();
  CLI::App* command = app.add_subcommand("size", "How large a model's cache is, and when fetching beats computing");
  const auto count_option = [&](const char* name, std::uint64_t& value, const char* about, int bits = 24) {
    return command->add_option(name, value, about)
        ->type_name("N")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << bits));
  };
  CLI::Option* const config =
      command
          ->add_option("--config", options->config_file, "The model's config.json; an option given below overrides it")
          ->type_name("FILE");
  command->add_option("--model", options->model, "A common model by name, instead of --config; see --list-models")
      ->type_name("NAME")
      ->excludes(config);
  command->add_flag("--list-models", options->list_models, "List those names, and the source of their facts");
  count_option("--layers", options->shape.layer_count, "Layers");
  count_option("--kv-heads", options->shape.kv_head_count, "K and V heads of a layer; default: as many as --heads");
  count_option("--head-size", options->shape.head_size, "Elements of a head; 128 unless given");
  count_option("--latent", options->shape.latent_size, "MLA: elements that stand for keys and values");
  count_option("--rope", options->shape.rope_size, "MLA: rotated elements of the key beside them");
  command->add_flag("--sparse-index", options->shape.has_sparse_index, "An indexer's keys too, 132 bytes a layer");
  count_option("--heads", options->shape.query_head_count, "Query heads");
  count_option("--hidden", options->shape.hidden_size, "Hidden size");
  count_option("--ffn", options->shape.ffn_size, "FFN size, of all experts that a token visits");
  count_option("--vocabulary", options->shape.vocabulary_size, "Tokens of the vocabulary, for the logits");
  command->add_flag("--plain-ffn", options->plain_ffn, "The FFN has two matrices, not three");
  command->add_option("--parameters", options->parameter_count, "Parameters that a token meets, for example 37e9")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command->add_option("--flops", options->flops_per_second, "Operations a second that prefill reaches")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_bytes_option(*command, "--bandwidth", options->bandwidth, "Bytes a second that a fetch reaches")
      ->default_str("50GB");
  count_option("--tokens", options->token_count, "Tokens to fetch or to compute", 31)->capture_default_str();
  count_option("--new-tokens", options->new_token_count, "Then generate so many: operations with a cache and without",
               31);
  count_option("--batch", options->batch, "Sequences of --new-tokens", 31)->capture_default_str();
  command->add_flag("--full", options->full, "Count layers with windows or chunks as full ones");
  count_option("--block-size", options->block_size, "Tokens in a block", 20)->capture_default_str();
  command->add_option("--format", options->format, "Show only this format")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16", "fp8", "int8_per_token_head", "nvfp4", "fp8_ds_mla"}));
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Asks no node. What computing costs follows from --heads, --hidden and --ffn, or from --parameters.\n\n"
      "Examples:\n"
      "  kvstorectl size --model llama-3.1-8b --bandwidth 12.5GB\n"
      "  kvstorectl size --model gpt3-175b --batch 64 --tokens 512 --new-tokens 32\n"
      "  kvstorectl size --config Llama-3.1-8B/config.json --bandwidth 12.5GB\n"
      "  kvstorectl size --layers 32 --kv-heads 8 --head-size 128 --parameters 8e9 --flops 1e15\n"
      "  kvstorectl size --layers 61 --latent 512 --rope 64 --parameters 37e9 --format fp8_ds_mla\n");
  command->callback([options, command] { run_size(*options, *command); });
}

}  // namespace kv

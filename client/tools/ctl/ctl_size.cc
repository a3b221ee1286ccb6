// kvstorectl size: size of a model's cache, and the bandwidth at which fetching beats computing.
//
// Arithmetic on the model's shape (gpu/paging/cache_size.h), without nodes: people size a store before they have one.
#include <fstream>
#include <iostream>

#include "base/assert.h"
#include "client/model_config.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"
#include "gpu/paging/cache_size.h"

namespace kv {
namespace {

struct SizeOptions {
  std::string config_file, format;
  ModelShape shape{.head_size = 128};
  bool plain_ffn = false;
  double parameter_count = 0, flops_per_second = 4e14;
  std::size_t bandwidth = 50'000'000'000;
  std::uint64_t token_count = 8192, block_size = 16;
  bool json = false;
};

/// The shape from the file, overridden by the command line.
ModelShape shape_of(const SizeOptions& options, const CLI::App& command) {
  ModelShape shape = options.shape;
  if (!options.config_file.empty()) {
    std::ifstream file(options.config_file);
    if (!file) throw ToolFailed(options.config_file + ": cannot be read");
    try {
      shape = read_model_config(file);
    } catch (const std::runtime_error& error) {
      throw ToolFailed(options.config_file + ": " + error.what());
    }
    const std::pair<const char*, std::uint64_t ModelShape::*> members[] = {
        {"--layers", &ModelShape::layer_count},  {"--kv-heads", &ModelShape::kv_head_count},
        {"--head-size", &ModelShape::head_size}, {"--latent", &ModelShape::latent_size},
        {"--rope", &ModelShape::rope_size},      {"--heads", &ModelShape::query_head_count},
        {"--hidden", &ModelShape::hidden_size},  {"--ffn", &ModelShape::ffn_size},
    };
    for (const auto& [name, member] : members) {
      if (command.count(name) > 0) shape.*member = options.shape.*member;
    }
    shape.has_sparse_index |= options.shape.has_sparse_index;  // a flag can only add
  }
  if (options.plain_ffn) shape.has_gated_ffn = false;
  if (shape.kv_head_count == 0) shape.kv_head_count = shape.query_head_count;  // no grouping: one for each query head
  if (!check_shape(shape)) {
    throw CLI::ValidationError("size", "give a model: --config FILE, or --layers, --kv-heads and --head-size");
  }
  return shape;
}

/// Weights that apply to a token, or 0 if unknown: with MLA, whose projections differ, or without an FFN.
double parameter_count(const SizeOptions& options, const ModelShape& shape) {
  if (options.parameter_count > 0) return options.parameter_count;
  const bool is_known =
      shape.latent_size == 0 && shape.query_head_count > 0 && shape.hidden_size > 0 && shape.ffn_size > 0;
  return is_known ? layer_parameter_count(shape) : 0;
}

/// Without --format every format that fits the model, for comparison.
std::vector<CacheFormat> formats_of(const SizeOptions& options, const ModelShape& shape) {
  std::vector<CacheFormat> formats;
  for (const CacheFormat format : kCacheFormats) {
    const bool is_asked = options.format.empty() || cache_format_from_name(options.format) == format;
    if (is_asked && cache_bytes_per_token(shape, format)) formats.push_back(format);
  }
  if (formats.empty()) throw CLI::ValidationError("--format", "'" + options.format + "' does not fit this model");
  return formats;
}

std::string describe_shape(const ModelShape& shape, double parameters) {
  std::string text = format_count(shape.layer_count) + " layers, ";
  if (shape.latent_size > 0) {
    text += "MLA of " + format_count(shape.latent_size) + " + " + format_count(shape.rope_size);
  } else {
    text += format_count(shape.kv_head_count) + " KV heads of " + format_count(shape.head_size);
  }
  if (shape.has_sparse_index) text += ", sparse indexer";
  if (parameters > 0) text += ", a token meets " + format_number(parameters / 1e9, 2) + " billion parameters";
  return text;
}

void run_size(const SizeOptions& options, const CLI::App& command) {
  const ModelShape shape = shape_of(options, command);
  const double parameters = parameter_count(options, shape), bandwidth = static_cast<double>(options.bandwidth);
  const auto tokens = static_cast<double>(options.token_count);
  // A multiplication and an addition for each weight and token. Attention grows with the square of the tokens, so long
  // prompts gain more from a cache than the break-even of their first tokens.
  const double flops = parameters > 0 ? 2 * parameters * tokens + attention_flops(shape, tokens) : 0;

  nlohmann::json document = {{"layers", shape.layer_count},    {"kv_heads", shape.kv_head_count},
                             {"head_size", shape.head_size},   {"latent_size", shape.latent_size},
                             {"rope_size", shape.rope_size},   {"parameters", parameters},
                             {"tokens", options.token_count},  {"block_tokens", options.block_size},
                             {"bandwidth", options.bandwidth}, {"flops_per_second", options.flops_per_second},
                             {"prefill_flops", flops},         {"formats", nlohmann::json::array()}};
  TextTable table({"format", "bytes/token", "tokens/GiB", "block of " + format_count(options.block_size),
                   format_count(options.token_count) + " tokens", "fetched in", "computed in", "speedup",
                   "break-even"});
  for (const CacheFormat format : formats_of(options, shape)) {
    const std::uint64_t bytes = *cache_bytes_per_token(shape, format);
    KV_ASSERT(bytes > 0);  // formats_of() skips formats that do not fit
    const double total_bytes = static_cast<double>(bytes) * tokens, fetch_seconds = total_bytes / bandwidth;
    nlohmann::json entry = {{"format", cache_format_name(format)},
                            {"bytes_per_token", bytes},
                            {"tokens_per_gib", (std::uint64_t{1} << 30) / bytes},
                            {"block_bytes", bytes * options.block_size},
                            {"bytes", bytes * options.token_count},
                            {"fetch_seconds", fetch_seconds}};
    std::string computed = "-", speedup = "-", equal = "-";
    if (flops > 0) {
      const BreakEven even = break_even(total_bytes, flops, options.flops_per_second);
      entry["compute_seconds"] = even.recompute_seconds;
      entry["fetch_speedup"] = even.fetch_speedup(bandwidth);
      entry["break_even_bandwidth"] = even.bandwidth;
      computed = format_seconds(even.recompute_seconds);
      speedup = format_number(even.fetch_speedup(bandwidth), 1) + "x";
      equal = format_number(even.bandwidth / 1e9, 2) + " GB/s";
    }
    document["formats"].push_back(entry);
    table.add({std::string(cache_format_name(format)), format_count(bytes),
               format_count((std::uint64_t{1} << 30) / bytes), format_bytes(bytes * options.block_size),
               format_bytes(bytes * options.token_count), format_seconds(fetch_seconds), computed, speedup, equal});
  }
  if (options.json) {
    std::cout << json_text(document) << '\n';
    return;
  }
  std::cout << describe_shape(shape, parameters) << "\nfetched at " << format_number(bandwidth / 1e9, 1)
            << " GB/s, computed at " << format_number(options.flops_per_second / 1e12, 0) << " TFLOP/s\n\n";
  table.print(std::cout);
  if (flops == 0) std::cout << "\nto compare with computing, give --parameters (those that one token meets)\n";
}

}  // namespace

void add_size_command(CLI::App& app) {
  auto options = std::make_shared<SizeOptions>();
  CLI::App* command = app.add_subcommand("size", "How large a model's cache is, and when fetching beats computing");
  const auto count_option = [&](const char* name, std::uint64_t& value, const char* about) {
    command->add_option(name, value, about)
        ->type_name("N")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24));
  };
  command->add_option("--config", options->config_file, "The model's config.json; an option given below overrides it")
      ->type_name("FILE");
  count_option("--layers", options->shape.layer_count, "Layers");
  count_option("--kv-heads", options->shape.kv_head_count, "K and V heads of a layer; default: as many as --heads");
  count_option("--head-size", options->shape.head_size, "Elements of a head; 128 unless given");
  count_option("--latent", options->shape.latent_size, "MLA: elements that stand for keys and values");
  count_option("--rope", options->shape.rope_size, "MLA: rotated elements of the key beside them");
  command->add_flag("--sparse-index", options->shape.has_sparse_index, "An indexer's keys too, 132 bytes a layer");
  count_option("--heads", options->shape.query_head_count, "Query heads");
  count_option("--hidden", options->shape.hidden_size, "Hidden size");
  count_option("--ffn", options->shape.ffn_size, "FFN size, of all experts that a token visits");
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
  command->add_option("--tokens", options->token_count, "Tokens to fetch or to compute")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  command->add_option("--block-size", options->block_size, "Tokens in a block")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20));
  command->add_option("--format", options->format, "Show only this format")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16", "fp8", "int8_per_token_head", "nvfp4", "fp8_ds_mla"}));
  command->add_flag("--json", options->json, "One JSON document, for scripts");
  command->footer(
      "Asks no node. What computing costs follows from --heads, --hidden and --ffn, or from --parameters.\n\n"
      "Examples:\n"
      "  kvstorectl size --config Llama-3.1-8B/config.json --bandwidth 12.5GB\n"
      "  kvstorectl size --layers 32 --kv-heads 8 --head-size 128 --parameters 8e9 --flops 1e15\n"
      "  kvstorectl size --layers 61 --latent 512 --rope 64 --parameters 37e9 --format fp8_ds_mla\n");
  command->callback([options, command] { run_size(*options, *command); });
}

}  // namespace kv

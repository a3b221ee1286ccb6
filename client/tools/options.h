// client/tools/options.h: options that every tool reads alike: sizes and durations as people write them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <string>

#include "base/text/quantity.h"
#include "client/tools/text_table.h"

namespace kv {

/// An option that takes 4096, 4KiB, 2MiB, ... into `value`, which holds the default.
inline CLI::Option* add_bytes_option(CLI::App& app, const std::string& name, std::size_t& value, std::string about) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            std::uint64_t bytes = 0;
            if (!parse_bytes(text, &bytes) || bytes == 0) {
              throw CLI::ValidationError(name, "'" + text + "' is no size; write for example 4096, 4KiB or 2MiB");
            }
            value = bytes;
          },
          std::move(about))
      ->type_name("SIZE")
      ->default_str(format_bytes(value));
}

/// An option that takes 50us, 10ms, 2s, 1min or seconds into `value`, which holds the default.
template <class Duration>
CLI::Option* add_duration_option(CLI::App& app, const std::string& name, Duration& value, std::string about) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            double seconds = 0;
            if (!parse_seconds(text, &seconds) || seconds > 1e9) {
              throw CLI::ValidationError(name, "'" + text + "' is no duration; write for example 50us, 10ms or 2s");
            }
            value = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
          },
          std::move(about))
      ->type_name("TIME")
      ->default_str(format_seconds(std::chrono::duration<double>(value).count()));
}

/// An option that takes a number of 1 to `most` into `value`, which holds the default.
inline CLI::Option* add_count_option(CLI::App& app, const std::string& name, std::size_t& value, int most,
                                     std::string about) {
  return app.add_option(name, value, std::move(about))
      ->capture_default_str()
      ->check(CLI::Range(1, most))
      ->type_name("N");
}

inline CLI::Option* add_busy_poll_option(CLI::App& app, std::chrono::microseconds& value, const std::string& what) {
  const auto set = [&value](std::uint32_t us) { value = std::chrono::microseconds(us); };
  return app
      .add_option_function<std::uint32_t>("--busy-poll-us", set,
                                          "Spin this many microseconds for " + what + " before sleeping")
      ->type_name("N")
      ->default_str("0");
}

}  // namespace kv

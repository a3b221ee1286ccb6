// kvstore-bench: how fast a node is, next to what the machine allows, and whether every byte is right.
//
//   limit.h      what this machine allows
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "client/tools/limit.h"

int main(int argc, char** argv) {
  CLI::App app("kvstore-bench: how fast a node is, next to what this machine allows, and whether every byte is right");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  kv::add_limit_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvstore-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}

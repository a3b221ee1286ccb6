// kvstorectl contexts export, import: a context as a file, to copy a prefix to another cluster.
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>

#include "client/archive/archive_form.h"
#include "client/archive/archive_transfer.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/ctl_contexts.h"
#include "client/tools/json_text.h"
#include "client/tools/progress_line.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct ArchiveCtlOptions : CtlOptions, ContextKeepOptions {
  std::string name, file, key_file;
  bool is_partial = false, replaces = false, warms = false;
};

volatile std::sig_atomic_t interrupted = 0;

/// The first Ctrl-C stops between two calls, without partial results; the second ends the program.
void watch_for_interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

/// False: the transfer ends.
bool tell(ProgressLine& line, const ArchiveProgress& progress) {
  line.tell([&] {
    constexpr const char* kDone[] = {"read", "checked", "stored"};
    return format_count(progress.blocks) + " of " + format_count(progress.of) + " blocks " +
           kDone[static_cast<int>(progress.step)];
  });
  return interrupted == 0;
}

nlohmann::json json_of(const ArchivedContext& archived) {
  return {{"name", archived.name},     {"namespace_id", archived.namespace_id},
          {"blocks", archived.blocks}, {"wanted_blocks", archived.wanted_blocks},
          {"bytes", archived.bytes},   {"signed", archived.is_signed}};
}

[[noreturn]] void fail(const std::string& command, const Failure& failure) {
  if (interrupted != 0) throw ToolFailed("contexts " + command + ": interrupted");
  throw ToolFailed("contexts " + command + ": " + failure.text);
}

void run_export(ArchiveCtlOptions options) {
  BlockingClient client(ctl_config(options.node));
  ContextExportOptions asked{.deadline = options.node.deadline};
  asked.is_partial = options.is_partial;
  asked.replaces = options.replaces;
  asked.key_file = options.key_file;
  ProgressLine line(!options.json, std::chrono::milliseconds(500));
  asked.go_on = [&](const ArchiveProgress& progress) { return tell(line, progress); };
  watch_for_interrupt();
  const auto exported = export_context(client, options.name, options.file, asked);
  line.clear();
  if (!exported) fail("export", exported.error());
  if (options.json) {
    std::cout << json_text(json_of(*exported)) << '\n';
    return;
  }
  std::cout << options.file << ": " << format_count(exported->blocks) << " of " << format_count(exported->wanted_blocks)
            << " blocks of the context '" << exported->name << "', " << format_bytes(exported->bytes)
            << (exported->is_signed ? ", signed" : "") << '\n';
}

void run_import(ArchiveCtlOptions options) {
  const auto life = time_of(options);
  BlockingClient client(ctl_config(options.node));
  ContextImportOptions asked{.deadline = options.node.deadline};
  asked.name = options.name;
  asked.key_file = options.key_file;
  asked.life = life;
  asked.priority = options.priority;
  ProgressLine line(!options.json, std::chrono::milliseconds(500));
  asked.go_on = [&](const ArchiveProgress& progress) { return tell(line, progress); };
  watch_for_interrupt();
  auto imported = import_context(client, options.file, asked);
  line.clear();
  if (!imported) fail("import", imported.error());
  if (options.warms) {
    const auto warmed =
        client.with([&](Client& each) { return each.warm_context(imported->name, options.node.deadline); });
    imported->context = answer_of(warmed, "contexts import: done, and it cannot be warmed");
  }
  if (options.json) {
    nlohmann::json told = json_of(*imported);
    told["stored_blocks"] = imported->stored_blocks;
    told["context"] = json_of(imported->context);
    std::cout << json_text(told) << '\n';
    return;
  }
  std::cout << options.file << ": " << format_count(imported->blocks) << " blocks, of which "
            << format_count(imported->stored_blocks) << " were not there\n";
  print_one(imported->context, false);
}

void add_key_option(CLI::App& command, ArchiveCtlOptions& options, const char* help) {
  command.add_option("--key-file", options.key_file, help)->type_name("FILE")->envname(ArchiveKey::kEnvironment);
}

}  // namespace

void add_context_archive_commands(CLI::App& contexts) {
  const auto [export_command, out] =
      add_ctl_command<ArchiveCtlOptions>(contexts, "export", "Write a context with its blocks to a file", run_export);
  export_command->add_option("name", out->name, "Of the context")->required();
  export_command->add_option("file", out->file, "To be written")->required()->type_name("FILE");
  export_command->add_flag("--partial", out->is_partial,
                           "Where blocks are missing: what is there before the first of them");
  export_command->add_flag("--force", out->replaces, "Replace a file that is there");
  add_key_option(*export_command, *out, "Of the key that signs it: 64 hexadecimal digits");
  export_command->footer(
      "The file has the namespace's record, tags, block hashes and blocks, with checksums, and no secret of the "
      "nodes.\nIt is not encrypted: whoever has it has the blocks. --deadline is for each batch of 16 MiB.\n\n"
      "Example:\n  kvstorectl contexts export support-prompt support-prompt.kvctx\n");
  const auto [import_command, in] = add_ctl_command<ArchiveCtlOptions>(
      contexts, "import", "Put the blocks of such a file, and create the context", run_import);
  import_command->add_option("file", in->file, "That export has written")->required()->type_name("FILE");
  import_command->add_option("--name", in->name, "Another name than it had")->type_name("NAME");
  add_keep_options(*import_command, *in, "as it was");
  add_key_option(*import_command, *in, "Of the key that has to have signed it");
  import_command->add_flag("--warm", in->warms, "And bring what the disks have of it to memory");
  import_command->footer(
      "The whole file is checked before anything of it goes to a node. Only a signature tells who has made it: "
      "without\n"
      "a key take files from those alone whom you would let write. Without a time it is kept as long as it was to "
      "be\nfrom its creation on, from now. A context of that name is replaced.\n\n"
      "Example:\n  kvstorectl contexts import support-prompt.kvctx --ttl 12h --priority 7\n");
}

}  // namespace kv

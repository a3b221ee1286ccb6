// kvstorectl and kvstore-bench against a running node, as people and scripts call them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "index/block_hash.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Finished ctl(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), ctl_program());
  return run_program(arguments, environment);
}

Finished bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), bench_program());
  return run_program(arguments);
}

Finished policies(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), policies_program());
  return run_program(arguments);
}

/// The JSON document that a program printed; a failed test if it is none.
json parsed(const Finished& finished) {
  const json document = json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(document.is_discarded()) << finished.out << finished.err;
  return document;
}

TEST(E2eToolsTest, EveryHelpTeachesWithAnExample) {
  for (const char* command :
       {"status", "top", "curve", "match", "retain", "unretain", "drop", "ping", "doctor", "support-bundle"}) {
    const Finished help = ctl({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Example")) << command;
    EXPECT_THAT(help.out, HasSubstr("--endpoint")) << command;
  }
  for (const char* command : {"run", "limit", "replay", "chat", "generate"}) {
    const Finished help = bench({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Example")) << command;
  }
  EXPECT_EQ(ctl({"--help"}).status, 0);
  EXPECT_EQ(bench({"--help"}).status, 0);
  EXPECT_THAT(policies({"--help"}).out, HasSubstr("Example"));
  EXPECT_EQ(run_program({node_program(), "--help"}).status, 0);
}

TEST(E2eToolsTest, AWrongCommandLineEndsWithTwo) {
  EXPECT_EQ(ctl({}).status, 2);
  EXPECT_EQ(ctl({"no-such-command"}).status, 2);
  const Finished misspelt = ctl({"staus"}), below = ctl({"cluster", "darin", "n1"}), measured = bench({"replya"});
  EXPECT_EQ(misspelt.status, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("no command 'staus'; did you mean 'status'?"));
  EXPECT_EQ(below.status, 2);
  EXPECT_THAT(below.err, HasSubstr("did you mean 'drain'?"));
  EXPECT_THAT(measured.err, HasSubstr("did you mean 'replay'?"));
  EXPECT_EQ(ctl({"status", "--endpoint", "nonsense"}).status, 2);
  EXPECT_EQ(ctl({"match", "--namespace", "x", "not-hex"}).status, 2);
  EXPECT_EQ(ctl({"drop", "--namespace", "x"}).status, 2) << "a drop without hashes must be asked for by --all";
  EXPECT_EQ(bench({"run", "--op", "dance"}).status, 2);
  EXPECT_EQ(bench({"run", "--transport", "shm", "--endpoint", "tcp://127.0.0.1:1"}).status, 2);
  EXPECT_EQ(bench({"replay"}).status, 2);
  EXPECT_EQ(policies({}).status, 2);
  EXPECT_EQ(policies({"--trace", "x", "--capacity", "0"}).status, 2);
  EXPECT_EQ(policies({"--trace", "x", "--capacity", "1,some"}).status, 2);
  EXPECT_EQ(policies({"--trace", "x", "--policy", "fifo"}).status, 2);
  EXPECT_EQ(policies({"--trace", "x", "--split", "7"}).status, 2);
  EXPECT_EQ(bench({"generate"}).status, 2);
  EXPECT_EQ(bench({"generate", "--kind", "rain"}).status, 2);
  EXPECT_EQ(bench({"generate", "--kind", "chat", "--requests", "0"}).status, 2);
}

TEST(E2eToolsTest, EachProgramTellsItsVersion) {
  for (const std::string& program : {ctl_program(), bench_program(), policies_program(), node_program()}) {
    const Finished version = run_program({program, "--version"});
    EXPECT_EQ(version.status, 0) << program;
    EXPECT_THAT(version.out, testing::MatchesRegex("kvstore[a-z-]* [0-9]+\\.[0-9]+\\.[0-9]+.*\n")) << program;
  }
}

TEST(E2eToolsTest, AtATerminalAPersonIsAskedBeforeAWholeNamespaceGoes) {
  if (::access("/usr/bin/script", X_OK) != 0) GTEST_SKIP() << "/usr/bin/script is not here";
  const NodeProcess node({"--capacity", "64MiB"});
  TestClient client(node.tcp(), Transport::kTcp, 65536, 8);
  ASSERT_EQ(client.put(make_chain(1, 8)).stored, 8u);
  const auto answered = [&](const std::string& answer) {
    const std::string drop = ctl_program() + " drop --all --namespace e2e -e " + node.tcp();
    return run_program({"/bin/sh", "-c", "printf '" + answer + "\\n' | /usr/bin/script -qec '" + drop + "' /dev/null"});
  };
  const Finished no = answered("n");
  EXPECT_EQ(no.status, 1) << no.out;
  EXPECT_THAT(no.out, HasSubstr("Go on? [y/N]"));
  EXPECT_EQ(node.metric("kvstore_blocks"), 8);
  const Finished yes = answered("y");
  EXPECT_EQ(yes.status, 0) << yes.out;
  EXPECT_EQ(node.metric("kvstore_blocks"), 0);
}

TEST(E2eToolsTest, TheHitRateIsTheSameEverywhere) {
  const NodeProcess node({"--capacity", "64MiB"});
  const json chat = parsed(bench({"chat", "--json", "--block-bytes", "4KiB", "--endpoint", node.tcp()}));
  double found = 0, asked = 0;
  for (const json& turn : chat["turns"]) {
    found += turn["hits"].get<double>();
    asked += turn["references"].get<double>();
  }
  ASSERT_LT(found, asked);
  const json status = parsed(ctl({"status", "--json", "--endpoint", node.tcp()}));
  EXPECT_DOUBLE_EQ(status["nodes"][0]["hit_rate"].get<double>(), found / asked);
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * found / asked);
  EXPECT_THAT(ctl({"status", "--endpoint", node.tcp()}).out, HasSubstr(text));
  // Nothing is looked up meanwhile.
  const json top = parsed(ctl({"top", "--once", "--json", "--interval", "10ms", "--endpoint", node.tcp()}));
  EXPECT_TRUE(top["nodes"][0]["hit_rate"].is_null());
}

TEST(E2eToolsTest, AMeasurementWithANodeThatIsDeadEndsWithOne) {
  const NodeProcess node({"--capacity", "64MiB"});
  const std::string both = node.tcp() + ",tcp://127.0.0.1:1";
  for (const std::vector<std::string>& run :
       {std::vector<std::string>{"run", "--op", "put", "--batch", "16", "--duration", "100ms", "--warm-up", "10ms",
                                 "--memory", "1MiB"},
        std::vector<std::string>{"chat", "--sessions", "1", "--turns", "2"}}) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), {"--block-bytes", "4KiB", "--endpoint", both});
    const Finished finished = bench(arguments);
    EXPECT_EQ(finished.status, 1) << run[0] << finished.out;
    EXPECT_THAT(finished.err, HasSubstr("tcp://127.0.0.1:1 does not answer: ")) << run[0];
    EXPECT_THAT(finished.out, HasSubstr("p50")) << "what was measured is told all the same";
  }
}

TEST(E2eToolsTest, BenchComparesPoliciesOnALoadThatItMadeWithoutANode) {
  const TempDir directory;
  const std::string plain = directory.path() + "/load.jsonl", packed = plain + ".gz", plot = plain + ".svg";
  const std::vector<std::string> load = {"generate", "--kind", "mixed", "--requests", "800", "--seed", "3"};
  const auto with = [](std::vector<std::string> first, const std::vector<std::string>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  };
  const auto text = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  ASSERT_EQ(bench(with(load, {"--out", plain})).status, 0);
  ASSERT_EQ(bench(with(load, {"--out", packed})).status, 0);
  EXPECT_EQ(bench(load).out, text(plain)) << "standard output and a file get the same";

  const auto compared = [&](const std::string& trace, const std::vector<std::string>& more) {
    return policies(with({"--trace", trace, "--capacity", "2000,500"}, more));
  };
  const json first = parsed(compared(plain, {"--json", "--threads", "1"}));
  json second = parsed(compared(packed, {"--json", "--threads", "3", "--plot", plot}));
  ASSERT_EQ(first["results"].size(), 8u) << "four policies, two capacities";
  EXPECT_EQ(first["requests"], 800);
  std::map<std::string, std::map<int, double>> rates;
  for (std::size_t i = 0; i < 8; ++i) {
    const json& cell = first["results"][i];
    EXPECT_EQ(cell["hits"], second["results"][i]["hits"]) << cell;
    EXPECT_EQ(cell["stored"], second["results"][i]["stored"]) << cell;
    rates[cell["policy"]][cell["capacity"]] = cell["hit_rate"];
  }
  for (const char* policy : {"lru", "lfu", "yield"}) {
    EXPECT_GT(rates.at(policy).at(500), 0.0);
    EXPECT_LE(rates.at(policy).at(500), rates.at("optimum").at(500)) << policy;
    EXPECT_LE(rates.at(policy).at(2000), rates.at("optimum").at(2000)) << policy;
  }
  EXPECT_LE(rates.at("optimum").at(2000), first["infinite_hit_rate"]);
  EXPECT_THAT(text(plot), HasSubstr("</svg>"));

  const Finished table = compared(plain, {"--policy", "yield,lru", "--split", "4", "--full-blocks"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("blocks of 128 tokens"));
  EXPECT_THAT(table.out, testing::Not(HasSubstr("optimum")));

  EXPECT_EQ(compared(directory.path() + "/none", {}).status, 1);
  std::ofstream(plain) << "{\"timestamp\": 0, \"input_length\": 2, \"output_length\": 1, \"hash_ids\": [4, 4]}\n";
  const Finished no_tree = compared(plain, {});
  EXPECT_EQ(no_tree.status, 1);
  EXPECT_THAT(no_tree.err, HasSubstr("hash_ids[1] is 4"));
  EXPECT_EQ(bench(with(load, {"--out", "/no/such/folder/x"})).status, 1);
}

TEST(E2eToolsTest, CtlSizesACacheWithoutANode) {
  const std::vector<std::string> model = {"size", "--layers", "32", "--kv-heads", "8", "--parameters", "8e9"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), model.begin(), model.end());
    return more;
  };
  const json sizes = parsed(ctl(with({"--flops", "1e15", "--bandwidth", "50GB", "--json"})));
  const json& fp16 = sizes["formats"][1];
  EXPECT_EQ(fp16["format"], "fp16");
  EXPECT_EQ(fp16["bytes_per_token"], 131'072);
  EXPECT_EQ(fp16["tokens_per_gib"], 8192);
  EXPECT_EQ(fp16["block_bytes"], 16 * 131'072);
  EXPECT_NEAR(fp16["fetch_speedup"].get<double>(), 6.1, 0.01);
  EXPECT_NEAR(fp16["break_even_bandwidth"].get<double>(), 131'072 / 16e-6, 1);
  EXPECT_THAT(ctl(model).out, HasSubstr("131,072"));
  EXPECT_THAT(ctl({"size", "--help"}).out, HasSubstr("Example"));
  EXPECT_EQ(ctl({"size"}).status, 2) << "no model";
  EXPECT_EQ(ctl(with({"--format", "fp8_ds_mla"})).status, 2) << "a format of another model";
  EXPECT_EQ(ctl({"size", "--config", "/no/such/file"}).status, 1);
}

TEST(E2eToolsTest, ANodeThatIsNotThereEndsWithOneAndAReason) {
  const Finished ping = ctl({"ping", "--endpoint", "tcp://127.0.0.1:1", "--deadline", "500ms"});
  EXPECT_EQ(ping.status, 1);
  EXPECT_THAT(ping.out + ping.err, HasSubstr("refused"));
  const Finished doctor =
      ctl({"doctor", "--endpoint", "unix:///no/such/socket", "--admin", "none", "--deadline", "500ms"});
  EXPECT_EQ(doctor.status, 1);
  EXPECT_THAT(doctor.out, HasSubstr("FAILED"));
  EXPECT_THAT(doctor.out, HasSubstr("is the node running"));
  EXPECT_EQ(bench({"chat", "--endpoint", "tcp://127.0.0.1:1", "--deadline", "500ms"}).status, 1);
}

TEST(E2eToolsTest, PingWaitsForANodeThatStartsLater) {
  const TempDir directory;
  const std::string socket = directory.path() + "/node";
  auto ping = std::async(std::launch::async, [&] {
    return ctl({"ping", "--wait", "60s", "--count", "1", "--json", "--endpoint", "unix://" + socket});
  });
  // The first tries have failed by the time that a node has touched its memory.
  const NodeProcess node({"--capacity", "256MiB"}, socket);
  const Finished waited = ping.get();
  EXPECT_EQ(waited.status, 0) << waited.out << waited.err;
  EXPECT_EQ(parsed(waited)["nodes"][0]["answers"], 1);
}

TEST(E2eToolsTest, DoctorForgivesANodeThatWasAwayWhenItLookedAtAnother) {
  const TempDir directory;
  // A "node" that takes connections and never answers: doctor waits for it, and its first try at the other one is over.
  const std::string silent_path = directory.path() + "/silent", late_path = directory.path() + "/late";
  const int silent = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(silent_path.size(), sizeof address.sun_path);
  silent_path.copy(address.sun_path, silent_path.size());
  ASSERT_EQ(::bind(silent, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  auto doctor = std::async(std::launch::async, [&] {
    return ctl({"doctor", "--json", "--admin", "none", "--deadline", "60s", "--endpoint", "unix://" + silent_path,
                "--endpoint", "unix://" + late_path});
  });
  const int asked = ::accept4(silent, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(asked, 0);
  const NodeProcess late({"--capacity", "64MiB"}, late_path);
  ::close(silent);  // from here on it refuses, so doctor goes on
  ::close(asked);

  const Finished finished = doctor.get();
  EXPECT_EQ(finished.status, 1) << "the silent one is out of reach";
  std::map<std::string, std::string> verdicts;
  const json document = parsed(finished);
  for (const json& finding : document["findings"]) verdicts[finding["check"]] = finding["verdict"];
  EXPECT_EQ(verdicts["reach unix://" + silent_path], "FAILED") << finished.out;
  EXPECT_EQ(verdicts["reach unix://" + late_path], "ok") << finished.out;
}

TEST(E2eToolsTest, DoctorForRdmaAsksNoNodeAndFailsWithoutAModule) {
  const std::vector<std::string> environment = {"KV_VERBS_MODULE=/no/such/module.so"};
  const Finished doctor = ctl({"doctor", "--rdma"}, environment);
  EXPECT_EQ(doctor.status, 1);
  EXPECT_THAT(doctor.out, HasSubstr("install kvstore's module for RDMA"));
  EXPECT_THAT(doctor.out, testing::Not(HasSubstr("reach"))) << "no node was to be asked";
  const json document = parsed(ctl({"doctor", "--rdma", "--json"}, environment));
  EXPECT_FALSE(document["ok"].get<bool>());
  EXPECT_EQ(document["findings"][0]["check"], "RDMA module");
  EXPECT_EQ(document["findings"][0]["verdict"], "FAILED");

  const NodeProcess node({"--capacity", "16MiB"});
  const Finished all = ctl({"doctor", "--endpoint", node.tcp(), "--admin", node.admin()}, environment);
  EXPECT_EQ(all.status, 0) << "without RDMA there are TCP and shared memory\n" << all.out;
  EXPECT_THAT(all.out, HasSubstr("TCP and shared memory are used"));
}

TEST(E2eToolsTest, ASupportBundleHasWhatHelpsAndNoSecret) {
  const NodeProcess node({"--capacity", "16MiB"});
  const TempDir directory;
  const std::string config = directory.path() + "/node.toml", key = directory.path() + "/node.key";
  std::ofstream(key) << "secret-of-the-key\n";
  std::ofstream(config) << "# secret-of-a-comment\n\ncapacity = \"16MiB\"  # secret-behind\nnode-id = \"a#b\"\n"
                        << "tls-key = \"" << key << "\"\netcd-password-file = \"" << key << "\"\n";
  const std::vector<std::string> words = {"support-bundle", "--endpoint", node.tcp(), "--admin",
                                          node.admin(),     "--config",   config};
  const Finished finished = ctl(words);
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::Not(HasSubstr("secret-"))) << "of a key, a password or a comment";
  const json bundle = parsed(finished);
  EXPECT_EQ(bundle["doctor"]["said"]["ok"], true) << finished.out;
  EXPECT_EQ(bundle["status"]["said"]["nodes"][0]["answers"], true) << finished.out;
  EXPECT_EQ(bundle["config"][0], "capacity = \"16MiB\"");
  EXPECT_EQ(bundle["config"][1], "node-id = \"a#b\"");
  for (const char* part : {"cluster", "log", "unit", "packages", "kernel", "machine"})
    EXPECT_TRUE(bundle.contains(part)) << part;

  // To a file: a new one, for its owner alone. Without a node it says so, and is no failure.
  const std::string file = directory.path() + "/bundle.json";
  const std::vector<std::string> to_file = {"support-bundle", "--endpoint", "tcp://127.0.0.1:1", "--admin", "none",
                                            "--out",          file};
  EXPECT_EQ(ctl(to_file).status, 0);
  struct stat about {};
  ASSERT_EQ(::stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  std::ifstream written(file);
  EXPECT_EQ(json::parse(written)["doctor"]["exit_status"], 1);
  EXPECT_EQ(ctl(to_file).status, 1) << "it is there already";
}

TEST(E2eToolsTest, AMisspeltVariableIsToldAndNothingElseIsSaidOfIt) {
  const Finished said =
      ctl({"size", "--layers=2", "--kv-heads=1", "--parameters=1e6"}, {"KVSTORE_ENDPOINT=tcp://127.0.0.1:1"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(
      said.err,
      "kvstorectl: warning: KVSTORE_ENDPOINT: an environment variable that means nothing to kvstore's programs; did "
      "you mean 'KVSTORE_ENDPOINTS'?\n");
}

TEST(E2eToolsTest, EachVariableOfAnyHelpMeansSomething) {
  std::vector<std::string> environment;
  const std::regex named("Env:(KVSTORE_\\w+)");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"}, {"contexts", "export"}, {"config", "list"}, {"doctor"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const std::string help = ctl(arguments).out;
    for (auto at = std::sregex_iterator(help.begin(), help.end(), named); at != std::sregex_iterator(); ++at)
      environment.push_back((*at)[1].str() + "=x");
  }
  ASSERT_GT(environment.size(), 5u);
  EXPECT_EQ(ctl({"size", "--layers=2", "--kv-heads=1", "--parameters=1e6"}, environment).err, "");
}

TEST(E2eToolsTest, CtlSeesAndChangesWhatANodeHolds) {
  const NodeProcess node({"--capacity", "64MiB"});
  TestClient client(node.tcp(), Transport::kTcp, 65536, 8);
  const auto chain = make_chain(1, 8);
  ASSERT_EQ(client.put(chain).stored, 8u);
  const std::vector<std::string> environment = {"KVSTORE_ENDPOINTS=" + node.tcp()};
  const TempDir directory;
  const std::string hashes = directory.path() + "/hashes";
  {
    std::ofstream file(hashes);
    for (const BlockHash& hash : chain) file << to_hex(hash.bytes) << '\n';
  }
  const auto blocks_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--namespace", "e2e", "--json"});
    const Finished finished = ctl(arguments, environment);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return parsed(finished).value("blocks", -1);
  };
  EXPECT_EQ(blocks_of({"match", "--hashes", hashes}), 8);
  EXPECT_EQ(blocks_of({"retain", "--hashes", hashes}), 8);
  EXPECT_EQ(node.metric("kvstore_pinned_blocks"), 8);
  EXPECT_EQ(blocks_of({"unretain", "--hashes", hashes}), 8);
  EXPECT_EQ(blocks_of({"drop", "--hashes", hashes}), 1);
  EXPECT_EQ(blocks_of({"match", to_hex(chain[0].bytes), to_hex(chain[1].bytes)}), 2);
  const Finished unsure = ctl({"drop", "--all", "--namespace", "e2e"}, environment);
  EXPECT_EQ(unsure.status, 2) << "nobody can be asked";
  EXPECT_THAT(unsure.err, HasSubstr("drop all blocks of e2e"));
  EXPECT_THAT(unsure.err, HasSubstr("say --yes"));
  EXPECT_EQ(node.metric("kvstore_blocks"), 7);
  EXPECT_EQ(blocks_of({"drop", "--all", "--yes"}), 7);
  EXPECT_EQ(node.metric("kvstore_blocks"), 0);

  const json spaces = parsed(ctl({"namespaces", "--json"}, environment));
  ASSERT_EQ(spaces["namespaces"].size(), 1u);
  EXPECT_EQ(spaces["namespaces"][0]["block_bytes"], 65536);
}

TEST(E2eToolsTest, CtlTellsWhatMoreMemoryWouldBring) {
  const NodeProcess node({"--capacity", "64MiB"}), without({"--capacity", "64MiB", "--curve=false"});
  TestClient client(node.tcp(), Transport::kTcp, 65536, 8);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.put(make_chain(static_cast<std::uint64_t>(i), 8)).stored > 0);
  ASSERT_EQ(ctl({"match", "--namespace", "e2e", to_hex(make_chain(1, 8)[0].bytes)}, {"KVSTORE_ENDPOINTS=" + node.tcp()})
                .status,
            0);
  const std::vector<std::string> environment = {"KVSTORE_ENDPOINTS=" + node.tcp() + "," + without.tcp()};
  const json curve = parsed(ctl({"curve", "--more", "32MiB", "--json"}, environment));
  ASSERT_EQ(curve["nodes"].size(), 2u);
  const json& told = curve["nodes"][0];
  ASSERT_EQ(told["points"].size(), 5u) << told;
  EXPECT_EQ(told["asked_blocks"], 1);
  EXPECT_EQ(told["points"][2]["scale"], 1);
  EXPECT_TRUE(told.contains("more_memory_gain"));
  EXPECT_EQ(curve["nodes"][1]["points"].size(), 0u);
  const Finished table = ctl({"curve", "--more", "32MiB"}, environment);
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("One more 32 MiB of memory would give "));
  EXPECT_THAT(table.out, HasSubstr("keeps no sample"));
  EXPECT_EQ(ctl({"curve", "--more", "much"}, environment).status, 2);
}

TEST(E2eToolsTest, JsonOutputParsesAndTablesNameTheNode) {
  const NodeProcess node({"--capacity", "64MiB"});
  const std::vector<std::string> environment = {"KVSTORE_ENDPOINTS=" + node.tcp() + "," + node.unix_socket()};
  const json status = parsed(ctl({"status", "--json"}, environment));
  ASSERT_EQ(status["nodes"].size(), 2u);
  EXPECT_EQ(status["nodes"][0]["stats"]["capacity_bytes"], 64 << 20);
  EXPECT_EQ(parsed(ctl({"ping", "--count", "3", "--wait", "30s", "--json"}, environment))["nodes"][1]["answers"], 3);
  EXPECT_EQ(parsed(ctl({"top", "--once", "--interval", "10ms", "--json"}, environment))["nodes"].size(), 2u);
  const Finished doctor = ctl({"doctor", "--admin", node.admin(), "--json"}, environment);
  EXPECT_EQ(doctor.status, 0) << doctor.out;
  EXPECT_TRUE(parsed(doctor)["ok"].get<bool>());
  for (const char* command : {"status", "ping", "doctor", "namespaces"}) {
    const Finished table = ctl({command}, environment);
    EXPECT_EQ(table.status, 0) << command << table.err;
    EXPECT_FALSE(table.out.empty());
  }
  EXPECT_THAT(ctl({"status"}, environment).out, HasSubstr(node.tcp()));
}

TEST(E2eToolsTest, ANodesNameIsPrintedWhateverItIs) {
  const NodeProcess node({"--capacity", "16MiB", "--node-id", "a\"\n\x1b[2J\xff"});
  for (const char* command : {"status", "ping", "doctor"}) {
    const Finished text = ctl({command, "--endpoint", node.tcp()});
    EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << command << ": " << text.out;
    EXPECT_EQ(text.out.find('\xff'), std::string::npos) << command;
    const Finished machine = ctl({command, "--json", "--endpoint", node.tcp()});
    EXPECT_EQ(machine.status, text.status) << machine.err;
    parsed(machine);
  }
  EXPECT_EQ(parsed(ctl({"status", "--json", "--endpoint", node.tcp()}))["nodes"][0]["node_id"],
            "a\"\n\x1b[2J\xef\xbf\xbd");
}

TEST(E2eToolsTest, ALongGetThroughTheSocketBringsAllThatItSays) {
  // Gets of up to 160 MiB: far more than a node queues ahead of its socket, which at times takes all of that at once.
  const NodeProcess node({"--capacity", "1GiB"});
  const json chat = parsed(bench({"chat", "--endpoint", node.tcp(), "--json"}));
  for (const json& turn : chat["turns"]) EXPECT_TRUE(turn["reasons"].empty()) << turn["reasons"];
}

TEST(E2eToolsTest, BenchMeasuresEveryOperationOnEveryTransportWithRightBytes) {
  const NodeProcess node({"--capacity", "128MiB"});
  for (const std::string transport : {"tcp", "unix", "shm"}) {
    for (const std::string op : {"get", "put", "match"}) {
      const json run = parsed(bench({"run",
                                     "--op",
                                     op,
                                     "--transport",
                                     transport,
                                     "--endpoint",
                                     transport == "tcp" ? node.tcp() : node.unix_socket(),
                                     "--block-bytes",
                                     "64KiB",
                                     "--batch",
                                     "8",
                                     "--blocks",
                                     "256",
                                     "--memory",
                                     "8MiB",
                                     "--duration",
                                     "50ms",
                                     "--warm-up",
                                     "10ms",
                                     "--concurrency",
                                     "3",
                                     "--threads",
                                     "2",
                                     "--check",
                                     "--json"}));
      EXPECT_GT(run["calls"].get<int>() + run["unmeasured_calls"].get<int>(), 0) << op << " " << transport;
      EXPECT_EQ(run["wrong_bytes"], 0) << op << " " << transport;
      EXPECT_EQ(run["missing_blocks"], 0) << op << " " << transport << run.dump();
    }
  }
  const json limit = parsed(bench({"limit", "--rounds", "1", "--duration", "5ms", "--memory", "8MiB", "--json"}));
  EXPECT_GT(limit["cases"]["memcpy"]["bytes_per_second"]["median"], 0);
  EXPECT_GT(limit["cases"]["tcp_stream_4"]["bytes_per_second"]["median"], 0);
  const json chat = parsed(bench({"chat", "--endpoint", node.tcp(), "--block-bytes", "64KiB", "--json"}));
  EXPECT_EQ(chat["wrong_bytes"], 0);
  EXPECT_GT(chat["turns"][5]["hit_rate"], 0.85);
}

/// A trace of three requests: 4 blocks, the same 4 and one more, one that shares 2.
void write_trace(const std::string& path, bool compressed) {
  const std::string text =
      "{\"timestamp\": 0, \"input_length\": 2000, \"output_length\": 5, \"hash_ids\": [1, 2, 3, 4]}\n"
      "{\"timestamp\": 3000, \"input_length\": 2500, \"output_length\": 5, \"hash_ids\": [1, 2, 3, 4, 5]}\n"
      "{\"timestamp\": 6000, \"input_length\": 2000, \"output_length\": 5, \"hash_ids\": [1, 2, "
      "18446744073709551615]}\n";
  if (!compressed) {
    std::ofstream(path) << text;
    return;
  }
  const gzFile file = gzopen(path.c_str(), "wb");
  gzputs(file, text.c_str());
  gzclose(file);
}

TEST(E2eToolsTest, ReplayCountsHitsExactlyFromPlainAndCompressedTraces) {
  const NodeProcess node({"--capacity-blocks", "100", "--capacity-block-bytes", "4096"});
  const TempDir directory;
  for (const bool compressed : {false, true}) {
    const std::string trace = directory.path() + (compressed ? "/trace.gz" : "/trace.jsonl");
    write_trace(trace, compressed);
    const json replay = parsed(bench(
        {"replay", "--trace", trace, "--endpoint", node.tcp(), "--json", "--salt", compressed ? "gzip" : "plain"}));
    EXPECT_EQ(replay["requests"], 3);
    EXPECT_EQ(replay["references"], 12);
    EXPECT_EQ(replay["hits"], 6);
    EXPECT_EQ(replay["stored"], 6);
    EXPECT_EQ(replay["wrong_bytes"], 0);
  }
  std::ofstream(directory.path() + "/bad") << "{\"timestamp\": 0, \"input_length\": 1}\n";
  const Finished bad = bench({"replay", "--trace", directory.path() + "/bad", "--endpoint", node.tcp()});
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.err, HasSubstr("line 1"));
  EXPECT_THAT(bad.err, HasSubstr("output_length"));
  std::ofstream(directory.path() + "/binary") << std::string("\0\n\0", 3);
  const Finished binary = bench({"replay", "--trace", directory.path() + "/binary", "--endpoint", node.tcp()});
  EXPECT_EQ(binary.status, 1);
  EXPECT_THAT(binary.err, HasSubstr("holds a NUL byte"));
}

/// Of two kinds of requests that look alike, one comes once more. Only the hint says which: their order is drawn. In a
/// fixed order, what comes after a repeat would take the room that the repeated blocks leave, and a node without hints
/// would keep one kind by that alone.
TEST(E2eToolsTest, ANodeThatIsToldWhatComesAgainFindsMore) {
  const TempDir directory;
  const std::string trace = directory.path() + "/trace.jsonl";
  std::ofstream file(trace);
  constexpr int kBlocks = 8, kGap = 200;
  const auto request = [&](int number) {
    file << R"({"timestamp": 0, "input_length": 4096, "output_length": 1, "hash_ids": [)";
    for (int i = 0; i < kBlocks; ++i) file << (i == 0 ? "" : ", ") << number * kBlocks + i;
    file << "]}\n";
  };
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const int first = static_cast<int>(random() % 2);
    request(2 * i + first);
    if (i >= kGap) request(2 * (i - kGap) + 1);
    request(2 * i + 1 - first);
  }
  file.close();
  const auto hit_rate = [&](const char* hints) {
    const NodeProcess node({"--capacity-blocks", "2000", "--capacity-block-bytes", "4096"});
    const json replay =
        parsed(bench({"replay", "--trace", trace, "--endpoint", node.unix_socket(), "--hints", hints, "--json"}));
    EXPECT_EQ(replay["wrong_bytes"], 0);
    return replay["hit_rate"].get<double>();
  };
  const double silent = hit_rate("none"), told = hit_rate("final");
  EXPECT_GT(told, 1.5 * silent);
}

TEST(E2eToolsTest, ReplayTellsEachNodesShareAndPlaysADeath) {
  const std::vector<std::string> options = {"--capacity-blocks", "1000", "--capacity-block-bytes", "4096"};
  const NodeProcess one(options), two(options);
  const TempDir directory;
  const std::string trace = directory.path() + "/trace.jsonl";
  std::ofstream file(trace);
  for (int i = 0; i < 40; ++i)  // four prompts of 16 blocks, again and again
    file << R"({"timestamp": 0, "input_length": 2048, "output_length": 5, "hash_ids": [)" << i % 4 * 4 + 1 << ", "
         << i % 4 * 4 + 2 << ", " << i % 4 * 4 + 3 << ", " << i % 4 * 4 + 4 << "]}\n";
  file.close();
  const auto replay = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {
        "replay", "--trace",         trace, "--endpoint", one.tcp() + "," + two.tcp(), "--split",
        "4",      "--extent-blocks", "2",   "--json"};
    command.insert(command.end(), more.begin(), more.end());
    return bench(command);
  };
  const json whole = parsed(replay({"--salt", "whole", "--window", "20+10"}));
  EXPECT_EQ(whole["references"], 640);
  EXPECT_EQ(whole["stored"], 64);
  EXPECT_EQ(whole["hits"], 576);
  EXPECT_EQ(whole["window"]["references"], 160);
  EXPECT_EQ(whole["window"]["hits"], 160);
  ASSERT_EQ(whole["nodes"].size(), 2u);
  EXPECT_EQ(whole["nodes"][0]["stored"].get<int>() + whole["nodes"][1]["stored"].get<int>(), 64);
  EXPECT_EQ(whole["nodes"][0]["got"].get<int>() + whole["nodes"][1]["got"].get<int>(), 576);
  EXPECT_GE(whole["max_over_mean"]["got"], 1.0);
  EXPECT_GT(whole["nodes_per_get"], 1.0);
  EXPECT_LE(whole["nodes_per_get"], 2.0);

  for (const std::string& node : {std::string("1"), two.tcp()}) {
    const json dead = parsed(replay({"--salt", "dead" + node, "--fail", node + "@20"}));
    EXPECT_EQ(dead["requests"], 40);
    EXPECT_EQ(dead["wrong_bytes"], 0);
    EXPECT_EQ(dead["window"]["first"], 20);
    EXPECT_EQ(dead["window"]["references"], 320);
    EXPECT_LT(dead["window"]["hits"], 320) << "what the dead node has is missed";
    EXPECT_GT(dead["refused"], 0) << "and moves nowhere";
    EXPECT_EQ(dead["nodes"][1]["dead"], true);
    EXPECT_EQ(dead["nodes"][0]["answers"], true);
  }
  for (const char* bad : {"1", "2@5", "1@40", "x@5", "1@", "@5"}) {
    const Finished refused = replay({"--fail", bad});
    EXPECT_EQ(refused.status, 2) << bad;
    EXPECT_THAT(refused.err, HasSubstr("--fail")) << bad;
  }
  for (const char* bad : {"x", "5+0", "30+11", "41", "5+"}) {
    const Finished refused = replay({"--window", bad});
    EXPECT_EQ(refused.status, 2) << bad;
    EXPECT_THAT(refused.err, HasSubstr("--window")) << bad;
  }
  EXPECT_THAT(replay({"--split", "3"}).err, HasSubstr("--split"));
  EXPECT_EQ(bench({"replay", "--trace", trace, "--endpoint", one.tcp(), "--fail", "0@1"}).status, 2);
}

struct TraceCase {
  std::size_t block_count;
  double hit_rate;  ///< Of a simulated LRU that evicts leaf ends first.
};

class E2eTraceTest : public testing::TestWithParam<std::tuple<Transport, TraceCase>> {};

INSTANTIATE_TEST_SUITE_P(Conversation, E2eTraceTest,
                         testing::Combine(testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm),
                                          testing::Values(TraceCase{10'000, 0.2116}, TraceCase{30'000, 0.3257})),
                         [](const auto& one) {
                           return std::string(transport_name(std::get<0>(one.param))) + "_" +
                                  std::to_string(std::get<1>(one.param).block_count);
                         });

TEST_P(E2eTraceTest, TheRealTraceHitsAsTheModelSaysTwiceTheSame) {
  const char* folder = std::getenv("KV_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KV_TRACES does not name a folder with conversation_trace.jsonl.gz";
  const auto [transport, expected] = GetParam();
  std::vector<std::uint64_t> hits;
  for (int round = 0; round < 2; ++round) {
    const NodeProcess node(
        node_options(transport, {"--eviction-policy", "lru", "--capacity-blocks", std::to_string(expected.block_count),
                                 "--capacity-block-bytes", "4096"}));
    std::vector<std::string> command = {"replay", "--trace", std::string(folder) + "/conversation_trace.jsonl.gz",
                                        "--json"};
    const auto options = tool_options(node, transport);
    command.insert(command.end(), options.begin(), options.end());
    const json replay = parsed(bench(command));
    EXPECT_EQ(replay["requests"], 12'031);
    EXPECT_EQ(replay["references"], 288'500);
    EXPECT_EQ(replay["wrong_bytes"], 0);
    EXPECT_NEAR(replay["hit_rate"].get<double>(), expected.hit_rate, 0.002);
    EXPECT_EQ(node.metric("kvstore_capacity_bytes"), static_cast<double>(expected.block_count * 4096));
    hits.push_back(replay["hits"]);
  }
  EXPECT_EQ(hits[0], hits[1]);
}

}  // namespace
}  // namespace kv::e2e

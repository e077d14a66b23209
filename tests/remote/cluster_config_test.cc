// The cluster file: distributed.md 1.4, 2.3, 2.4 and 11.3 (D1, D3, D4, D13).
#include "pipeline/remote/cluster_config.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "pipeline/remote/node_address.h"

#include "support/models.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kFile = "folder/cluster.toml";

// Two stages on loopback.
constexpr const char* kCluster = R"([cluster]
name = "pair"
pipeline_parallel_size = 2
)";
constexpr const char* kNodes = R"(
[[nodes]]
id = "front"
address = "127.0.0.1:19000"
role = "hybrid"

[[nodes]]
id = "a"
address = "127.0.0.1:19001"
role = "pipeline_stage"
stage = 0

[[nodes]]
id = "b"
address = "127.0.0.1:19002"
role = "pipeline_stage"
stage = 1
)";

std::string pair_with(const std::string& between) { return std::string(kCluster) + between + kNodes; }

// The pair with one text in place of another.
std::string pair_but(const std::string& old, const std::string& now) {
  std::string text = pair_with("");
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), now);
}

ClusterConfig parse(const std::string& text) { return parse_cluster_config(text, kFile); }

struct Refusal {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
};

Refusal refusal(const std::string& text) {
  try {
    (void)parse(text);
    return {ErrorKind::internal, "accepted"};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
}

// Each message names the file, and what `mentions` says: the key and the value.
void expect_refused(const std::string& text, const std::vector<std::string>& mentions, ErrorKind kind = ErrorKind::bad_input) {
  const Refusal found = refusal(text);
  EXPECT_EQ(found.kind, kind) << found.message;
  EXPECT_THAT(found.message, ::testing::StartsWith("[folder/cluster.toml] "));
  for (const std::string& mention : mentions) EXPECT_THAT(found.message, HasSubstr(mention));
}

TEST(ClusterConfig, D1ReadsEveryKey) {
  const ClusterConfig config = parse(R"(
[cluster]
name = "k3 – drei"
pipeline_parallel_size = 2
tensor_parallel_size = 1
transport_backend = "auto"
model = "models/Kimi-K3"
stage_timeout_s = 7
connect_timeout_s = 2.5
load_timeout_s = 60
heartbeat_interval_s = 0.5
heartbeat_misses = 4

[partition]
mode = "manual"
layers = ["0-30", " 31 - 92 "]
balance = "latency"
kv_tokens = 131072
kv_sequences = 2
reserve_fraction = 0.03

[security]
cert = "node.pem"
key = "../keys/node.key"
ca = "/etc/weft/ca.pem"
token_file = "cluster.token"
allow_insecure = true

[[nodes]]
id = "stage-1"
address = "k3-b.example:19001"
role = "Pipeline"
stage = 1
model_dir = "/data/Kimi-K3"
devices = [0, 3]
resources = { memory_bytes = 68719476736, compute_units = 132, memory_bandwidth = 4.8e12 }

[[nodes]]
id = "stage-0"
address = "[2001:db8::7]:19001"
role = "PIPELINE-STAGE"
stage = 0
resources.memory_bandwidth = 400000000000

[[nodes]]
id = "coordinator"
address = "unix:/run/weft/front"
role = "hybrid"
)");
  EXPECT_EQ(config.file, kFile);
  EXPECT_EQ(config.name, "k3 – drei");
  EXPECT_EQ(config.stages, 2);
  EXPECT_EQ(config.transport_backend, "auto");
  EXPECT_EQ(config.model, "models/Kimi-K3");
  EXPECT_EQ(config.timeouts, (ClusterTimeouts{7.0, 2.5, 60.0, 0.5, 4}));
  EXPECT_EQ(config.layers, "0-30,31-92");
  EXPECT_EQ(config.balance, "latency");
  EXPECT_EQ(config.kv_tokens, 131072);
  EXPECT_EQ(config.kv_sequences, 2);
  EXPECT_EQ(config.reserve_fraction, 0.03);
  EXPECT_EQ(config.security,
            (ClusterSecurity{"folder/node.pem", "folder/../keys/node.key", "/etc/weft/ca.pem", "folder/cluster.token", true}));
  ASSERT_EQ(config.nodes.size(), 3U);
  EXPECT_EQ(config.nodes[0].id, "coordinator");
  EXPECT_EQ(config.coordinator(), (ClusterNode{"coordinator", "unix:/run/weft/front", NodeRole::coordinator}));
  EXPECT_EQ(config.stage(0), (ClusterNode{"stage-0", "[2001:db8::7]:19001", NodeRole::stage, 0, 0, 0, 4e11}));
  EXPECT_EQ(config.stage(1), (ClusterNode{"stage-1", "k3-b.example:19001", NodeRole::stage, 1, 68'719'476'736, 132, 4.8e12,
                                          "/data/Kimi-K3", std::vector<int64_t>{0, 3}}));
  EXPECT_EQ(&config.node("stage-1"), &config.nodes[2]);
}

TEST(ClusterConfig, D1LeavesDefaults) {
  const ClusterConfig config = parse(R"(
nodes = [ { id = "front", address = "localhost:19000", role = "hybrid" },
          { id = "all", address = "[::1]:19000", role = "pipeline", stage = 0 } ]
)");
  ClusterConfig expected;
  expected.file = kFile;
  expected.nodes = {{"front", "localhost:19000", NodeRole::coordinator}, {"all", "[::1]:19000", NodeRole::stage, 0}};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(config.name, "cluster");
  EXPECT_EQ(config.timeouts, (ClusterTimeouts{30.0, 5.0, 1800.0, 1.0, 3}));
  EXPECT_EQ(config.balance, "memory");
  EXPECT_EQ(config.kv_tokens, 32768);
  EXPECT_EQ(config.kv_sequences, 4);
  EXPECT_EQ(config.reserve_fraction, 0.08);
}

// The examples of distributed.md 2.4.
TEST(ClusterConfig, D1ReadsTheExamplesOfTheSpecification) {
  const ClusterConfig qwen = parse(R"([cluster]
name = "qn-2"
pipeline_parallel_size = 2
tensor_parallel_size = 1
transport_backend = "grpc"

[partition]
mode = "auto"
balance = "latency"
kv_tokens = 65536
kv_sequences = 8

[security]
cert = "node.pem"
key  = "node.key"
ca   = "ca.pem"

[[nodes]]
id = "coordinator"
address = "10.0.0.11:19000"
role = "hybrid"

[[nodes]]
id = "stage-0"
address = "10.0.0.11:19001"
role = "pipeline_stage"
stage = 0

[[nodes]]
id = "stage-1"
address = "10.0.0.12:19001"
role = "pipeline_stage"
stage = 1
resources = { memory_bytes = 68719476736 }
)");
  EXPECT_EQ(qwen.stage(1).memory_bytes, 64LL << 30);
  EXPECT_FALSE(qwen.layers);
  const ClusterConfig kimi = parse(R"([cluster]
name = "k3-3"
pipeline_parallel_size = 3

[partition]
mode = "manual"
layers = ["0-30", "31-61", "62-92"]
kv_tokens = 131072
kv_sequences = 2

[security]
cert = "node.pem"
key  = "node.key"
ca   = "ca.pem"
token_file = "cluster.token"

[[nodes]]
id = "coordinator"
address = "k3-a.example:19000"
role = "hybrid"

[[nodes]]
id = "stage-0"
address = "k3-a.example:19001"
role = "pipeline_stage"
stage = 0
model_dir = "/data/Kimi-K3"

[[nodes]]
id = "stage-1"
address = "k3-b.example:19001"
role = "pipeline_stage"
stage = 1
model_dir = "/data/Kimi-K3"

[[nodes]]
id = "stage-2"
address = "k3-c.example:19001"
role = "pipeline_stage"
stage = 2
model_dir = "/data/Kimi-K3"
)");
  EXPECT_EQ(kimi.layers, "0-30,31-61,62-92");
  EXPECT_EQ(kimi.stage(2).model_dir, "/data/Kimi-K3");
}

TEST(ClusterConfig, D3WritesEqualBytesAndReadsThemBack) {
  std::vector<std::string> texts = {
      pair_with(""),
      pair_with("[partition]\nmode = \"manual\"\nlayers = \"4+4\"\n"),
      pair_with("[partition]\nmode = \"manual\"\nlayers = \"0-3, 4-7\"\nreserve_fraction = 0.0\n"),
      pair_with("transport_backend = \"grpc\"\nmodel = \"a\\\"b\\\\c\\n\\u0001ü\"\nload_timeout_s = 1e5\n[security]\n"
                "cert = \"a/../n.pem\"\nkey = \"./n.key\"\nca = \"/ca\"\ntoken_file = \"folder/t\"\n"),
      pair_but("stage = 0",
               "stage = 0\ndevices = [2, 1]\nresources = { memory_bytes = 5, memory_bandwidth = 1e21 }\n"
               "model_dir = \"m\""),
  };
  for (const std::string& text : texts) {
    SCOPED_TRACE(text);
    for (const char* file : {kFile, "cluster.toml", "/etc/weft/cluster.toml", "./folder/cluster.toml"}) {
      const ClusterConfig config = parse_cluster_config(text, file);
      const std::string written = config.to_toml();
      EXPECT_EQ(parse_cluster_config(text, file).to_toml(), written);
      EXPECT_EQ(parse_cluster_config(written, file), config) << written;
      EXPECT_EQ(parse_cluster_config(written, file).to_toml(), written);
      EXPECT_TRUE(written.ends_with('\n') && !written.ends_with("\n\n"));
    }
  }
  // The order of nodes and keys in the file changes nothing.
  const std::string other = R"(
[[nodes]]
stage = 1
role = "pipeline"
address = "127.0.0.1:19002"
id = "b"
[[nodes]]
id = "front"
address = "127.0.0.1:19000"
role = "Hybrid"
[[nodes]]
id = "a"
address = "127.0.0.1:19001"
role = "pipeline-stage"
stage = 0
[cluster]
pipeline_parallel_size = 2
name = "pair"
)";
  EXPECT_EQ(parse(other).to_toml(), parse(pair_with("")).to_toml());
}

TEST(ClusterConfig, D3CanonicalText) {
  const std::string text = pair_with(
      "[partition]\nmode = \"manual\"\nlayers = \"0-3,4-7\"\n[security]\nkey = \"node.key\"\nca = \"ca.pem\"\ncert = "
      "\"node.pem\"\n");
  EXPECT_EQ(parse(text).to_toml(), R"([cluster]
name = "pair"
pipeline_parallel_size = 2
tensor_parallel_size = 1
transport_backend = "tcp"
stage_timeout_s = 30.0
connect_timeout_s = 5.0
load_timeout_s = 1800.0
heartbeat_interval_s = 1.0
heartbeat_misses = 3

[partition]
mode = "manual"
layers = ["0-3", "4-7"]
balance = "memory"
kv_tokens = 32768
kv_sequences = 4
reserve_fraction = 0.08

[security]
cert = "node.pem"
key = "node.key"
ca = "ca.pem"
allow_insecure = false

[[nodes]]
id = "front"
address = "127.0.0.1:19000"
role = "hybrid"

[[nodes]]
id = "a"
address = "127.0.0.1:19001"
role = "pipeline_stage"
stage = 0

[[nodes]]
id = "b"
address = "127.0.0.1:19002"
role = "pipeline_stage"
stage = 1
)");
}

// A file that is written elsewhere names the same files of [security].
TEST(ClusterConfig, PathsFollowTheFile) {
  ClusterConfig config = parse(pair_with("[security]\ncert = \"node.pem\"\nkey = \"k\"\nca = \"/abs/ca.pem\"\n"));
  config.file = "other/plan.toml";
  const std::string written = config.to_toml();
  EXPECT_THAT(written, AllOf(HasSubstr("cert = \"../folder/node.pem\""), HasSubstr("ca = \"/abs/ca.pem\"")));
  EXPECT_EQ(parse_cluster_config(written, config.file).security.cert.lexically_normal(), "folder/node.pem");
  config.file = "/elsewhere/plan.toml";
  EXPECT_EQ(parse_cluster_config(config.to_toml(), config.file).security.cert, std::filesystem::absolute("folder/node.pem"));
}

TEST(ClusterConfig, D4Error1NoNode) {
  expect_refused(kCluster, {"nodes", "found none"});
  expect_refused("nodes = []\n", {"nodes", "found none"});
  expect_refused("nodes = 3\n", {"nodes (line 1)", "an array, found 3"});
  expect_refused("nodes = [3]\n", {"nodes[0]", "a table, found 3"});
}

TEST(ClusterConfig, D4Error2Names) {
  const std::string longest(128, 'x');
  EXPECT_EQ(parse(pair_but("\"a\"", '"' + longest + '"')).stage(0).id, longest);
  std::string wide;
  for (int i = 0; i < 128; ++i) wide += "ü";
  EXPECT_EQ(parse(pair_but("\"a\"", '"' + wide + '"')).stage(0).id, wide);
  expect_refused(pair_but("\"a\"", "\"\""), {"nodes[1]", "id (line 11)", "1 to 128 characters", "''"});
  expect_refused(pair_but("\"a\"", "\"x" + longest + '"'), {"nodes[1]", "id", "1 to 128 characters", "xxx"});
  for (const char* control : {"\\n", "\\u007f", "\\u0085", "\\u0000"})
    expect_refused(pair_but("\"a\"", "\"a" + std::string(control) + '"'), {"nodes[1]", "id", "no control characters"});
  expect_refused(pair_but("\"a\"", "7"), {"nodes[1]", "id", "a string, found 7"});
  expect_refused(pair_but("id = \"a\"", ""), {"nodes[1]", "id", "a string, found nothing"});
  expect_refused(pair_but("\"pair\"", "\"\""), {"[cluster] name (line 2)", "1 to 128 characters", "''"});
  expect_refused(pair_but("\"pair\"", "\"a\\tb\""), {"[cluster] name", "no control characters", "a\\x09b"});
}

TEST(ClusterConfig, D4Error3And4Repeated) {
  expect_refused(pair_but("\"b\"", "\"a\""), {"nodes[2] ('a')", "id", "'a'"});
  expect_refused(pair_but("127.0.0.1:19002", "127.0.0.1:19001"), {"nodes[2] ('b')", "address", "127.0.0.1:19001"});
  const auto both = [](const std::string& one, const std::string& other) {
    std::string text = pair_but("127.0.0.1:19001", one);
    return text.replace(text.find("127.0.0.1:19002"), 15, other);
  };
  expect_refused(both("[::1]:5", "[0:0:0:0:0:0:0:1]:5"), {"nodes[2] ('b')", "address", "[0:0:0:0:0:0:0:1]:5"});
  expect_refused(both("localhost:5", "LocalHost:5"), {"address", "LocalHost:5"});
  expect_refused(both("unix:/a", "unix:/a"), {"address", "unix:/a"});
  (void)parse(both("unix:/a", "unix:/A"));
  (void)parse(both("127.0.0.1:5", "127.0.0.2:5"));
}

TEST(ClusterConfig, D4Error5NumberOfStages) {
  expect_refused(pair_but("pipeline_parallel_size = 2", "pipeline_parallel_size = 3"),
                 {"nodes", "wanted 3", "pipeline_parallel_size", "found 2"});
  expect_refused(pair_but("pipeline_parallel_size = 2", ""), {"nodes", "wanted 1", "found 2"});
  for (const char* value : {"0", "-1", "1.0", "\"2\"", "9223372036854775807"})
    expect_refused(pair_but("pipeline_parallel_size = 2", "pipeline_parallel_size = " + std::string(value)),
                   {"[cluster] pipeline_parallel_size (line 3)", "an integer from 1"});
}

TEST(ClusterConfig, D4Error6Stages) {
  expect_refused(pair_but("stage = 1", ""), {"nodes[2] ('b')", "stage", "wanted 0 to 1, found nothing"});
  expect_refused(pair_but("stage = 1", "stage = 2"), {"nodes[2] ('b')", "stage (line", "from 0 to 1, found 2"});
  expect_refused(pair_but("stage = 1", "stage = -1"), {"stage", "found -1"});
  expect_refused(pair_but("stage = 1", "stage = 0"), {"nodes[2] ('b')", "stage", "each stage once, found 0"});
  expect_refused(pair_but("stage = 1", "stage = \"1\""), {"stage", "'1'"});
}

TEST(ClusterConfig, D4Error7StageWithoutAStagesRole) {
  expect_refused(pair_but("\"hybrid\"", "\"hybrid\"\nstage = 0"), {"nodes[0] ('front')", "stage", "found 0"});
}

// Tensor parallelism is refused by name until it is built.
TEST(ClusterConfig, D4Error8Mesh) {
  expect_refused(pair_but("pipeline_parallel_size = 2", "pipeline_parallel_size = 2\ntensor_parallel_size = 4"),
                 {"[cluster] tensor_parallel_size (line 4)", "not built yet", "found 4"}, ErrorKind::unsupported);
  expect_refused(pair_but("pipeline_parallel_size = 2", "pipeline_parallel_size = 2\ntensor_parallel_size = 0"),
                 {"[cluster] tensor_parallel_size", "found 0"});
  expect_refused(pair_but("stage = 1", "stage = 1\nrank = 3"), {"nodes[2] ('b')", "rank", "not built yet", "found 3"},
                 ErrorKind::unsupported);
  for (const char* role :
       {"tensor_parallel_rank", "Tensor-Parallel", "tp", "pipeline-tensor-parallel", "pp_tp", "PP-TP", "pptp", "2d"})
    expect_refused(pair_but("\"pipeline_stage\"\nstage = 1", '"' + std::string(role) + '"'),
                   {"nodes[2] ('b')", "role", "tensor parallelism", std::string("'") + role + "'"}, ErrorKind::unsupported);
}

TEST(ClusterConfig, D4Error9Coordinators) {
  const std::string without = std::string("[[nodes]]\nid = \"a\"\naddress = \"unix:/a\"\nrole = \"pipeline\"\nstage = 0\n");
  expect_refused(without, {"nodes", "hybrid", "coordinator", "found none"});
  expect_refused(pair_with("[[nodes]]\nid = \"c\"\naddress = \"unix:/c\"\nrole = \"hybrid\"\n"),
                 {"nodes[1] ('front')", "role", "one coordinator", "'hybrid'"});
}

TEST(ClusterConfig, OtherRolesAreRefusedByName) {
  for (const char* role : {"prefill", "Decode", "ROUTER"})
    expect_refused(pair_but("\"pipeline_stage\"", '"' + std::string(role) + '"'),
                   {"nodes[1] ('a')", "role", "not built yet", std::string("'") + role + "'"}, ErrorKind::unsupported);
  expect_refused(pair_but("\"pipeline_stage\"", "\"piplinestage\""),
                 {"nodes[1] ('a')", "role", "'piplinestage'", "closest known one is pipeline_stage"});
  expect_refused(pair_but("role = \"pipeline_stage\"", ""), {"nodes[1] ('a')", "role", "found nothing"});
}

TEST(ClusterConfig, D4Error10ManualSplit) {
  const auto partition = [](const std::string& lines) { return pair_with("[partition]\n" + lines); };
  expect_refused(partition("mode = \"manual\"\nlayers = [\"0-3\", \"4-5\", \"6-7\"]\n"),
                 {"[partition] layers (line 6)", "P07", "2 stages", "'0-3,4-5,6-7'"});
  expect_refused(partition("mode = \"manual\"\nlayers = \"0-7\"\n"), {"[partition] layers", "P07", "'0-7'"});
  expect_refused(partition("mode = \"manual\"\n"), {"[partition] layers", "found nothing"});
  expect_refused(partition("layers = \"0-3,4-7\"\n"), {"[partition] layers", "mode = \"manual\"", "'auto'"});
  expect_refused(partition("mode = \"hand\"\n"), {"[partition] mode (line 5)", "auto or manual", "'hand'"});
  expect_refused(partition("mode = \"manual\"\nlayers = []\n"), {"[partition] layers", "P01"});
  expect_refused(partition("mode = \"manual\"\nlayers = [\"0-3\", \"\"]\n"), {"[partition] layers", "P02"});
  expect_refused(partition("mode = \"manual\"\nlayers = \"0-3,x\"\n"), {"[partition] layers", "P02", "'x'"});
  expect_refused(partition("mode = \"manual\"\nlayers = \"3-0,4\"\n"), {"[partition] layers", "P03"});
  expect_refused(partition("mode = \"manual\"\nlayers = \"0-3,5-7\"\n"), {"[partition] layers", "P05", "'0-3,5-7'"});
  expect_refused(partition("mode = \"manual\"\nlayers = \"9999999999999+9999999999999\"\n"), {"[partition] layers", "P04"});
  expect_refused(partition("mode = \"manual\"\nlayers = [\"0-3,4-7\"]\n"), {"[partition] layers", "'0-3,4-7'"});
  expect_refused(partition("mode = \"manual\"\nlayers = [0, 1]\n"), {"[partition] layers", "found 0"});
  expect_refused(partition("mode = \"manual\"\nlayers = 2\n"), {"[partition] layers", "found 2"});
}

TEST(ClusterConfig, D4Error11HalfOfTls) {
  const std::vector<std::string> keys = {"cert", "key", "ca"};
  for (unsigned some = 1; some < 7; ++some) {
    std::string lines = "[security]\n";
    for (size_t i = 0; i < keys.size(); ++i)
      if ((some >> i & 1U) != 0) lines += keys[i] + " = \"file-" + keys[i] + "\"\n";
    const Refusal found = refusal(pair_with(lines));
    EXPECT_THAT(found.message, AllOf(HasSubstr("[folder/cluster.toml] [security] "), HasSubstr("wanted cert, key and ca"),
                                     HasSubstr("folder/file-")));
  }
  expect_refused(pair_with("[security]\ncert = \"c\"\nca = \"a\"\n"), {"[security] key", "'folder/c'", "without key"});
  expect_refused(pair_with("[security]\ncert = \"\"\n"), {"[security] cert", "a path", "''"});
}

TEST(ClusterConfig, D4Error12AndD13PlaintextBeyondLoopback) {
  const std::string far = "10.0.0.11:19001";
  const std::string tls = "[security]\ncert = \"c\"\nkey = \"k\"\nca = \"a\"\n";
  const auto at = [](const std::string& address, const std::string& security = "") {
    std::string text = pair_with(security);
    return text.replace(text.find("127.0.0.1:19001"), 15, address);
  };
  for (const char* address : {"10.0.0.11:19001", "0.0.0.0:1", "[::]:1", "[2001:db8::1]:1", "host.example:1", "127.example:1",
                              "localhost.example:1", "[::ffff:10.0.0.1]:1"}) {
    expect_refused(at(address), {"nodes[1] ('a')", "address (line 12)", address, "allow_insecure", "[security]"},
                   ErrorKind::security);
    EXPECT_EQ(parse(at(address, tls)).stage(0).address, address);
    EXPECT_EQ(parse(at(address, "[security]\nallow_insecure = true\n")).stage(0).address, address);
  }
  expect_refused(at(far, "[security]\ntoken_file = \"t\"\n"), {"address", far}, ErrorKind::security);
  for (const char* address : {"127.255.0.1:1", "[::1]:1", "localhost:1", "LOCALHOST:1", "unix:/tmp/weft"})
    EXPECT_EQ(parse(at(address)).stage(0).address, address);
  // What the command line says counts.
  ClusterSecurity given;
  given.allow_insecure = true;
  EXPECT_TRUE(parse_cluster_config(at(far), kFile, given).security.allow_insecure);
  EXPECT_EQ(parse_cluster_config(at(far), kFile, {"c", "k", "a"}).security.cert, "c");
  EXPECT_EQ(parse_cluster_config(at(far, tls), kFile, {"other"}).security, (ClusterSecurity{"other", "folder/k", "folder/a"}));
}

TEST(ClusterConfig, D4Error13UnknownKeys) {
  expect_refused(pair_but("name =", "nane ="),
                 {"[cluster] nane (line 2)", "unknown key", "'pair'", "closest known one is name"});
  expect_refused(pair_with("[partitions]\n"), {"partitions (line 4)", "unknown key", "closest known one is partition"});
  expect_refused(pair_with("[partition]\nkv_token = 5\n"), {"[partition] kv_token", "found 5", "kv_tokens"});
  expect_refused(pair_with("[security]\ncertificate_of_the_node = 1\n"), {"[security] certificate_of_the_node", "unknown key"});
  expect_refused(pair_but("stage = 1", "stage = 1\nadress = 1"), {"nodes[2] ('b')", "adress", "closest known one is address"});
  expect_refused(pair_but("stage = 1", "resources = { memory = 3 }\nstage = 1"),
                 {"nodes[2] ('b')", "resources.memory", "unknown key", "found 3"});
  EXPECT_THAT(refusal(pair_with("[security]\nzzzzzz = 1\n")).message, ::testing::Not(HasSubstr("closest")));
}

TEST(ClusterConfig, Transports) {
  for (const char* known : {"tcp", "auto", "grpc"})
    EXPECT_EQ(parse(pair_with("transport_backend = \"" + std::string(known) + "\"\n")).transport_backend, known);
  for (const char* later : {"thunderbolt", "rdma", "shm", "ucx", "nccl"})
    expect_refused(pair_with("transport_backend = \"" + std::string(later) + "\"\n"),
                   {"[cluster] transport_backend (line 4)", later, "not built"}, ErrorKind::unsupported);
  expect_refused(pair_with("transport_backend = \"udp\"\n"), {"[cluster] transport_backend", "'udp'"});
}

TEST(ClusterConfig, ValuesOutOfRange) {
  struct Case {
    const char* lines;
    const char* key;
    const char* found;
  };
  for (const Case& c :
       std::vector<Case>{{"stage_timeout_s = 0", "[cluster] stage_timeout_s", "found 0"},
                         {"connect_timeout_s = -1.5", "[cluster] connect_timeout_s", "found -1.5"},
                         {"load_timeout_s = inf", "[cluster] load_timeout_s", "found inf"},
                         {"heartbeat_interval_s = nan", "[cluster] heartbeat_interval_s", "found nan"},
                         {"heartbeat_interval_s = \"1\"", "[cluster] heartbeat_interval_s", "found '1'"},
                         {"heartbeat_misses = 0", "[cluster] heartbeat_misses", "found 0"},
                         {"model = 1979-05-27", "[cluster] model", "found a date"},
                         {"model = \"a\\u0000\"", "[cluster] model", "a\\x00"},
                         {"[partition]\nbalance = \"latencies\"", "[partition] balance", "known one is latency"},
                         {"[partition]\nkv_tokens = 0", "[partition] kv_tokens", "found 0"},
                         {"[partition]\nkv_sequences = 1048577", "[partition] kv_sequences", "found 1048577"},
                         {"[partition]\nreserve_fraction = 0.5", "[partition] reserve_fraction", "found 0.5"},
                         {"[partition]\nreserve_fraction = -0.1", "[partition] reserve_fraction", "found -0.1"},
                         {"[security]\nallow_insecure = 1", "[security] allow_insecure", "found 1"},
                         {"[security]\ncert = []", "[security] cert", "found an array"}})
    expect_refused(pair_with(std::string(c.lines) + "\n"), {c.key, c.found});
  for (const Case& c : std::vector<Case>{{"resources = 4", "nodes[2] ('b') resources", "a table, found 4"},
                                         {"resources.memory_bytes = -1", "resources.memory_bytes", "found -1"},
                                         {"resources.compute_units = 1.5", "resources.compute_units", "found 1.5"},
                                         {"resources.memory_bandwidth = -1", "resources.memory_bandwidth", "found -1"},
                                         {"devices = [0, 0]", "devices", "found 0"},
                                         {"devices = []", "devices", "found an array"},
                                         {"devices = [\"a\"]", "devices", "'a'"},
                                         {"model_dir = \"\"", "model_dir", "''"}})
    expect_refused(pair_but("stage = 1", std::string("stage = 1\n") + c.lines), {c.key, c.found});
}

TEST(ClusterConfig, Addresses) {
  struct Good {
    const char* text;
    const char* host;
    int64_t port;
    const char* canonical;
    bool loopback;
  };
  for (const Good& c : std::vector<Good>{{"127.0.0.1:1", "127.0.0.1", 1, "127.0.0.1:1", true},
                                         {"Host-1.Example:65535", "Host-1.Example", 65535, "host-1.example:65535", false},
                                         {"[::1]:80", "::1", 80, "[::1]:80", true},
                                         {"[FE80::1%eth0]:80", "FE80::1%eth0", 80, "[fe80::1%eth0]:80", false}}) {
    const NodeEndpoint end = parse_endpoint(c.text);
    EXPECT_EQ(end.host, c.host);
    EXPECT_EQ(end.port, c.port);
    EXPECT_EQ(end.path, "");
    EXPECT_EQ(end.canonical(), c.canonical);
    EXPECT_EQ(end.loopback(), c.loopback);
  }
  EXPECT_EQ(parse_endpoint("unix:/run/weft.sock").path, "/run/weft.sock");
  EXPECT_TRUE(parse_endpoint("unix:/run/weft.sock").loopback());
  for (const std::string& text : std::vector<std::string>{"",
                                                          "host",
                                                          "host:",
                                                          ":1",
                                                          "host:0",
                                                          "host:65536",
                                                          "host:-1",
                                                          "host:+1",
                                                          "host:1x",
                                                          "host:99999999999999999999",
                                                          "a b:1",
                                                          "::1:80",
                                                          "[::1]",
                                                          "[::1]80",
                                                          "[::1]:",
                                                          "[::1",
                                                          "[]:1",
                                                          "[host]:1",
                                                          "[127.0.0.1]:1",
                                                          "[::1%]:1",
                                                          "[::1%a b]:1",
                                                          "unix:",
                                                          "unix:relative",
                                                          "unix:/" + std::string(107, 'x'),
                                                          "http://host:1",
                                                          "höst:1",
                                                          "host:1:",
                                                          std::string(254, 'a') + ":1"})
    expect_refused(
        pair_but("127.0.0.1:19002", text),
        {"nodes[2] ('b')", "address (line", "wanted host:port, [v6]:port or unix:/path, found '" + text.substr(0, 190)});
}

TEST(ClusterConfig, WhatIsNoTomlIsRefusedWithItsPlace) {
  expect_refused("[cluster\n", {"line 1", "column", "wanted TOML"});
  for (const char* header : {"[[[1]]]", "[[=", "[", "\xEF\xBB\xBF[[]]", "  [ ]"})
    expect_refused(header, {"line 1", "wanted TOML"});
  expect_refused(pair_with("name = \"again\"\n"), {"line 4", "wanted TOML", "name"});
  expect_refused("name = \"\xFF\"\n", {"wanted TOML"});
  expect_refused(std::string((1U << 20) + 1, '\n'), {"at most 1048576 bytes"});
  expect_refused("cluster = 3\n", {"cluster (line 1)", "a table, found 3"});
  for (const char* text : {"[clusté]",
                           "x =\xC2\xA0"
                           "1",
                           "x = \"\"\"\\\n é\"\"\"", "x = 1 é"})
    expect_refused(text, {"wanted TOML", "ASCII outside of comments and strings of one line"});
  EXPECT_EQ(parse("# é\n" + pair_but("\"pair\"", "'é' # é")).name, "é");
  // Deep inputs do not reach the parser.
  std::string brackets(100000, '[');
  expect_refused("x = " + brackets, {"line 1", "brackets"});
  std::string dots;
  for (int i = 0; i < 100000; ++i) dots += "a.";
  expect_refused("\n" + dots + "a = 1\n", {"line 2", "dots"});
  // Those in strings and comments are no matter.
  std::string harmless =
      "# " + brackets + dots + "\n" + pair_but("name = \"pair\"", "name = \"[[[[[[[[[[[[[[[[[[[[{{\\\"[[.\"");
  EXPECT_EQ(parse(harmless).name, "[[[[[[[[[[[[[[[[[[[[{{\"[[.");
  EXPECT_EQ(parse(pair_but("\"pair\"", "'" + std::string(99, '.') + "'")).name, std::string(99, '.'));
  EXPECT_EQ(parse(pair_but("\"pair\"", "\"\"\"\n" + std::string(99, '.') + "\\\n  \"\"\"")).name, std::string(99, '.'));
}

TEST(ClusterConfig, FilesAndNodesThatAreNotThere) {
  const testing_support::TemporaryFolder dir;
  const std::filesystem::path file = dir.path() / "cluster.toml";
  EXPECT_THROW((void)read_cluster_config(file), Error);
  write_file_atomic(file, pair_with("[security]\ncert = \"c\"\nkey = \"k\"\nca = \"a\"\n"));
  const ClusterConfig config = read_cluster_config(file);
  EXPECT_EQ(config.security.cert, dir.path() / "c");
  try {
    (void)config.node("frnt");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.string()), HasSubstr("'frnt'"), HasSubstr("front, a, b"),
                                    HasSubstr("closest known one is front")));
  }
}

}  // namespace
}  // namespace weft

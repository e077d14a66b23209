// Reading a cluster file; cluster_toml.cc writes one.
#include "pipeline/remote/cluster_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <toml++/toml.h>

#include "base/closest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "pipeline/plan.h"
#include "pipeline/remote/node_address.h"

namespace weft {
namespace {

constexpr int64_t kMostFileBytes = 1LL << 20;
constexpr int kMostBrackets = 16;        // open at a time
constexpr int kMostDots = 64;            // of the keys and numbers of a line
constexpr size_t kMostCharacters = 128;  // of a name or an id (distributed.md 1.4)
constexpr int64_t kMostStages = 1LL << 20;
constexpr int64_t kMostSequences = 1LL << 20;  // as --pp-max-sequences
constexpr int64_t kMostTokens = 1LL << 30;     // as --tokens
constexpr double kMostSeconds = 1e6;

// A value as a message shows it.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 160;
  if (text.size() <= kShown) return fmt::format("'{}'", printable(text));
  return fmt::format("'{}...' ({} bytes)", printable(text.substr(0, kShown)), text.size());
}

std::string shown(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string: return shown(std::string_view(node.as_string()->get()));
    case toml::node_type::integer: return fmt::format("{}", node.as_integer()->get());
    case toml::node_type::floating_point: return fmt::format("{}", node.as_floating_point()->get());
    case toml::node_type::boolean: return node.as_boolean()->get() ? "true" : "false";
    case toml::node_type::array: return "an array";
    case toml::node_type::table: return "a table";
    default: return "a date or time";
  }
}

// What the parser (toml++ 3.3) does not look at: it recurses into brackets, and into dotted keys when it frees them; its search
// for blanks is undefined for most characters that are not ASCII.
void require_parsable(std::string_view text, const std::string& file) {
  constexpr std::string_view kBeforeString = "=,[{.\n";
  int brackets = 0;
  int dots = 0;
  int64_t line = 1;
  char before = '\n';        // the last character that is no blank, outside of strings
  std::string_view closing;  // of the string that is open
  for (size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) > 0x7F && closing.size() != 1)
      fail(ErrorKind::bad_input, file, "line {}: wanted TOML: ASCII outside of comments and strings of one line", line);
    if (c == '\n') {
      ++line;
      dots = 0;
      if (closing.size() == 1) closing = {};  // not closed, which the parser refuses
    } else if (!closing.empty()) {
      if (c == '\\' && closing[0] == '"') {
        if (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      } else if (text.substr(i).starts_with(closing)) {
        i += closing.size() - 1;
        closing = {};
      }
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if ((c == '"' || c == '\'') && kBeforeString.find(before) != std::string_view::npos) {
      const std::string_view one = c == '"' ? "\"" : "'";
      const std::string_view three = c == '"' ? "\"\"\"" : "'''";
      closing = text.substr(i).starts_with(three) ? three : one;
      i += closing.size() - 1;
      before = c;
    } else if (c == '[' || c == '{') {
      ++brackets;
    } else if ((c == ']' || c == '}') && brackets > 0) {
      --brackets;
    } else if (c == '.') {
      ++dots;
    }
    if (closing.empty() && c != ' ' && c != '\t') before = text[i];
    if (brackets > kMostBrackets)
      fail(ErrorKind::bad_input, file, "line {}: wanted at most {} brackets within each other, found more", line,
           kMostBrackets);
    if (dots > kMostDots) fail(ErrorKind::bad_input, file, "line {}: wanted at most {} dots, found more", line, kMostDots);
  }
}

// The values of one table, each asked for by its key. Keys that are not known are refused at once.
class Section {
 public:
  // `name` is how messages call the table: "[cluster] ", "nodes[2] ('stage-1') ".
  Section(std::string file, const toml::table* table, std::string name, const std::vector<std::string>& known)
      : file_(std::move(file)), table_(table), name_(std::move(name)) {
    if (table == nullptr) return;
    for (const auto& [key, value] : *table) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      fail(ErrorKind::bad_input, file_, "{}{} (line {}): unknown key, found {}{}", name_, printable(key.str().substr(0, 160)),
           key.source().begin.line, shown(value), closest_hint(key.str(), known));
    }
  }

  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  // "FILE] [cluster] name (line 3): "
  template <class... Args>
  [[noreturn]] void refuse(ErrorKind kind, std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    const toml::node* node = find(key);
    const std::string where = node == nullptr ? "" : fmt::format(" (line {})", node->source().begin.line);
    fail(kind, file_, "{}{}{}: {}", name_, key, where, fmt::format(format, std::forward<Args>(args)...));
  }
  // The same with the value that was found.
  [[noreturn]] void refuse_value(std::string_view key, std::string_view wanted) const {
    refuse(ErrorKind::bad_input, key, "wanted {}, found {}", wanted, shown(*find(key)));
  }

  [[nodiscard]] std::optional<std::string> text(std::string_view key) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_string()) refuse_value(key, "a string");
    return node->as_string()->get();
  }

  [[nodiscard]] std::string required_text(std::string_view key) const {
    const std::optional<std::string> found = text(key);
    if (!found) refuse(ErrorKind::bad_input, key, "wanted a string, found nothing");
    return *found;
  }

  // Between 1 and 128 characters, no control characters (distributed.md 1.4).
  void require_name(std::string_view key, std::string_view name) const {
    size_t characters = 0;
    for (std::string_view rest = name; !rest.empty(); ++characters) {
      const Utf8Step step = utf8_step(rest);
      const bool control = step.code < 0x20 || (step.code >= 0x7F && step.code < 0xA0);
      if (!step.good || control) refuse_value(key, "no control characters");
      rest.remove_prefix(step.length);
    }
    if (characters < 1 || characters > kMostCharacters) refuse_value(key, "1 to 128 characters");
  }

  [[nodiscard]] std::filesystem::path path(std::string_view key) const {
    const std::optional<std::string> found = text(key);
    if (!found) return {};
    if (found->empty() || found->find('\0') != std::string::npos) refuse_value(key, "a path");
    return *found;
  }

  [[nodiscard]] std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    const toml::value<int64_t>* value = node->as_integer();
    if (value == nullptr || value->get() < low || value->get() > high)
      refuse_value(key, high == std::numeric_limits<int64_t>::max() ? fmt::format("an integer of {} or more", low)
                                                                    : fmt::format("an integer from {} to {}", low, high));
    return value->get();
  }

  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_number()) refuse_value(key, "a number");
    const double value = node->is_integer() ? static_cast<double>(node->as_integer()->get()) : node->as_floating_point()->get();
    if (!std::isfinite(value)) refuse_value(key, "a finite number");
    return value;
  }

  void read_seconds(std::string_view key, double& seconds) const {
    seconds = number(key).value_or(seconds);
    if (!(seconds > 0.0 && seconds <= kMostSeconds)) refuse_value(key, "seconds above 0 and up to 1000000");
  }

  [[nodiscard]] std::optional<bool> flag(std::string_view key) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_boolean()) refuse_value(key, "true or false");
    return node->as_boolean()->get();
  }

  [[nodiscard]] const toml::table* table(std::string_view key) const {
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_table()) refuse_value(key, "a table");
    return node == nullptr ? nullptr : node->as_table();
  }

  [[nodiscard]] const toml::array* array(std::string_view key) const {
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_array()) refuse_value(key, "an array");
    return node == nullptr ? nullptr : node->as_array();
  }

  [[nodiscard]] const toml::node* find(std::string_view key) const { return table_ == nullptr ? nullptr : table_->get(key); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string file_;
  const toml::table* table_;
  std::string name_;
};

void read_cluster(const Section& section, ClusterConfig& config) {
  if (const auto name = section.text("name")) {
    section.require_name("name", *name);
    config.name = *name;
  }
  config.stages = section.integer("pipeline_parallel_size", 1, kMostStages).value_or(1);
  if (section.integer("tensor_parallel_size", 1, kMostStages).value_or(1) > 1)
    section.refuse(ErrorKind::unsupported, "tensor_parallel_size", "tensor parallelism is not built yet: wanted 1, found {}",
                   shown(*section.find("tensor_parallel_size")));
  if (const auto transport = section.text("transport_backend")) {
    const std::vector<std::string> known = {"tcp", "auto", "grpc"};
    const std::vector<std::string> later = {"thunderbolt", "rdma", "shm", "ucx", "nccl"};
    if (std::ranges::find(later, *transport) != later.end())
      section.refuse(ErrorKind::unsupported, "transport_backend", "'{}' is not built: wanted tcp, auto or grpc", *transport);
    if (std::ranges::find(known, *transport) == known.end()) section.refuse_value("transport_backend", "tcp, auto or grpc");
    config.transport_backend = *transport;
  }
  config.model = section.path("model");
  section.read_seconds("stage_timeout_s", config.timeouts.stage);
  section.read_seconds("connect_timeout_s", config.timeouts.connect);
  section.read_seconds("load_timeout_s", config.timeouts.load);
  section.read_seconds("heartbeat_interval_s", config.timeouts.heartbeat_interval);
  config.timeouts.heartbeat_misses = section.integer("heartbeat_misses", 1, 1000).value_or(config.timeouts.heartbeat_misses);
}

// The result of `body`; its Error goes to `refuse` as the message without its place.
template <class Body, class Refuse>
auto without_place(Body&& body, Refuse&& refuse) {
  std::string reason;
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    reason = error.what();
  }
  refuse(reason.substr(reason.find("] ") + 2));
  fail(ErrorKind::internal, "cluster file", "wanted a refusal of '{}'", reason);
}

// "0-30", "31-61", ... in one text, without blanks.
std::string read_layers(const Section& section) {
  std::string text;
  if (const toml::node& node = *section.find("layers"); node.is_string()) {
    text = node.as_string()->get();
  } else {
    if (!node.is_array()) section.refuse_value("layers", "a string or an array of strings");
    for (const toml::node& item : *node.as_array()) {
      const toml::value<std::string>* range = item.as_string();
      if (range == nullptr || range->get().find_first_of(",+") != std::string::npos)
        section.refuse(ErrorKind::bad_input, "layers", "wanted strings of one range each, found {}", shown(item));
      text += (text.empty() ? "" : ",") + (range->get().empty() ? " " : range->get());
    }
  }
  std::erase_if(text, [](char c) { return c == ' ' || c == '\t'; });
  return text;
}

void read_partition(const Section& section, ClusterConfig& config) {
  const std::string mode = section.text("mode").value_or("auto");
  if (mode != "auto" && mode != "manual") section.refuse_value("mode", "auto or manual");
  if (section.has("layers")) {
    if (mode != "manual")
      section.refuse(ErrorKind::bad_input, "layers", "wanted mode = \"manual\" beside it, found '{}'", mode);
    const std::string layers = read_layers(section);
    const auto ranges = std::ssize(without_place(
        [&] { return parse_layer_ranges(layers, std::nullopt); },
        [&](auto reason) { section.refuse(ErrorKind::bad_input, "layers", "{}, found {}", reason, shown(layers)); }));
    if (ranges != config.stages)
      section.refuse(ErrorKind::bad_input, "layers",
                     "P07: wanted a range for each of {} stages (pipeline_parallel_size), found {}", config.stages,
                     shown(layers));
    config.layers = layers;
  } else if (mode == "manual") {
    section.refuse(ErrorKind::bad_input, "layers", "wanted the layers of each stage beside mode = \"manual\", found nothing");
  }
  if (const auto balance = section.text("balance")) {
    const std::vector<std::string> known = {"memory", "compute", "latency"};
    if (std::ranges::find(known, *balance) == known.end())
      section.refuse(ErrorKind::bad_input, "balance", "wanted memory, compute or latency, found {}{}", shown(*balance),
                     closest_hint(*balance, known));
    config.balance = *balance;
  }
  config.kv_tokens = section.integer("kv_tokens", 1, kMostTokens).value_or(config.kv_tokens);
  config.kv_sequences = section.integer("kv_sequences", 1, kMostSequences).value_or(config.kv_sequences);
  config.reserve_fraction = section.number("reserve_fraction").value_or(config.reserve_fraction);
  if (!(config.reserve_fraction >= 0.0 && config.reserve_fraction < 0.5))
    section.refuse_value("reserve_fraction", "0 <= x < 0.5");
}

void read_security(const Section& section, const ClusterSecurity& given, ClusterConfig& config) {
  const std::filesystem::path folder = config.file.parent_path();
  const auto read = [&](std::string_view key, const std::filesystem::path& instead) {
    const std::filesystem::path found = section.path(key);
    if (!instead.empty()) return instead;
    return found.empty() ? found : folder / found;
  };
  ClusterSecurity& made = config.security;
  made.cert = read("cert", given.cert);
  made.key = read("key", given.key);
  made.ca = read("ca", given.ca);
  made.token_file = read("token_file", given.token_file);
  made.allow_insecure = section.flag("allow_insecure").value_or(false) || given.allow_insecure;
  const std::vector<std::pair<std::string, const std::filesystem::path*>> parts = {
      {"cert", &made.cert}, {"key", &made.key}, {"ca", &made.ca}};
  const auto present = std::ranges::find_if(parts, [](const auto& part) { return !part.second->empty(); });
  if (present == parts.end()) return;
  for (const auto& [key, path] : parts)
    if (path->empty())
      section.refuse(ErrorKind::bad_input, key, "wanted cert, key and ca or none of them, found {} {} without {}",
                     present->first, shown(present->second->native()), key);
}

// "Pipeline-Stage" -> "pipeline_stage".
std::string plain_role(std::string role) {
  for (char& c : role) {
    if (c == '-') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return role;
}

NodeRole read_role(const Section& section) {
  const std::string found = section.required_text("role");
  const std::string role = plain_role(found);
  if (role == "hybrid") return NodeRole::coordinator;
  if (role == "pipeline_stage" || role == "pipeline") return NodeRole::stage;
  const std::map<std::string, std::string> later = {
      {"prefill", "separate nodes for prefill and decode are"},
      {"decode", "separate nodes for prefill and decode are"},
      {"router", "a front without a model is"},
      {"tensor_parallel_rank", "tensor parallelism is"},
      {"tensor_parallel", "tensor parallelism is"},
      {"tp", "tensor parallelism is"},
      {"pipeline_tensor_parallel", "tensor parallelism is"},
      {"pp_tp", "tensor parallelism is"},
      {"pptp", "tensor parallelism is"},
      {"2d", "tensor parallelism is"},
  };
  if (const auto known = later.find(role); known != later.end())
    section.refuse(ErrorKind::unsupported, "role", "{} not built yet: wanted hybrid or pipeline_stage, found {}", known->second,
                   shown(found));
  section.refuse(ErrorKind::bad_input, "role", "wanted hybrid (the coordinator) or pipeline_stage, found {}{}", shown(found),
                 closest_hint(role, {"hybrid", "pipeline_stage", "pipeline"}));
}

std::vector<int64_t> read_devices(const Section& section) {
  std::vector<int64_t> devices;
  for (const toml::node& item : *section.array("devices")) {
    const toml::value<int64_t>* index = item.as_integer();
    if (index == nullptr || index->get() < 0 || std::ranges::find(devices, index->get()) != devices.end())
      section.refuse(ErrorKind::bad_input, "devices", "wanted different indices of 0 or more, found {}", shown(item));
    devices.push_back(index->get());
  }
  if (devices.empty()) section.refuse_value("devices", "one index or more");
  return devices;
}

// The nodes one by one, then what holds for all of them together.
class NodeReader {
 public:
  NodeReader(std::string file, ClusterConfig& config) : file_(std::move(file)), config_(config) {}

  void read(const toml::node& item, size_t index) {
    std::string name = fmt::format("nodes[{}] ", index);
    const toml::table* table = item.as_table();
    if (table == nullptr) fail(ErrorKind::bad_input, file_, "{}: wanted a table, found {}", name, shown(item));
    if (const auto* id = table->get_as<std::string>("id"))
      name = fmt::format("nodes[{}] ({}) ", index, shown(std::string_view(id->get())));
    const Section section(file_, table, name, {"id", "address", "role", "stage", "rank", "resources", "model_dir", "devices"});

    ClusterNode node;
    node.id = section.required_text("id");
    section.require_name("id", node.id);
    if (!ids_.insert(node.id).second) section.refuse_value("id", "an id of its own for each node");
    node.address = section.required_text("address");
    check_address(section, node.address);
    node.role = read_role(section);
    if (section.has("rank"))
      section.refuse(ErrorKind::unsupported, "rank", "tensor parallelism is not built yet: wanted no rank, found {}",
                     shown(*section.find("rank")));
    if (node.role == NodeRole::coordinator && section.has("stage"))
      section.refuse_value("stage", "no stage beside role hybrid");
    const Section resources(file_, section.table("resources"), name + "resources.",
                            {"memory_bytes", "compute_units", "memory_bandwidth"});
    node.memory_bytes = resources.integer("memory_bytes", 0, int64_t{1} << 60).value_or(0);
    node.compute_units = resources.integer("compute_units", 0, std::numeric_limits<int64_t>::max()).value_or(0);
    node.memory_bandwidth = resources.number("memory_bandwidth").value_or(0.0);
    if (node.memory_bandwidth < 0.0) resources.refuse_value("memory_bandwidth", "0 or more bytes/s");
    node.model_dir = section.path("model_dir");
    if (section.has("devices")) node.devices = read_devices(section);
    config_.nodes.push_back(std::move(node));
    sections_.push_back(section);
  }

  void finish() {
    const auto stages = std::ranges::count(config_.nodes, NodeRole::stage, &ClusterNode::role);
    if (stages != config_.stages)
      fail(ErrorKind::bad_input, file_,
           "nodes: wanted {} of role pipeline_stage, as [cluster] pipeline_parallel_size says, found {}", config_.stages,
           stages);
    std::set<int64_t> seen;
    bool coordinator = false;
    for (size_t i = 0; i < sections_.size(); ++i) {
      ClusterNode& node = config_.nodes[i];
      const Section& section = sections_[i];
      if (node.role == NodeRole::coordinator) {
        if (std::exchange(coordinator, true)) section.refuse_value("role", "one coordinator");
        continue;
      }
      if (!section.has("stage")) section.refuse(ErrorKind::bad_input, "stage", "wanted 0 to {}, found nothing", stages - 1);
      node.stage = section.integer("stage", 0, stages - 1);
      if (!seen.insert(*node.stage).second) section.refuse_value("stage", "each stage once");
    }
    if (!coordinator) fail(ErrorKind::bad_input, file_, "nodes: wanted one of role hybrid, the coordinator, found none");
    std::ranges::sort(config_.nodes, {}, [](const ClusterNode& node) { return node.stage.value_or(-1); });
  }

 private:
  void check_address(const Section& section, const std::string& address) {
    const NodeEndpoint end =
        without_place([&] { return parse_endpoint(address); },
                      [&](const std::string& reason) { section.refuse(ErrorKind::bad_input, "address", "{}", reason); });
    if (!addresses_.insert(end.canonical()).second) section.refuse_value("address", "an address of its own for each node");
    const ClusterSecurity& security = config_.security;
    if (security.cert.empty() && !security.allow_insecure && !end.loopback())
      section.refuse(
          ErrorKind::security, "address",
          "{} is not loopback, and there is no TLS: wanted cert, key and ca under [security] (weft certs makes them), "
          "or allow_insecure = true for a network that you trust",
          shown(address));
  }

  std::string file_;
  ClusterConfig& config_;
  std::vector<Section> sections_;  // of the nodes
  std::set<std::string> ids_;
  std::set<std::string> addresses_;  // canonical
};

toml::table parse(std::string_view text, const std::string& file) {
  if (static_cast<int64_t>(text.size()) > kMostFileBytes)
    fail(ErrorKind::bad_input, file, "wanted at most {} bytes, found {}", kMostFileBytes, text.size());
  require_parsable(text, file);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::bad_input, file, "line {}, column {}: wanted TOML: {}", error.source().begin.line,
         error.source().begin.column, printable(error.description()));
  }
}

}  // namespace

const ClusterNode& ClusterConfig::coordinator() const {
  const auto found = std::ranges::find(nodes, NodeRole::coordinator, &ClusterNode::role);
  if (found == nodes.end()) fail(ErrorKind::internal, file.string(), "wanted a coordinator, found none");
  return *found;
}

const ClusterNode& ClusterConfig::stage(int64_t index) const {
  const auto found = std::ranges::find(nodes, std::optional<int64_t>(index), &ClusterNode::stage);
  if (found == nodes.end()) fail(ErrorKind::internal, file.string(), "wanted stage 0 to {}, found {}", stages - 1, index);
  return *found;
}

const ClusterNode& ClusterConfig::node(std::string_view id) const {
  std::vector<std::string> known;
  for (const ClusterNode& node : nodes) {
    if (node.id == id) return node;
    known.push_back(node.id);
  }
  fail(ErrorKind::bad_input, file.string(), "wanted a node among {}, found {}{}", fmt::join(known, ", "), shown(id),
       closest_hint(id, known));
}

ClusterConfig read_cluster_config(const std::filesystem::path& file, const ClusterSecurity& given) {
  return parse_cluster_config(read_text_file(file, ErrorKind::bad_input, kMostFileBytes), file, given);
}

ClusterConfig parse_cluster_config(std::string_view text, const std::filesystem::path& file, const ClusterSecurity& given) {
  const std::string place = file.string();
  const toml::table table = parse(text, place);
  const Section root(place, &table, "", {"cluster", "partition", "security", "nodes"});
  ClusterConfig config;
  config.file = file;
  read_cluster(Section(place, root.table("cluster"), "[cluster] ",
                       {"name", "pipeline_parallel_size", "tensor_parallel_size", "transport_backend", "model",
                        "stage_timeout_s", "connect_timeout_s", "load_timeout_s", "heartbeat_interval_s", "heartbeat_misses"}),
               config);
  read_partition(Section(place, root.table("partition"), "[partition] ",
                         {"mode", "layers", "balance", "kv_tokens", "kv_sequences", "reserve_fraction"}),
                 config);
  read_security(Section(place, root.table("security"), "[security] ", {"cert", "key", "ca", "token_file", "allow_insecure"}),
                given, config);
  const toml::array* nodes = root.array("nodes");
  if (nodes == nullptr || nodes->empty())
    fail(ErrorKind::bad_input, place, "nodes: wanted a [[nodes]] table for the coordinator and for each stage, found none");
  NodeReader reader(place, config);
  for (size_t i = 0; i < nodes->size(); ++i) reader.read(*nodes->get(i), i);
  reader.finish();
  return config;
}

}  // namespace weft

// Writing a cluster file.
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "pipeline/remote/cluster_config.h"

namespace weft {
namespace {

std::string toml_string(std::string_view text) {
  if (find_ill_formed_utf8(text)) fail(ErrorKind::bad_input, "cluster file", "wanted UTF-8, found '{}'", printable(text));
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
          out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        else
          out += c;
    }
  }
  return out + '"';
}

// A TOML float has a point or an exponent.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// How the file at `folder` names `path`, so that reading it gives the same file.
std::filesystem::path from_folder(const std::filesystem::path& path, const std::filesystem::path& folder) {
  if (folder.empty() || path.empty()) return path;
  const std::string prefix = (folder / "").native();
  const std::string& whole = path.native();
  if (whole.size() > prefix.size() && whole.starts_with(prefix)) {
    const std::filesystem::path rest = whole.substr(prefix.size());
    if (!rest.is_absolute()) return rest;
  }
  if (path.is_absolute()) return path;
  const std::filesystem::path relative = path.lexically_relative(folder);
  return relative.empty() ? std::filesystem::absolute(path) : relative;
}

std::string layer_list(const std::string& layers) {
  if (layers.find('+') != std::string::npos) return toml_string(layers);
  std::string out = "[";
  for (size_t begin = 0; begin <= layers.size();) {
    const size_t end = std::min(layers.find(',', begin), layers.size());
    out += (begin == 0 ? "" : ", ") + toml_string(std::string_view(layers).substr(begin, end - begin));
    begin = end + 1;
  }
  return out + "]";
}

std::string node_text(const ClusterNode& node) {
  std::string out = fmt::format("\n[[nodes]]\nid = {}\naddress = {}\nrole = \"{}\"\n", toml_string(node.id),
                                toml_string(node.address), node.role == NodeRole::coordinator ? "hybrid" : "pipeline_stage");
  if (node.stage) out += fmt::format("stage = {}\n", *node.stage);
  if (node.memory_bytes > 0) out += fmt::format("resources.memory_bytes = {}\n", node.memory_bytes);
  if (node.compute_units > 0) out += fmt::format("resources.compute_units = {}\n", node.compute_units);
  if (node.memory_bandwidth > 0.0) out += fmt::format("resources.memory_bandwidth = {}\n", number(node.memory_bandwidth));
  if (!node.model_dir.empty()) out += fmt::format("model_dir = {}\n", toml_string(node.model_dir.native()));
  if (node.devices) out += fmt::format("devices = [{}]\n", fmt::join(*node.devices, ", "));
  return out;
}

}  // namespace

std::string ClusterConfig::to_toml() const {
  std::string out = "[cluster]\n";
  out += fmt::format("name = {}\npipeline_parallel_size = {}\ntensor_parallel_size = 1\ntransport_backend = {}\n",
                     toml_string(name), stages, toml_string(transport_backend));
  if (!model.empty()) out += fmt::format("model = {}\n", toml_string(model.native()));
  out += fmt::format("stage_timeout_s = {}\nconnect_timeout_s = {}\nload_timeout_s = {}\n", number(timeouts.stage),
                     number(timeouts.connect), number(timeouts.load));
  out += fmt::format("heartbeat_interval_s = {}\nheartbeat_misses = {}\n", number(timeouts.heartbeat_interval),
                     timeouts.heartbeat_misses);

  out += fmt::format("\n[partition]\nmode = \"{}\"\n", layers ? "manual" : "auto");
  if (layers) out += fmt::format("layers = {}\n", layer_list(*layers));
  out += fmt::format("balance = {}\nkv_tokens = {}\nkv_sequences = {}\nreserve_fraction = {}\n", toml_string(balance),
                     kv_tokens, kv_sequences, number(reserve_fraction));

  out += "\n[security]\n";
  const std::filesystem::path folder = file.parent_path();
  const auto path = [&](std::string_view key, const std::filesystem::path& value) {
    if (!value.empty()) out += fmt::format("{} = {}\n", key, toml_string(from_folder(value, folder).native()));
  };
  path("cert", security.cert);
  path("key", security.key);
  path("ca", security.ca);
  path("token_file", security.token_file);
  out += fmt::format("allow_insecure = {}\n", security.allow_insecure);

  out += node_text(coordinator());
  for (int64_t s = 0; s < stages; ++s) out += node_text(stage(s));
  return out;
}

}  // namespace weft

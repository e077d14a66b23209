// How an inspection is shown.
#include <map>

#include "base/plural.h"
#include "model/inspect.h"

namespace weft {
namespace {

std::map<std::string, int64_t> kinds_of(const Inspection& inspection) {
  std::map<std::string, int64_t> kinds;
  for (const Inspection::Layer& layer : inspection.layers) ++kinds[layer.kind];
  return kinds;
}

Json config_json(const ModelConfig& c) {
  Json json = {{"model_type", c.model_type},
               {"hidden_size", c.hidden_size},
               {"layers", c.layer_count},
               {"vocab_size", c.vocab_size},
               {"max_context", c.max_context},
               {"eos_token_ids", c.eos_ids},
               {"tie_word_embeddings", c.tie_word_embeddings},
               {"rms_norm_eps", c.rms_norm_eps}};
  json.update(c.describe());
  json["quantized"] = !c.quantization.is_null();
  return json;
}

}  // namespace

Json Inspection::to_json() const {
  Json json = {{"folder", folder},         {"config", config_json(*config)}, {"files", files},
               {"file_bytes", file_bytes}, {"data_bytes", data_bytes},       {"tensors", tensors}};
  json["dtypes"] = Json::array();
  for (const DTypeTotal& d : dtypes)
    json["dtypes"].push_back({{"dtype", std::string(to_string(d.dtype))}, {"tensors", d.tensors}, {"bytes", d.bytes}});
  const auto shown = [](const Class& c) {
    return Json{{"class", c.name}, {"tensors", c.tensors}, {"parameters", c.parameters}, {"bytes", c.bytes}};
  };
  json["text"] = shown(text);
  json["classes"] = Json::array();
  for (const Class& c : classes) json["classes"].push_back(shown(c));
  json["layers"] = Json::array();
  for (const Layer& layer : layers)
    json["layers"].push_back({{"kind", layer.kind},
                              {"tensors", layer.tensors},
                              {"parameters", layer.parameters},
                              {"bytes", layer.bytes},
                              {"files", layer.files}});
  json["notes"] = notes;
  json["small_tensors_read"] = small_tensors_read;
  json["bytes_read"] = bytes_read;
  json["ok"] = ok();
  json["problem_count"] = problem_count;
  json["problems"] = problems;
  return json;
}

std::string Inspection::to_text() const {
  const ModelConfig& c = *config;
  std::string out = fmt::format("{}: {}, {}, hidden {}, vocabulary {}, context {}\n", folder, c.model_type,
                                counted(c.layer_count, "layer"), c.hidden_size, c.vocab_size, with_commas(c.max_context));
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : kinds_of(*this)) kinds.push_back(fmt::format("{} {}", count, kind));
  out += fmt::format("layers: {}\n", fmt::join(kinds, ", "));
  out += c.summary();
  out += fmt::format("\n{}, {}, {} bytes ({})\n", counted(files, "file"), counted(tensors, "tensor"), with_commas(file_bytes),
                     human_bytes(file_bytes));
  for (const DTypeTotal& d : dtypes)
    out +=
        fmt::format("  {:<8} {:>10} tensors {:>22} bytes\n", to_string(d.dtype), with_commas(d.tensors), with_commas(d.bytes));
  out += fmt::format("\n{:<16} {:>10} {:>22} {:>22}\n", "class", "tensors", "parameters", "bytes");
  const auto row = [&](const Class& k) {
    out += fmt::format("{:<16} {:>10} {:>22} {:>22}\n", k.name, with_commas(k.tensors), with_commas(k.parameters),
                       with_commas(k.bytes));
  };
  for (const Class& k : classes) row(k);
  row(text);
  out += fmt::format("\n{:<16} {:>10} {:>22} {:>22}  {}\n", "layer", "tensors", "parameters", "bytes", "files");
  for (size_t l = 0; l < layers.size(); ++l)
    out += fmt::format("{:<4} {:<11} {:>10} {:>22} {:>22}  {}\n", l, layers[l].kind, with_commas(layers[l].tensors),
                       with_commas(layers[l].parameters), with_commas(layers[l].bytes), fmt::join(layers[l].files, ", "));
  for (const std::string& note : notes) out += fmt::format("note: {}\n", note);
  if (small_tensors_read > 0) out += fmt::format("read {} small tensors\n", with_commas(small_tensors_read));
  if (bytes_read > 0) out += fmt::format("verified {} bytes\n", with_commas(bytes_read));
  for (const std::string& problem : problems) out += fmt::format("problem: {}\n", problem);
  if (!ok()) out += fmt::format("{} problems\n", problem_count);
  return out;
}

}  // namespace weft

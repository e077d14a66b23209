// The parameter table against the inventory of K3 spec 2 and 4.2.
#include "model/param_table.h"

#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "base/json.h"
#include "model/families/kimi_config.h"

namespace weft {
namespace {

KimiConfig published() {
  return parse_kimi_config(read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"), "config.json");
}

struct Sum {
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t tensors = 0;

  friend bool operator==(const Sum&, const Sum&) = default;
};
void PrintTo(const Sum& s, std::ostream* out) { *out << s.parameters << " parameters, " << s.bytes << " bytes, " << s.tensors; }

// In the published storage: experts packed, A_log padded to the head size.
void add(const KimiConfig& c, const ParamSpec& p, Sum& sum) {
  const bool expert = p.role.starts_with("moe.expert.");
  const int64_t elements = p.role == "kda.a_log" ? c.kda_head_dim : p.shape.elements();
  sum.parameters += elements * p.copies;
  sum.bytes += p.copies * (expert ? elements / 2 + elements / 32 : elements * size_of(p.dtype));
  sum.tensors += p.copies * (expert ? 2 : 1);
}

std::string component(const ParamSpec& p) {
  const auto starts = [&](std::string_view head) { return p.role.starts_with(head); };
  if (starts("moe.expert.")) return "routed experts";
  if (starts("moe.shared.")) return "shared experts";
  if (starts("moe.latent_")) return "latent";
  if (starts("moe.")) return "router";
  if (starts("kda.")) return "kda";
  if (starts("mla.")) return "mla";
  if (starts("mlp.")) return "dense";
  if (p.role.find("_res.") != std::string::npos) return "residual";
  if (p.role == "embed" || p.role == "lm_head") return p.role;
  return "norms";
}

TEST(ParamTable, PublishedInventoryToTheByte) {
  const KimiConfig c = published();
  std::map<std::string, Sum> parts;
  std::map<int64_t, Sum> layers;
  Sum total;
  for (const ParamSpec& p : c.params()) {
    add(c, p, parts[component(p)]);
    if (p.owner == Owner::layer) add(c, p, layers[p.layer.value]);
    add(c, p, total);
  }
  // K3 spec 4.2. A_log is counted as 128.
  EXPECT_EQ(parts["routed experts"], (Sum{2'722'740'830'208, 1'446'456'066'048, 494'592}));
  EXPECT_EQ(parts["kda"], (Sum{30'618'088'704, 61'258'257'408, 966}));
  EXPECT_EQ(parts["shared experts"], (Sum{12'155'092'992, 24'310'185'984, 276}));
  EXPECT_EQ(parts["mla"], (Sum{5'572'706'304, 11'145'412'608, 192}));
  EXPECT_EQ(parts["latent"], (Sum{4'727'310'336, 9'454'620'672, 276}));
  EXPECT_EQ(parts["embed"], (Sum{1'174'405'120, 2'348'810'240, 1}));
  EXPECT_EQ(parts["lm_head"], (Sum{1'174'405'120, 2'348'810'240, 1}));
  EXPECT_EQ(parts["dense"], (Sum{726'663'168, 1'453'326'336, 3}));
  EXPECT_EQ(parts["router"], (Sum{590'955'008, 1'182'074'880, 184}));
  EXPECT_EQ(parts["residual"], (Sum{2'680'832, 5'361'664, 374}));
  EXPECT_EQ(parts["norms"], (Sum{1'340'416, 2'680'832, 187}));
  EXPECT_EQ(total, (Sum{2'779'484'478'208, 1'559'965'606'912, 497'052}));

  EXPECT_EQ(layers.size(), 93U);
  EXPECT_EQ(layers[0], (Sum{1'170'446'592, 2'341'213'184, 23}));
  for (int64_t l = 1; l < 93; ++l) {
    const bool mla = l % 4 == 3 || l == 92;
    EXPECT_EQ(layers[l], mla ? (Sum{30'017'175'936, 16'566'684'160, 5398}) : (Sum{30'228'720'256, 16'990'092'800, 5404})) << l;
  }
}

TEST(ParamTable, NamesAreUniqueAndOwned) {
  for (const bool tied : {false, true}) {
    KimiConfig c = published();
    c.tie_word_embeddings = tied;
    std::map<std::string, int> seen;
    bool head = false;
    for (const ParamSpec& p : c.params()) {
      EXPECT_EQ(++seen[p.name], 1) << p.name;
      EXPECT_EQ(p.copies > 1, p.name.find("{}") != std::string::npos) << p.name;
      if (p.owner == Owner::layer) {
        EXPECT_TRUE(p.name.starts_with(fmt::format("model.layers.{}.", p.layer))) << p.name;
      }
      head = head || p.role == "lm_head";
    }
    EXPECT_EQ(head, !tied);
  }
}

// K3 spec 6. "heads" are rows too, whole heads of them.
TEST(ParamTable, Splits) {
  const std::map<std::string, Split> wanted = {
      {"kda.q_proj", Split::rows},          {"kda.g_proj", Split::rows},         {"kda.f_b_proj", Split::rows},
      {"kda.f_a_proj", Split::replicated},  {"kda.b_proj", Split::heads},        {"kda.v_conv", Split::rows},
      {"kda.a_log", Split::heads},          {"kda.dt_bias", Split::rows},        {"kda.o_norm", Split::replicated},
      {"kda.o_proj", Split::cols},          {"mla.q_a_proj", Split::replicated}, {"mla.q_a_norm", Split::replicated},
      {"mla.kv_a_proj", Split::replicated}, {"mla.q_b_proj", Split::heads},      {"mla.kv_b_proj", Split::heads},
      {"mla.g_proj", Split::heads},         {"mla.o_proj", Split::cols},         {"mlp.gate_proj", Split::rows},
      {"mlp.down_proj", Split::cols},       {"moe.shared.up_proj", Split::rows}, {"moe.shared.down_proj", Split::cols},
      {"moe.expert.w1", Split::rows},       {"moe.expert.w3", Split::rows},      {"moe.expert.w2", Split::cols},
      {"moe.gate", Split::replicated},      {"moe.bias", Split::replicated},     {"moe.latent_down", Split::replicated},
      {"moe.latent_up", Split::replicated}, {"input_norm", Split::replicated},   {"attn_res.proj", Split::replicated}};
  std::map<std::string, Split> found;
  for (const ParamSpec& p : published().params()) found[p.role] = p.split;
  for (const auto& [role, split] : wanted) EXPECT_EQ(found.at(role), split) << role;
}

TEST(ParamTable, ExpertName) {
  bool found = false;
  for (const ParamSpec& p : published().params())
    if (p.role == "moe.expert.w2" && p.layer == LayerIndex(92)) {
      found = true;
      EXPECT_EQ(expert_name(p, 895), "model.layers.92.block_sparse_moe.experts.895.w2.weight");
      EXPECT_EQ(p.shape, (Shape{3584, 3072}));
    }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace weft

// weft synth: a random checkpoint in the published layout.
#include "model/synth.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples = R"(Examples:
  The complete published K3 layout with holes instead of data: 96 shards that take little disk:
    weft synth --preset k3 --sparse -o /tmp/k3-sparse

  The same of Qwen3-Next 80B-A3B:
    weft synth --preset qwen3-next --sparse -o /tmp/qwen-sparse

  A model of 1 MB with random weights; weft check -m /tmp/tiny runs it:
    weft synth --layers 5 -o /tmp/tiny --set hidden_size=64 --set intermediate_size=96 \
      --set num_attention_heads=2 --set num_key_value_heads=2 --set q_lora_rank=32 --set kv_lora_rank=32 \
      --set qk_nope_head_dim=16 --set qk_rope_head_dim=8 --set v_head_dim=16 --set vocab_size=512 \
      --set num_experts=8 --set num_experts_per_token=2 --set moe_intermediate_size=32 \
      --set routed_expert_hidden_size=32 --set num_shared_experts=1 --set attn_res_block_size=2 \
      --set linear_attn_config.num_heads=2 --set linear_attn_config.head_dim=32 \
      --set max_position_embeddings=4096

Without --sparse the whole preset is 1.42 TiB. The free space is looked at first. Ctrl-C removes what was written.)";

struct Flags {
  SynthOptions options;
  bool json = false;
};

ExitCode synth(const Flags& flags) {
  const SynthReport report = with_byte_progress([&](const auto& progress) { return synthesize(flags.options, progress); });
  write_report(report, flags.json);
  return kExitSuccess;
}

}  // namespace

void add_synth(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  SynthOptions& options = flags->options;
  CLI::App* sub = app.add_subcommand("synth", "Write a random checkpoint in the published layout");
  sub->footer(kExamples);
  sub->add_option("--preset", options.preset, "The published model to follow: k3 or qwen3-next")->capture_default_str();
  sub->add_option("--layers", options.layers, "Number of layers; default: the preset's")->check(whole_number(1, 1U << 20U));
  sub->add_option("--set", options.set, "KEY=VALUE of the text configuration; may be repeated")->type_name("KEY=VALUE");
  sub->add_flag("--sparse", options.sparse, "Real headers, holes instead of data");
  sub->add_flag("!--no-vision", options.vision, "Leave out the vision tower and projector");
  sub->add_option("--seed", options.seed, "Of the weights")->check(whole_number(0, UINT64_MAX))->capture_default_str();
  sub->add_option("-o,--out", options.out, "Folder to write; absent or empty")->required()->type_name("DIR");
  sub->add_flag("--json", flags->json, "The report as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return synth(*flags); }; });
}

}  // namespace weft

#include "app/flags.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/plan_cluster.h"
#include "app/terminal.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

// A finite number that compares with 0 as it should.
template <class Compare>
CLI::Validator number_that(Compare compare, std::string_view wanted) {
  const auto look = [compare, wanted](const std::string& text) -> std::string {
    double value = 0.0;
    const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && compare(value, 0.0);
    return good ? "" : fmt::format("wanted {}, found '{}'", wanted, shortened(text));
  };
  return {look, ""};
}

}  // namespace

CLI::Validator whole_number(int64_t low, uint64_t high) {
  const auto look = [low, high](const std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    int64_t negative = 0;
    uint64_t positive = 0;
    const auto is_whole = [&](auto& number) {
      const auto [at, error] = std::from_chars(text.data(), end, number);
      return error == std::errc() && at == end && !text.empty();
    };
    const bool good = text.starts_with('-')
                          ? is_whole(negative) && negative >= low
                          : is_whole(positive) && positive <= high && (low <= 0 || positive >= static_cast<uint64_t>(low));
    return good ? "" : fmt::format("wanted an integer from {} to {}, found '{}'", low, high, shortened(text));
  };
  return {look, ""};
}

CLI::Validator above_zero() { return number_that(std::greater(), "a number above 0"); }
CLI::Validator seconds_above_zero() {
  constexpr double kMostSeconds = 1e6;
  return number_that([](double value, double zero) { return value > zero && value <= kMostSeconds; },
                     "seconds above 0 and up to 1000000");
}
CLI::Validator at_least_zero() { return number_that(std::greater_equal(), "a number of at least 0"); }

void ModelFlags::add(CLI::App& app, bool with_prefill_chunk) {
  app.add_option("-m,--model", dir, "Folder of the checkpoint")->required()->type_name("DIR");
  app.add_option("--profile", profile, "Numbers: exact (float32) or bf16; default: exact below 1 GiB of weights, else bf16")
      ->check(CLI::IsMember({"exact", "bf16"}));
  app.add_option("--threads", threads, "Worker threads of each stage; default: all cores")->check(CLI::Range(1, 1024));
  if (with_prefill_chunk) {
    app.add_option("--prefill-chunk,--pp-prefill-chunk", prefill_chunk, "Prompt tokens of one step; changes no result")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->capture_default_str();
  }
  app.add_option("--memory", memory,
                 "Memory of this process, as in 24GiB; default: what the system or its control group leaves. Routed experts "
                 "for which there is no room are read again when a token needs them");
  pp_layers_option = app.add_option("--pp-layers", pp_layers, "Layers of each stage, as in 0-3,4-7 or 4+4");
  app.add_option("--pp-size", pp_size, "Number of stages, split by the plan")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--device", device, "Where the model computes: cpu, or cuda (one GPU holds all weights)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--load", load_from, "Weights: files, or dummy, made on the GPU to measure a geometry (needs --device cuda)")
      ->check(CLI::IsMember({"files", "dummy"}))
      ->capture_default_str();
  app.add_flag("--allow-unknown-tensors", allow_unknown_tensors, "A note instead of an error for tensors of no known use");
  app.add_flag("--rebuild-index", rebuild_index, "Go by the headers where the checkpoint's index disagrees");
  app.add_flag("--reference", reference, "The plain scalar operators: slow, for comparison");
  app.add_option("--adapter", adapter, "Adapter (LoRA) of the model: refused, no family takes one yet")->type_name("DIR");
}

void ModelFlags::add_distributed(CLI::App& app) {
  CLI::Option_group* group = app.add_option_group("Pipeline", "Where stages run (docs/distributed.md); changes no result");
  group
      ->add_option("--distributed-config", distributed_config,
                   "Cluster file (TOML): stages on other hosts or in other processes, each a `weft stage`")
      ->type_name("FILE");
  group
      ->add_option("--pp-balance", balance,
                   "What the split by --pp-size makes small: memory, compute or latency (weft plan --help); default: as the "
                   "cluster file says, else memory")
      ->check(CLI::IsMember({"memory", "compute", "latency"}));
  group
      ->add_option("--pp-local", pp_local,
                   "Stages of --pp-size and --pp-layers on this host: processes, or threads of this one")
      ->check(CLI::IsMember({"processes", "threads"}))
      ->capture_default_str();
  group
      ->add_option("--stage-timeout", stage_timeout, "Seconds in which a stage must finish a step (default 30, and 0.02 a row)")
      ->check(seconds_above_zero());
  group->add_option("--connect-timeout", connect_timeout, "Seconds of one try to connect to a stage (default 5)")
      ->check(seconds_above_zero());
  group->add_option("--heartbeat-interval", heartbeat_interval, "Seconds between signs of life of a stage (default 1)")
      ->check(seconds_above_zero());
  group
      ->add_option("--heartbeat-misses", heartbeat_misses,
                   "A stage is lost after twice as many intervals without one (default 3)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  group
      ->add_option("--pp-micro-batch-size", micro_batch,
                   "Sequences that decode in one step; default: so that there are two steps for each stage")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  group->add_option("--pp-max-in-flight", max_in_flight, "Steps that are on their way at once; default: stages + 1")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  group->add_option("--pp-max-sequences", max_sequences, "Sequences that have state on the stages (default 64)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  group->add_option("--pp-schedule", schedule, "interleave: steps follow each other; gpipe: a round of them, then the next")
      ->check(CLI::IsMember({"interleave", "gpipe"}))
      ->capture_default_str();
  group
      ->add_option("--pp-sample-at", sample_at,
                   "Where tokens are drawn: last-stage, or coordinator, to which the logits of each token travel then")
      ->check(CLI::IsMember({"last-stage", "coordinator"}))
      ->capture_default_str();
  group
      ->add_option(
          "--activation-dtype", activation_dtype,
          "Boundaries on the wire: f32 with profile exact, bf16 with bf16; another would change results and is refused")
      ->check(CLI::IsMember({"f32", "bf16"}));
  wire.add(*group);
  group->add_option("--tls-cert", tls_cert, "Certificate (PEM) instead of the cluster file's")->type_name("FILE");
  group->add_option("--tls-key", tls_key, "Its key (PEM)")->type_name("FILE");
  group->add_option("--tls-ca", tls_ca, "The authority of the other ends' certificates (PEM)")->type_name("FILE");
  group->add_option("--cluster-token-file", token_file, "Shared secret of the cluster")->type_name("FILE");
  group->add_option("--load-timeout", load_timeout, "Seconds in which all stages must be there and loaded (default 1800)")
      ->check(seconds_above_zero());
  group->add_option("--debug-pp-trace", pp_trace, "Write what each stage did when, for chrome://tracing or Perfetto")
      ->type_name("FILE");
  group->add_flag("--insecure", insecure, "Allow plaintext to addresses that are not loopback");
  group->add_flag("--colocate-stage0", colocate_stage0,
                  "Stage 0 of the cluster file runs in this process: no `weft stage` is started for it");
  group->add_flag("--dry-run", dry_run, "Print the plan and end: exit code 0, or 3 when the model does not fit");
}

SplitChoice ModelFlags::split() const {
  SplitChoice made{.stages = pp_size, .balance = balance};
  if (pp_layers_option != nullptr && pp_layers_option->count() > 0) made.layers = pp_layers;
  return made;
}

bool ModelFlags::distributed() const {
  if (!distributed_config.empty()) return true;
  const bool several = pp_size.value_or(1) > 1 || (pp_layers_option != nullptr && pp_layers_option->count() > 0);
  return several && pp_local == "processes";
}

void refuse_adapter(const std::string& dir, const std::string& adapter) {
  const std::shared_ptr<const ModelConfig> config = while_loading([&] { return load_model_config(dir); });
  const Error refusal(
      ErrorKind::unsupported, "command line",
      fmt::format("--adapter: the family {} takes no adapters yet: wanted none, found '{}'", config->model_type, adapter));
  throw ExitError(kExitUsage, refusal.what());  // while loading too
}

ModelOptions ModelFlags::options() const {
  if (!adapter.empty()) refuse_adapter(dir, adapter);
  ModelOptions made;
  made.dir = dir;
  if (profile == "exact") made.profile = ops::Profile::exact;
  if (profile == "bf16") made.profile = ops::Profile::bf16;
  if (reference && device == "cuda") {
    fail(ErrorKind::bad_input, "command line", "--reference: wanted --device cpu, found --device cuda");
  }
  if (load_from == "dummy" && device != "cuda") {
    fail(ErrorKind::bad_input, "command line", "--load dummy: wanted --device cuda, found --device {}", device);
  }
  made.backend = device == "cuda" ? ops::Backend::cuda : reference ? ops::Backend::reference : ops::Backend::cpu;
  made.dummy_weights = load_from == "dummy";
  made.threads = threads;
  if (!memory.empty()) made.memory = parse_memory(memory, "--memory");
  made.prefill_chunk = prefill_chunk;
  if (pp_layers_option != nullptr && pp_layers_option->count() > 0) made.pp_layers = pp_layers;
  made.pp_size = pp_size;
  if (!balance.empty()) made.balance = parse_balance(balance);
  made.allow_unknown_tensors = allow_unknown_tensors;
  made.rebuild_index = rebuild_index;
  return made;
}

EngineOptions ModelFlags::engine_options(const Model& model) const {
  EngineOptions made;
  made.max_context = model.max_context();
  made.prefill_chunk = prefill_chunk;
  made.micro_batch = micro_batch;
  made.max_in_flight = max_in_flight;
  made.by_round = schedule == "gpipe";
  if (max_sequences) made.max_running = *max_sequences;
  return made;
}

std::unique_ptr<Model> ModelFlags::load() const {
  if (!pp_trace.empty() && !distributed()) {
    fail(ErrorKind::bad_input, "command line", "--debug-pp-trace: wanted stages in other processes, found all in this one");
  }
  if (colocate_stage0 && distributed_config.empty()) {
    fail(ErrorKind::bad_input, "command line", "--colocate-stage0: wanted --distributed-config beside it, found none");
  }
  std::unique_ptr<Model> model =
      while_loading([&] { return distributed() ? Model::of(load_distributed(), dir) : Model::load(options()); });
  for (const std::string& note : model->notes()) write_note("note: " + note);
  return model;
}

LoadedExecutor ModelFlags::load_executor() const {
  LoadedExecutor loaded = while_loading([&] { return weft::load_executor(options()); });
  for (const std::string& note : loaded.notes) write_note("note: " + note);
  return loaded;
}

void EngineFlags::add(CLI::App& app) {
  CLI::Option_group* group = app.add_option_group("State", "What is kept of prompts and answers; changes no result");
  group
      ->add_option("--state-memory", state_memory,
                   "Most memory of all states, as in 2GiB; the context is no longer than what it holds. Default: a quarter of "
                   "what is available")
      ->type_name("SIZE");
  group
      ->add_option("--session", session,
                   "Folder for states that leave the memory, made if need be; a later run goes on from what is in it")
      ->type_name("DIR");
  group->add_option("--session-disk", session_disk, "Most bytes of files in that folder (default 16GiB)")->type_name("SIZE");
  app.add_option("--time-limit", time_limit, "Seconds after which an answer ends as it is (exit code 7 of generate)")
      ->check(seconds_above_zero());
}

void EngineFlags::apply(EngineOptions& options) const {
  if (!state_memory.empty()) options.state_memory = ByteCount(parse_memory(state_memory, "--state-memory"));
  if (!session_disk.empty() && session.empty()) {
    fail(ErrorKind::bad_input, "command line", "--session-disk: wanted --session DIR beside it, found none");
  }
  if (!session_disk.empty()) options.disk = ByteCount(parse_memory(session_disk, "--session-disk"));
  options.folder = session;
  options.request_seconds = time_limit;
}

void SamplingFlags::add(CLI::App& app) {
  CLI::Option_group* group = app.add_option_group("Sampling", "Default: generation_config.json of the model, then those named");
  group->add_option("--temperature", choice.temperature, "0: greedy, the most likely token; up to 2 (default 1)");
  group->add_option("--top-p", choice.top_p, "Smallest set of tokens with this probability (default 1: off)");
  group->add_option("--top-k", choice.top_k, "The k most likely tokens (default 0: off)")->check(whole_number(-1, INT32_MAX));
  group->add_option("--min-p", choice.min_p, "Tokens of at least this share of the best one's probability (default 0: off)");
  group->add_option("--repetition-penalty", choice.repetition_penalty, "Divides logits of tokens seen (default 1: off)");
  group->add_option("--frequency-penalty", choice.frequency_penalty, "Per generated occurrence, -2 to 2 (default 0)");
  group->add_option("--presence-penalty", choice.presence_penalty, "Once for generated tokens, -2 to 2 (default 0)");
  group->add_option("--seed", choice.seed, "Of the draws; default: random, shown by --json")
      ->check(whole_number(0, UINT64_MAX));
  app.add_option("-n,--max-tokens", max_tokens, "Most tokens to generate; default: what the context leaves")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void PromptFlags::add(CLI::App& app) {
  app.add_option("--system", system, "System message")->type_name("TEXT");
  app.add_option("--tools", tools_file, "JSON array of tools as in the OpenAI API ('-': standard input)")->type_name("FILE");
  app.add_option("--thinking", thinking, "Whether the model thinks before it answers (default on)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--thinking-effort", thinking_effort, "low, high or max (default max)")
      ->check(CLI::IsMember({"low", "high", "max"}));
}

PromptChoice PromptFlags::choice() const {
  PromptChoice made;
  made.system = system;
  if (!tools_file.empty()) made.tools = read_input(tools_file);
  made.tools_place = input_name(tools_file);
  if (thinking) made.thinking = *thinking == "on";
  made.thinking_effort = thinking_effort;
  return made;
}

std::string input_name(const std::string& file) { return file == "-" ? "standard input" : file; }

void check_output_file(const std::string& file) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (std::filesystem::is_directory(path)) fail(ErrorKind::bad_input, file, "wanted a file to write, found a folder");
  if (!std::filesystem::is_directory(folder))
    fail(ErrorKind::bad_input, file, "wanted a folder to write it into, found {} at '{}'",
         std::filesystem::exists(folder) ? "a file" : "nothing", folder.string());
}

}  // namespace weft

// Groups of flags that several subcommands have.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/command.h"
#include "app/wire_flags.h"
#include "engine/model.h"
#include "engine/prompt_choice.h"

namespace CLI {
class Option;
class Validator;
}  // namespace CLI

namespace weft {

struct EngineOptions;
struct SplitChoice;

// For options of any integer type: a decimal integer from `low` to `high`. (Reading alone would clamp.)
[[nodiscard]] CLI::Validator whole_number(int64_t low, uint64_t high);
[[nodiscard]] CLI::Validator seconds_above_zero();  // up to 1,000,000, as in cluster files
// For options of a floating type: a finite number.
[[nodiscard]] CLI::Validator above_zero();
[[nodiscard]] CLI::Validator at_least_zero();

struct ModelFlags {
  std::string dir;
  std::string profile;
  std::string pp_layers;
  std::string memory;
  const CLI::Option* pp_layers_option = nullptr;
  std::optional<int64_t> pp_size;
  int threads = 0;
  int64_t prefill_chunk = 512;
  std::string device = "cpu";
  std::string load_from = "files";
  std::string distributed_config;
  std::string pp_local = "processes";
  std::string pp_trace;
  std::string balance;  // empty: by memory, or as the cluster file says
  std::string adapter;
  std::optional<double> stage_timeout;  // seconds
  std::optional<double> connect_timeout;
  std::optional<double> load_timeout;
  std::optional<double> heartbeat_interval;
  std::optional<int64_t> heartbeat_misses;
  int64_t micro_batch = 0;
  int64_t max_in_flight = 0;
  std::optional<int64_t> max_sequences;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::string token_file;
  std::string schedule = "interleave";
  std::string sample_at = "last-stage";
  std::string activation_dtype;  // empty: the profile's
  WireFlags wire;
  bool insecure = false;
  bool reference = false;
  bool allow_unknown_tensors = false;
  bool rebuild_index = false;
  bool colocate_stage0 = false;
  bool dry_run = false;  // of commands that ask print_plan() then

  void add(CLI::App& app, bool with_prefill_chunk = true);
  [[nodiscard]] ModelOptions options() const;
  [[nodiscard]] EngineOptions engine_options(const Model& model) const;
  // What places stages outside of this process.
  void add_distributed(CLI::App& app);
  // Loads with the exit codes of loading; notes go to standard error.
  [[nodiscard]] std::unique_ptr<Model> load() const;
  [[nodiscard]] LoadedExecutor load_executor() const;  // without the text side, in this process
  // Stages as processes of this host or on other hosts (app/remote/distributed.cc).
  [[nodiscard]] LoadedExecutor load_distributed() const;
  [[nodiscard]] bool distributed() const;
  [[nodiscard]] SplitChoice split() const;
  // --dry-run: what would be loaded where, to standard output. Nothing is started and no node contacted (app/plan.cc).
  [[nodiscard]] ExitCode print_plan() const;
};

// `weft serve --node-id`: runs as the stage `node` of the cluster file; nothing: it is the coordinator. Throws bad_input for a
// node that the file does not have.
[[nodiscard]] std::optional<ExitCode> run_as_stage(const ModelFlags& model, const std::string& node);

// What each stage outside of this process says of itself (RemoteExecutor::stage_report()); an empty array when all are in it.
[[nodiscard]] Json stage_report(Executor& executor);

// Ends what such stages have under way, without waiting for one that hangs; nothing where all are in this process.
void abandon_stages(Executor& executor, const std::string& reason);

// What an engine may hold and how long an answer may take.
struct EngineFlags {
  std::string state_memory;
  std::string session;
  std::string session_disk;
  std::optional<double> time_limit;  // seconds

  void add(CLI::App& app);
  // Throws bad_input for a size that is none.
  void apply(EngineOptions& options) const;
};

struct SamplingFlags {
  SamplingChoice choice;
  std::optional<int64_t> max_tokens;

  void add(CLI::App& app);
};

struct PromptFlags {
  std::optional<std::string> system;
  std::string tools_file;
  std::optional<std::string> thinking;  // on, off
  std::optional<std::string> thinking_effort;

  void add(CLI::App& app);
  [[nodiscard]] PromptChoice choice() const;
};

// For --adapter: ends with the exit code of a usage error, naming the family of the model in `dir`, of which nothing but
// config.json is read.
[[noreturn]] void refuse_adapter(const std::string& dir, const std::string& adapter);

// What errors call an input: the file, or standard input for "-".
[[nodiscard]] std::string input_name(const std::string& file);

// Throws bad_input when a file of this name cannot be: it is a folder, or its folder is missing. For use before the work.
void check_output_file(const std::string& file);

}  // namespace weft

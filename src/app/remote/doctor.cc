// weft doctor: whether a cluster can work.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/remote/observer_flags.h"
#include "app/terminal.h"
#include "base/file.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/remote/cluster_plan.h"
#include "pipeline/remote/diagnosis.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(For each node of the cluster file, whose `weft stage` must run: the address, the connection with its certificates, the handshake,
the model's config.json, the clock, and with -m whether the shards that its stage would load are there, whole by their headers, and
the same on all nodes; then latency and bandwidth from here to each node and from each stage to the next. Exit code 0 when all is
well (warnings are), 3 when the model does not fit, 4 when shards are missing, 5 when a node or a link cannot be reached, 8 when a
handshake or the model differs, 9 when a certificate or a token is refused; the highest of them.

Examples:
  weft doctor --distributed-config cluster.toml
  weft doctor --distributed-config cluster.toml -m /data/Kimi-K3 --json)";

struct Flags {
  ObserverFlags observer;
  std::string dir;
};

ExitCode doctor(const Flags& flags) {
  DiagnosisOptions options;
  options.observer = flags.observer.options();
  if (!flags.dir.empty()) {
    options.config_sha256 = while_loading([&] {
      return sha256_text(read_text_file(std::filesystem::path(flags.dir) / "config.json", ErrorKind::bad_checkpoint));
    });
    const std::shared_ptr<const ModelConfig> config = while_loading([&] { return load_model_config(flags.dir); });
    const auto sized = std::make_shared<const SizedModel>(while_loading([&] { return size_model(flags.dir, config); }));
    options.plan = [sized, cluster = options.observer.cluster, context = config->max_context](const auto& memory) {
      return make_plan(sized->model, cluster_plan_options(cluster, context, memory));
    };
  }
  const Diagnosis diagnosis = diagnose(options);
  write_report(diagnosis, flags.observer.json);
  const std::optional<ErrorKind> worst = diagnosis.worst();
  return worst ? exit_code_of(*worst, false) : kExitSuccess;
}

}  // namespace

void add_doctor(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("doctor", "Whether a cluster can work: addresses, certificates, models, links");
  sub->footer(kExamples);
  flags->observer.add(*sub);
  sub->add_option("-m,--model", flags->dir, "Folder of the checkpoint (config.json is enough), to compare the nodes' with")
      ->type_name("DIR");
  sub->callback([flags, &command] { command.run = [flags] { return doctor(*flags); }; });
}

}  // namespace weft

// weft serve: the OpenAI-compatible API over HTTP.
#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commit.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/file.h"
#include "base/loopback.h"
#include "base/open_files.h"
#include "base/plural.h"
#include "base/worker_pool.h"
#include "engine/bench/mem.h"
#include "pipeline/plan.h"
#include "server/serving.h"

namespace weft {
namespace {

constexpr const char* kExamples = R"(Examples:
  Serve the bundled model on this machine, then ask it:
    weft serve -m models/k3-mini
    curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "k3-mini",
      "messages": [{"role": "user", "content": "What is 17 * 23? Answer with the number only."}], "temperature": 0}'

  The page for people: open http://127.0.0.1:8080/ in a browser.

  For other machines: a key, and TLS (or a proxy in front that has it):
    weft serve -m DIR --host 0.0.0.0 --api-key-file keys.txt --ssl-cert-file server.pem --ssl-key-file server.key

  A model on three hosts, each of which runs `weft stage`:
    weft serve -m DIR --distributed-config cluster.toml

SIGTERM, SIGHUP or Ctrl-C: new requests get 503, answers under way have --grace seconds to end. A second SIGTERM or Ctrl-C
ends at once.
docs/serving.md describes the API.)";

constexpr double kGiga = 1e9;
constexpr int64_t kSweepBytes = 128 << 20;  // read to see how fast memory is

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  EngineFlags engine;
  http::ServerOptions http;
  std::vector<std::string> names;
  std::vector<std::string> keys;
  std::string key_file;
  std::vector<std::string> cors_origins;
  int64_t parallel = 32;
  int64_t max_queue = 256;
  std::optional<double> queue_seconds;
  std::string body_limit = "8MiB";
  api::ResponsesStoreOptions responses;
  std::string responses_memory = "64MiB";
  std::string node;
  double grace = 30.0;
  bool raw_prompts = false;
  bool quiet = false;
};

// Connections are open files.
void raise_file_limit(int64_t connections) {
  constexpr int64_t kBeside = 1024;  // files of the model, sockets to stages
  const int64_t wanted = connections + kBeside;
  const int64_t found = raise_open_file_limit(wanted);
  if (found < wanted)
    write_note(fmt::format("note: wanted {} open files for {} connections, found a limit of {}", wanted, connections, found));
}

std::vector<std::string> read_keys(const Flags& flags) {
  std::vector<std::string> keys = flags.keys;
  if (!flags.key_file.empty()) {
    std::istringstream lines(read_text_file(flags.key_file, ErrorKind::bad_input));
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty() && line.front() != '#') keys.push_back(line);
    }
    if (keys.size() == flags.keys.size()) fail(ErrorKind::bad_input, flags.key_file, "wanted a key on each line, found none");
  }
  for (const std::string& key : keys) {
    if (key.empty()) fail(ErrorKind::bad_input, "command line", "--api-key: wanted a key, found an empty one");
  }
  return keys;
}

std::string default_name(const std::string& dir) {
  const std::filesystem::path path = std::filesystem::weakly_canonical(dir);
  return path.filename().empty() ? "model" : path.filename().string();
}

// What a client wrote is on one line, and no longer than a line should be.
std::string on_one_line(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string made;
  for (const char c : text.substr(0, kLongest)) {
    if (c == '\n') {
      made += "\\x0a";
    } else {
      made += c;
    }
  }
  return text.size() > kLongest ? made + "..." : made;
}

void log_request(const http::Finished& request) {
  const auto shown = [](const std::string& text) { return text.empty() ? "-" : on_one_line(text); };
  write_note(fmt::format("{} {} {} {} in {:.3f} s{}{}", request.peer, shown(request.method), shown(request.path),
                         request.status, request.seconds, request.note.empty() ? "" : ", ", on_one_line(request.note)));
}

// What this host can read from memory: the limit of decoding, for stages in processes of it too, which share it.
std::optional<double> measured_bandwidth(const ModelFlags& flags) {
  if (!flags.distributed_config.empty() || flags.device != "cpu") return std::nullopt;
  WorkerPool pool(flags.threads > 0 ? flags.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return bench::read_bandwidth(pool, kSweepBytes, 3).value() * kGiga;
}

EngineOptions engine_options(const Flags& flags, const Model& model) {
  EngineOptions options = flags.model.engine_options(model);
  flags.engine.apply(options);
  options.max_running = flags.model.max_sequences ? std::min(flags.parallel, *flags.model.max_sequences) : flags.parallel;
  options.max_queue = flags.max_queue;
  options.queue_seconds = flags.queue_seconds;
  return options;
}

ExitCode serve(const Flags& flags) {
  if (flags.model.dry_run) return flags.model.print_plan();
  if (!flags.node.empty()) {
    if (const std::optional<ExitCode> ended = run_as_stage(flags.model, flags.node)) return *ended;
  }
  static_cast<void>(flags.sampling.choice.resolve());  // a value out of range is said now, not with each request
  ServerMetrics metrics;
  api::RouterOptions router_options;
  router_options.keys = read_keys(flags);
  router_options.cors_origins = flags.cors_origins;
  router_options.build = fmt::format("{} {}", kVersion, kBuildCommit);
  router_options.most_body = parse_memory(flags.body_limit, "--body-limit");
  router_options.responses = flags.responses;
  router_options.responses.most_bytes = parse_memory(flags.responses_memory, "--keep-responses-memory");
  if (!flags.quiet) router_options.log = log_request;
  raise_file_limit(flags.http.max_connections);
  watch_interrupts();
  api::Router router(router_options, metrics);
  http::Server server(flags.http, router);
  write_note(fmt::format("listens on {}", server.url()));
  if (router_options.keys.empty() && !is_loopback_host(flags.http.host))
    write_note("warning: whoever reaches that address may use the model (--api-key)");

  const std::unique_ptr<Model> model = flags.model.load();
  if (interrupt_flag().load()) return kExitSuccess;
  api::ServiceOptions service_options;
  service_options.names = flags.names.empty() ? std::vector<std::string>{default_name(flags.model.dir)} : flags.names;
  service_options.build = router_options.build;
  service_options.default_max_tokens = flags.sampling.max_tokens;
  service_options.defaults = flags.sampling.choice;
  service_options.raw_prompts = flags.raw_prompts;
  StatusOptions status_options;
  status_options.build = router_options.build;
  status_options.name = service_options.names.front();
  if (flags.model.distributed()) status_options.stages = [&] { return stage_report(model->executor()); };
  status_options.connections = [&] { return server.connections(); };
  status_options.bandwidth = measured_bandwidth(flags.model);
  Serving serving(*model, router, server, metrics, engine_options(flags, *model), service_options, status_options);
  write_note(fmt::format("ready: {} as {}, a context of {}, {} at once",
                         model->format().style() == ChatStyle::xtml ? "K3" : "Qwen", fmt::join(service_options.names, ", "),
                         counted(serving.context(), "token"), counted(flags.parallel, "request")));
  while (!interrupt_flag().load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));

  serving.drain();
  const std::chrono::duration<double> grace(flags.grace);
  write_note(fmt::format("shutting down: {} under way have {} s", counted(server.open_exchanges(), "request"), flags.grace));
  if (!server.wait_until_idle(grace)) {
    write_note(fmt::format("{} cut off", counted(server.open_exchanges(), "request")));
    abandon_stages(model->executor(), "the server ends");  // one that hangs is not waited for
  }
  return kExitSuccess;
}

}  // namespace

void add_serve(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("serve", "Serve a model over HTTP as the OpenAI API does");
  sub->footer(kExamples);
  flags->model.add(*sub);
  flags->model.add_distributed(*sub);
  sub->add_option("--node-id", flags->node, "Which node of the cluster file this is; a stage runs as `weft stage` does")
      ->type_name("ID");
  CLI::Option_group* group = sub->add_option_group("Server");
  group->add_option("--host", flags->http.host, "Address or name to listen on")->capture_default_str();
  group->add_option("--port", flags->http.port, "Port to listen on; 0: any, which is printed")->capture_default_str();
  group
      ->add_option("--alias,--served-model-name", flags->names,
                   "Name of the model in requests; several may be given. Default: the folder's")
      ->type_name("NAME");
  group->add_option("--api-key", flags->keys, "Key that requests must show; several may be given. Default: none is needed")
      ->type_name("KEY");
  group->add_option("--api-key-file", flags->key_file, "Keys, one on each line; '#' begins a comment")->type_name("FILE");
  group->add_option("--cors-origin", flags->cors_origins, "Origin of pages that may ask ('*': all); several may be given")
      ->type_name("URL");
  group->add_option("--ssl-cert-file", flags->http.tls_certificate, "Certificate chain (PEM): TLS, with the key below")
      ->type_name("FILE");
  group->add_option("--ssl-key-file", flags->http.tls_key, "Its key (PEM)")->type_name("FILE");
  group->add_option("--parallel", flags->parallel, "Requests that are computed side by side")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->capture_default_str();
  group->add_option("--max-queue", flags->max_queue, "Requests that wait; further ones get 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  group->add_option("--queue-limit", flags->queue_seconds, "Seconds after which a request that waits ends (default: none)")
      ->check(above_zero());
  group->add_option("--max-connections", flags->http.max_connections, "Open connections")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  group->add_option("--body-limit", flags->body_limit, "Largest body of a request")->type_name("SIZE")->capture_default_str();
  group->add_option("--keep-responses", flags->responses.most_responses, "Answers of /v1/responses that are kept; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  group->add_option("--keep-responses-memory", flags->responses_memory, "Most memory for them")
      ->type_name("SIZE")
      ->capture_default_str();
  group->add_option("--io-threads", flags->http.io_threads, "Threads that move bytes")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  group->add_option("--work-threads", flags->http.work_threads, "Threads that read requests")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  group->add_option("--grace", flags->grace, "Seconds that answers under way have at the end")
      ->check(at_least_zero())
      ->capture_default_str();
  group->add_flag("--raw-prompts", flags->raw_prompts, "Text prompts of /v1/completions may spell control tokens");
  group->add_flag("--quiet", flags->quiet, "No line for each request");
  flags->sampling.add(*sub);
  flags->engine.add(*sub);
  sub->callback([flags, &command] { command.run = [flags] { return serve(*flags); }; });
}

}  // namespace weft

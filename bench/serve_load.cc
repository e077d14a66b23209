// Many clients of `weft serve`, some of which leave, read slowly or send what is no request, for minutes: whether every answer
// stays what it is alone, whether memory stays flat, and how long tokens take meanwhile.
//
//     weft_serve_load --clients 200 --seconds 300 --out bench/results/serve_load_200.json
//     weft_serve_load --clients 20 --seconds 1800 --stages 3 --out bench/results/serve_load_3_stages.json
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/bench/record.h"
#include "server/load_clients.h"
#include "server/load_server.h"

namespace weft::load_test {
namespace {

struct Flags {
  std::string program = WEFT_BENCH_PROGRAM;
  std::string model = WEFT_BENCH_SOURCE "/models/k3-mini";
  std::string out;
  std::string state_memory = "128MiB";
  std::vector<std::string> more;  // for the server
  int clients = 200;
  int stages = 1;
  int many = 8;
  double seconds = 300;
  uint64_t seed = 1;
};

constexpr double kMostGrowth = 0.05;
volatile std::sig_atomic_t interrupted = 0;  // Ctrl-C: no further requests, then the record of what there was

double at_share(std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

bench::Figure times(const std::string& name, std::vector<double> ms) {
  std::ranges::sort(ms);
  const std::vector<std::pair<std::string, double>> more = {
      {"p50", at_share(ms, 0.5)}, {"p90", at_share(ms, 0.9)}, {"p99", at_share(ms, 0.99)}};
  return {.name = name, .unit = "ms", .samples = std::move(ms), .limit = std::nullopt, .more = more};
}

bench::Figure one(const std::string& name, const std::string& unit, double value) {
  return {.name = name, .unit = unit, .samples = {value}, .limit = std::nullopt};
}

std::vector<std::string> server_arguments(const Flags& flags) {
  // What the server keeps between requests is small enough to be full before memory is measured.
  std::vector<std::string> arguments = {
      "-m",           flags.model, "--alias",          "k3-mini", "--state-memory", flags.state_memory,
      "--body-limit", "1MiB",      "--keep-responses", "64"};
  if (flags.stages > 1) arguments.insert(arguments.end(), {"--pp-size", std::to_string(flags.stages)});
  arguments.insert(arguments.end(), flags.more.begin(), flags.more.end());
  return arguments;
}

void print_progress(const LoadResult& so_far, const MemoryWatch& memory) {
  int64_t requests = 0;
  for (const auto& [name, count] : so_far.outcomes) requests += count;
  fmt::print("{:.0f} s: {} requests, {} faults, MB", so_far.seconds, requests, so_far.faults.count());
  for (size_t i = 0; i < memory.processes(); ++i) fmt::print(" {:.1f}", memory.trend(i, memory.looks() - 16).last / 1e6);
  fmt::print("\n");
  std::fflush(stdout);
}

// The number of faults.
int64_t run(const Flags& flags, const std::string& command) {
  LoadServer server(flags.program, server_arguments(flags));
  const Json version = Json::parse(get_page(server.port(), "/version"));
  MemoryWatch memory(server.processes());
  std::vector<Ask> asks = make_asks("k3-mini", flags.many);
  Faults before;
  ask_references(server.port(), asks, before);
  fmt::print("{} requests asked alone, {} faults\n", asks.size(), before.count());
  std::fflush(stdout);

  const Metrics start = read_metrics(server.port());
  LoadOptions options;
  options.clients = flags.clients;
  options.seconds = flags.seconds;
  options.seed = flags.seed;
  options.patience_seconds = 300;
  options.long_stall_seconds = 75;
  options.each_second = [&](const LoadResult& so_far) {
    memory.look();
    if (memory.looks() % 30 == 0) print_progress(so_far, memory);
    return interrupted == 0;
  };
  const std::vector<int> processes = server.processes();
  const std::vector<int> self = {static_cast<int>(::getpid())};
  const double server_before = processor_seconds(processes);
  const double clients_before = processor_seconds(self);
  LoadResult result = run_load(server.port(), asks, options);
  const double server_used = processor_seconds(processes) - server_before;
  const double clients_used = processor_seconds(self) - clients_before;
  for (const std::string& fault : before.texts()) result.faults.add(fault);
  const bool idle = wait_until_idle(server.port(), 90);
  if (!idle) result.faults.add("requests or connections are left:\n" + get_page(server.port(), "/metrics"));
  const Metrics end = read_metrics(server.port());
  for (const std::string& failure : failures_in(end)) result.faults.add(failure);
  if (Json::parse(get_page(server.port(), "/health")).at("status") != "ok") result.faults.add("the server is not healthy");
  const auto counted = [&](const std::string& name) {
    const auto then = start.find(name);
    return end.at(name) - (then == start.end() ? 0 : then->second);
  };

  bench::Record record;
  record.bench = "serve_load";
  record.facts = {{"model", "k3-mini"}, {"clients", flags.clients}, {"stages", flags.stages}, {"seconds", result.seconds}};
  record.facts["outcomes"] = result.outcomes;
  record.facts["faults"] = result.faults.count();
  record.figures.push_back(times("first token", result.first_text_ms));
  record.figures.push_back(times("between tokens", result.between_texts_ms));
  record.figures.push_back(one("generated", "tokens/s", counted("weft_generation_tokens_total") / result.seconds));
  record.figures.push_back(one("prompts", "tokens/s", counted("weft_prompt_tokens_total") / result.seconds));
  record.figures.push_back(one("processor time of the server", "cores", server_used / result.seconds));
  record.figures.push_back(one("processor time of the clients", "cores", clients_used / result.seconds));
  record.figures.push_back(one("gave their memory to others", "requests", counted("weft_preemptions_total")));
  const size_t warm_up = memory.looks() / 5;
  for (size_t i = 0; i < memory.processes(); ++i) {
    const std::string name = i == 0 ? "memory of the server" : fmt::format("memory of stage process {}", i);
    const MemoryWatch::Trend trend = memory.trend(i, warm_up);
    bench::Figure figure = one(name, "MB", trend.last / 1e6);
    figure.more = {{"first_quarter_MB", trend.first / 1e6}, {"most_MB", trend.most / 1e6}, {"growth", trend.growth()}};
    record.figures.push_back(std::move(figure));
    if (trend.growth() > kMostGrowth) result.faults.add(fmt::format("{} grew by {:.1f} %", name, 100 * trend.growth()));
  }
  record.facts["faults"] = result.faults.count();
  record.notes = {
      "times as clients saw them, who share the cores with the server: from a request's first byte to the first text of "
      "its stream (waiting for one of the places that are computed side by side included), and from one text of "
      "a choice to the next; of clients that read at full speed",
      "memory: resident bytes, medians of the first and the last quarter behind a warm-up of a fifth of the time",
      fmt::format("the server: weft serve {}", fmt::join(server_arguments(flags), " "))};
  if (interrupted != 0) record.notes.push_back(fmt::format("ended before the {} seconds were over", flags.seconds));
  for (std::string& note : record.notes) {
    for (size_t at = note.find(WEFT_BENCH_SOURCE "/"); at != std::string::npos; at = note.find(WEFT_BENCH_SOURCE "/"))
      note.erase(at, std::string_view(WEFT_BENCH_SOURCE "/").size());
  }

  const auto& build = version.at("version").get_ref<const std::string&>();
  const std::string commit = build.substr(build.find(' ') + 1);
  fmt::print("{}", record.to_text());
  for (const auto& [name, count] : result.outcomes) fmt::print("{:>8} {}\n", count, name);
  if (!flags.out.empty()) std::ofstream(flags.out) << record.to_json(commit, command).dump(1) << '\n';
  if (server.end() != 0) result.faults.add("the server ended with an error");
  if (result.faults.count() > 0)
    fmt::print("{} faults:\n{}the server said:\n{}", result.faults.count(), result.faults.text(), server.said());
  return result.faults.count();
}

int main_of(int argc, char** argv) {
  Flags flags;
  CLI::App app("Load test of weft serve");
  app.add_option("--program", flags.program, "weft");
  app.add_option("-m,--model", flags.model, "k3-mini")->capture_default_str();
  app.add_option("--clients", flags.clients, "Clients at once")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Time in which requests begin")->capture_default_str();
  app.add_option("--stages", flags.stages, "Stages of the server, each a process")->capture_default_str();
  app.add_option("--many", flags.many, "Different requests of each kind")->capture_default_str();
  app.add_option("--seed", flags.seed, "Of what the clients do")->capture_default_str();
  app.add_option("--state-memory", flags.state_memory, "Of the server")->capture_default_str();
  app.add_option("--out", flags.out, "Record (JSON)");
  app.add_option("--server", flags.more, "Further arguments of the server");
  CLI11_PARSE(app, argc, argv);
  std::string command = "weft_serve_load";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  (void)std::signal(SIGINT, [](int) { interrupted = 1; });
  return run(flags, command) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weft::load_test

int main(int argc, char** argv) {
  try {
    return weft::load_test::main_of(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "weft_serve_load: {}\n", error.what());
    return 1;
  }
}

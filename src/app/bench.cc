// weft bench: what the machine can do, and how much of it the program reaches.
#include <algorithm>
#include <filesystem>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/bench_pipeline.h"
#include "app/command.h"
#include "app/commit.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/file.h"
#include "base/guard.h"
#include "engine/bench/batch_speed.h"
#include "engine/bench/disk.h"
#include "engine/bench/mem.h"
#include "engine/bench/model_speed.h"
#include "engine/bench/ops.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Every figure is a median over repeats with its least and most, and stands beside the limit that the same run measured.

Examples:
  weft bench mem
  weft bench disk models/k3-mini/model-00001-of-000002.safetensors
  weft bench load -m models/k3-mini --json
  weft bench decode -m models/k3-mini --out decode.json
  weft bench ops --device cuda
  weft synth --preset k3 --layers 8 --sparse -o k3-8
  weft bench decode -m k3-8 --device cuda --load dummy
  weft bench batch -m models/k3-mini --batch 1,8,32

docs/benchmarks.md describes them. Nothing else should run on the machine meanwhile.)";

struct Flags {
  int64_t stages = 4;
  int repeats = 5;
  int threads = 0;
  bool json = false;
  std::string out;
  ModelFlags model;
  std::string dir;
  std::vector<std::string> files;
  int64_t tokens = 0;
  std::vector<int64_t> batches = {1, 8, 32};
  std::string op;
  std::string device = "cpu";
  std::string profile = "bf16";
};

int thread_count(const Flags& flags) {
  return flags.threads > 0 ? flags.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

bench::Record measure_mem(const Flags& flags) { return bench::bench_mem(thread_count(flags), flags.repeats); }

bench::Record measure_ops(const Flags& flags) {
  const ops::Profile profile = flags.profile == "exact" ? ops::Profile::exact : ops::Profile::bf16;
  return bench::bench_ops({thread_count(flags), flags.repeats, profile, flags.op, flags.device == "cuda"});
}

bench::Record measure_disk(const Flags& flags) {
  return bench::bench_disk({flags.files.begin(), flags.files.end()}, flags.repeats);
}

bench::Record measure_load(const Flags& flags) {
  return while_loading([&] { return bench::bench_load(flags.dir, flags.repeats); });
}

bench::Record measure_decode(const Flags& flags) {
  bench::Record record = while_loading([&] { return bench::bench_decode(flags.model.options(), flags.tokens, flags.repeats); });
  if (flags.model.options().dummy_weights) return record;
  if (!std::filesystem::exists(std::filesystem::path(flags.model.dir) / "tiktoken.model")) {
    record.notes.emplace_back("first token: not measured, the model has no tokenizer");
    return record;
  }
  const std::vector<std::string> command = {
      "/proc/self/exe", "generate", "-m", flags.model.dir, "--device", flags.model.device, "-p",
      "Hello",          "-n",       "1",  "--temperature", "0"};
  record.figures.push_back(bench::first_token(command, flags.repeats));
  return record;
}

bench::Record measure_prefill(const Flags& flags) {
  return while_loading([&] { return bench::bench_prefill(flags.model.options(), flags.tokens, flags.repeats); });
}

bench::Record measure_batch(const Flags& flags) {
  return while_loading([&] { return bench::bench_batch({flags.model.options(), flags.batches, flags.tokens, flags.repeats}); });
}

bench::Record measure_pipeline_of(const Flags& flags) {
  return while_loading([&] {
    return measure_pipeline(flags.model.options(), flags.stages, flags.batches.front(), flags.tokens, flags.repeats);
  });
}

// What `--out` may replace is a record: a slip of the hand must not cost a file that is measured.
void check_replaceable(const std::string& file) {
  constexpr uintmax_t kLargest = 64U << 20;
  if (!std::filesystem::is_regular_file(file) || std::filesystem::file_size(file) == 0) return;
  Json found;
  if (std::filesystem::file_size(file) <= kLargest) (void)guard([&] { found = read_json_file(file); });
  if (!found.is_object() || !found.contains("bench"))
    fail(ErrorKind::bad_input, file, "wanted a new file or the record of an earlier `weft bench`, found another file");
}

ExitCode run(const Flags& flags, bench::Record (*measure)(const Flags&)) {
  if (!flags.out.empty()) {
    check_output_file(flags.out);
    check_replaceable(flags.out);
  }
  const bench::Record record = measure(flags);
  const Json json = record.to_json(kBuildCommit, command_line());
  if (!flags.out.empty()) write_file_atomic(flags.out, json.dump(1) + "\n");
  if (flags.json) {
    write_json_output(json);
  } else {
    write_output(record.to_text());
  }
  return kExitSuccess;
}

CLI::App* add(CLI::App& parent, Command& command, const std::shared_ptr<Flags>& flags, const char* name, const char* what,
              bench::Record (*measure)(const Flags&)) {
  CLI::App* sub = parent.add_subcommand(name, what);
  sub->add_option("--repeats", flags->repeats, "Times that each figure is measured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_flag("--json", flags->json, "The record as JSON");
  sub->add_option("--out", flags->out, "The record as JSON into a file; replaces nothing but an earlier record")
      ->type_name("FILE");
  sub->callback([flags, measure, &command] { command.run = [flags, measure] { return run(*flags, measure); }; });
  return sub;
}

void add_threads(CLI::App& sub, Flags& flags) {
  sub.add_option("--threads", flags.threads, "Worker threads; default: all cores")->check(CLI::Range(1, 1024));
}

void add_model(CLI::App& sub, Flags& flags, int64_t tokens, const char* what, bool with_prefill_chunk) {
  flags.tokens = tokens;
  flags.model.add(sub, with_prefill_chunk);
  sub.add_option("--tokens", flags.tokens, what)->check(CLI::Range(int64_t{1}, int64_t{1} << 20))->capture_default_str();
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  CLI::App* group = app.add_subcommand("bench", "Speed, beside what the machine allows");
  group->require_subcommand(1);
  group->footer(kExamples);
  const auto make = [&](const char* name, const char* what, bench::Record (*measure)(const Flags&)) {
    auto flags = std::make_shared<Flags>();
    return std::pair(add(*group, command, flags, name, what, measure), flags);
  };
  const auto [mem, mem_flags] = make("mem", "Memory bandwidth and peak arithmetic", measure_mem);
  add_threads(*mem, *mem_flags);

  const auto [operators, ops_flags] = make("ops", "Operators at the sizes of Kimi K3 and Qwen3-Next", measure_ops);
  add_threads(*operators, *ops_flags);
  operators->add_option("--op", ops_flags->op, "One operator, for example linear; default: all")->type_name("NAME");
  operators->add_option("--device", ops_flags->device, "Where: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  operators->add_option("--profile", ops_flags->profile, "Numbers: exact or bf16")
      ->check(CLI::IsMember({"exact", "bf16"}))
      ->capture_default_str();

  const auto [disk, disk_flags] = make("disk", "Reading files that no memory holds", measure_disk);
  disk->add_option("files", disk_flags->files, "Files to read; their pages are evicted")->required()->type_name("FILE");

  const auto [load, load_flags] = make("load", "Loading a model that no memory holds, beside reading its files", measure_load);
  load->add_option("-m,--model", load_flags->dir, "Folder of the checkpoint; its pages are evicted")
      ->required()
      ->type_name("DIR");

  const auto [decode, decode_flags] = make("decode", "Decoding one sequence, and the time to a first token", measure_decode);
  add_model(*decode, *decode_flags, 32, "Tokens of each repeat", true);

  const auto [prefill, prefill_flags] = make("prefill", "Reading a prompt in one step", measure_prefill);
  add_model(*prefill, *prefill_flags, 512, "Tokens of the prompt", false);

  const auto [batch, batch_flags] = make("batch", "Decoding several requests side by side, through the engine", measure_batch);
  add_model(*batch, *batch_flags, 16, "Tokens that each request decodes in a repeat", true);
  batch->add_option("--batch", batch_flags->batches, "Requests that decode side by side, as in 1,8,32")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();

  const auto [pipeline, pipeline_flags] =
      make("pipeline", "Stages: overlap, the cost of a hop, several against one on the same cores", measure_pipeline_of);
  add_model(*pipeline, *pipeline_flags, 32, "Tokens that each request decodes", true);
  pipeline_flags->batches = {8};
  pipeline->add_option("--stages", pipeline_flags->stages, "Worker processes")->check(CLI::Range(2, 64))->capture_default_str();
}

}  // namespace weft

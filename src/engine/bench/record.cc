#include "engine/bench/record.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <sys/utsname.h>
#include <unistd.h>

#include <fmt/format.h>

#include "ops/cpu/dense.h"

namespace weft::bench {
namespace {

// "AMD EPYC, family 25, model 17"
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown";
  std::string family;
  std::string model;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (key == "model name") name = line.substr(colon + 2);
    if (key == "cpu family") family = ", family " + line.substr(colon + 2);
    if (key == "model") model = ", model " + line.substr(colon + 2);
  }
  return name + family + model;
}

std::string limit_text(const Figure& figure) {
  if (!figure.limit) return "";
  return fmt::format("{:6.1f} % of {:.1f} ({})", 100.0 * figure.share(), figure.limit->value, figure.limit->name);
}

}  // namespace

double median(Samples samples) {
  if (samples.empty()) return 0.0;
  std::ranges::sort(samples);
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2.0;
}

Json machine_json() {
  utsname system{};
  ::uname(&system);
  return {{"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)},
          {"kernel", fmt::format("{} {}", system.sysname, system.release)},
          {"target", ops::cpu::dispatch_target()}};
}

Json Record::to_json(const std::string& commit, const std::string& command) const {
  Json json = {{"bench", bench}, {"commit", commit}, {"command", command}, {"machine", machine_json()}};
  json.update(facts);
  json["figures"] = Json::array();
  for (const Figure& figure : figures) {
    const auto [least, most] = std::ranges::minmax(figure.samples);
    Json one = {{"name", figure.name},
                {"unit", figure.unit},
                {"median", figure.value()},
                {"spread", {least, most}},
                {"repeats", figure.samples.size()}};
    if (figure.limit) {
      one["limit"] = {{"name", figure.limit->name}, {"value", figure.limit->value}};
      one["share"] = figure.share();
    }
    for (const auto& [name, value] : figure.more) one[name] = value;
    json["figures"].push_back(std::move(one));
  }
  json["notes"] = notes;
  return json;
}

std::string Record::to_text() const {
  size_t width = 0;
  for (const Figure& figure : figures) width = std::max(width, figure.name.size());
  std::string text;
  for (const Figure& figure : figures) {
    const auto [least, most] = std::ranges::minmax(figure.samples);
    text += fmt::format("{:<{}}  {:>9.2f} {:<8} [{:.2f}, {:.2f}]  {}", figure.name, width, figure.value(), figure.unit, least,
                        most, limit_text(figure));
    for (const auto& [name, value] : figure.more) text += fmt::format("  {} {:.4g}", name, value);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace weft::bench

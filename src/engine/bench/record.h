// What a run of `weft bench` found: figures with their spread over repeats, each beside the limit that the same run measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace weft::bench {

// One value for each repeat, in the figure's unit.
using Samples = std::vector<double>;

[[nodiscard]] double median(Samples samples);

struct Figure {
  // What a figure cannot exceed, in its own unit.
  struct Limit {
    std::string name;  // of the figure that measured it
    double value = 0.0;
  };

  std::string name;
  std::string unit;
  Samples samples;
  std::optional<Limit> limit;
  std::vector<std::pair<std::string, double>> more = {};  // other values of the same runs, the unit within the name

  [[nodiscard]] double value() const { return median(samples); }
  // The part of the limit that is reached; 0 without one.
  [[nodiscard]] double share() const { return limit ? value() / limit->value : 0.0; }
  // As a limit of other figures.
  [[nodiscard]] Limit as_limit() const { return {name, value()}; }
};

// The machine as the operating system and the kernels' dispatch see it: {"cpu", "cores", "memory_bytes", "kernel", "target"}.
[[nodiscard]] Json machine_json();

struct Record {
  std::string bench;  // "mem"
  std::vector<Figure> figures;
  Json facts = Json::object();     // what was measured on: file, model, sizes
  std::vector<std::string> notes;  // what was left out, and why

  // {"bench", "commit", "command", "machine", ...facts, "figures": [{"name", "unit", "median", "spread": [least, most],
  // "repeats", "limit": {"name", "value"}, "share", ...more}], "notes"}
  [[nodiscard]] Json to_json(const std::string& commit, const std::string& command) const;
  [[nodiscard]] std::string to_text() const;  // a table
};

}  // namespace weft::bench

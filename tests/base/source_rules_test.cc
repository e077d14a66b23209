// Rules about the sources themselves: the layers of ARCHITECTURE.md, the length of files, no traces of one machine.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

const fs::path kRoot = WEFT_SOURCE_DIR;

// From the bottom to the top; an include may name its own layer or a lower one.
const std::vector<std::string> kLayers = {"base", "tensor",   "formats", "ops",    "parallel", "model",
                                          "text", "pipeline", "train",   "engine", "server",   "app"};
// These use nothing but what is named, whatever lies below them.
const std::map<std::string, std::vector<std::string>> kOnly = {{"text", {"base"}}};

int level_of(const std::string& layer) {
  const auto found = std::find(kLayers.begin(), kLayers.end(), layer);
  return found == kLayers.end() ? -1 : static_cast<int>(found - kLayers.begin());
}

// What is wrong with `text` as a source of `layer`, one line each.
std::vector<std::string> wrong_includes(const std::string& layer, const std::string& text) {
  static const std::regex include(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<std::string> wrong;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    const std::string path = match[1];
    const std::string target = path.substr(0, path.find('/'));
    const bool quoted = line.find('"') != std::string::npos;
    const bool ours = path.find('/') != std::string::npos && level_of(target) >= 0;
    const auto say = [&](const std::string& reason) { wrong.push_back(std::to_string(number) + ": " + line + ": " + reason); };
    if (quoted && !ours) {
      say("wanted a path from src/ that starts with a layer");
    } else if (ours && level_of(target) > level_of(layer)) {
      say("points upward from " + layer);
    } else if (ours && target != layer && kOnly.contains(layer)) {
      const auto& allowed = kOnly.at(layer);
      if (std::find(allowed.begin(), allowed.end(), target) == allowed.end())
        say("not among the layers that " + layer + " may use");
    }
  }
  return wrong;
}

std::vector<fs::path> files_below(const std::vector<std::string>& folders, const std::vector<std::string>& extensions) {
  std::vector<fs::path> files;
  for (const auto& folder : folders) {
    if (!fs::exists(kRoot / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const bool wanted =
          std::find(extensions.begin(), extensions.end(), entry.path().extension().string()) != extensions.end();
      if (entry.is_regular_file() && wanted) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

const std::vector<std::string> kCode = {".cc", ".h", ".cu", ".cuh", ".proto"};

TEST(SourceRules, WrongIncludesAreSeen) {
  EXPECT_THAT(wrong_includes("base", "#include <vector>\n#include \"base/error.h\"\n"), IsEmpty());
  EXPECT_EQ(wrong_includes("base", "\n  #  include \"tensor/shape.h\"\n").size(), 1U);
  EXPECT_EQ(wrong_includes("tensor", "#include <model/stage.h>\n").size(), 1U);
  EXPECT_EQ(wrong_includes("model", "#include \"../pipeline/plan.h\"\n").size(), 1U);
  EXPECT_EQ(wrong_includes("text", "#include \"tensor/shape.h\"\n").size(), 1U);
  EXPECT_THAT(wrong_includes("text", "#include \"base/json.h\"\n#include \"text/tokenizer.h\"\n"), IsEmpty());
  EXPECT_THAT(wrong_includes("app", "#include \"server/http.h\"\n#include \"text/tokenizer.h\"\n"), IsEmpty());
}

TEST(SourceRules, NoIncludePointsUpward) {
  const auto files = files_below({"src"}, kCode);
  ASSERT_GT(files.size(), 20U);
  for (const auto& file : files) {
    const std::string layer = file.lexically_relative(kRoot / "src").begin()->string();
    EXPECT_GE(level_of(layer), 0) << file << ": src/" << layer << " is not a layer";
    for (const auto& wrong : wrong_includes(layer, read_text_file(file))) ADD_FAILURE() << file.string() << ":" << wrong;
  }
}

TEST(SourceRules, FilesStayBelow800Lines) {
  for (const auto& file : files_below({"src", "tests", "bench"}, kCode)) {
    const std::string text = read_text_file(file);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 800) << file;
  }
}

TEST(SourceRules, NoFileNamesAMachineOrUnfinishedWork) {
  // Split, so that this file does not find itself.
  const std::regex machine(
      "/(wo"
      "rk|ho"
      "me|ro"
      "ot|Us"
      "ers)/");
  const std::regex unfinished(R"(\b(TO)"
                              R"(DO|FIX)"
                              R"(ME|XX)"
                              R"(X|HA)"
                              R"(CK)\b)");
  auto files = files_below({"src", "tests", "bench", "cmake", "docs", "examples", "proto", ".ci"},
                           {".cc", ".h", ".cu", ".cuh", ".proto", ".txt", ".cmake", ".md", ".json", ""});
  for (const char* name : {"dev", "CMakeLists.txt", "CMakePresets.json", "README.md", "ARCHITECTURE.md"}) {
    ASSERT_TRUE(fs::exists(kRoot / name)) << name;
    files.push_back(kRoot / name);
  }
  for (const auto& file : files) {
    const bool data =
        file.string().find("tests/fixtures/") != std::string::npos || file.string().find("fuzz/corpus/") != std::string::npos;
    if (data) continue;
    const std::string text = read_text_file(file);
    EXPECT_FALSE(std::regex_search(text, machine)) << file << " names a folder of one machine";
    EXPECT_FALSE(std::regex_search(text, unfinished)) << file << " has a mark of unfinished work";
  }
}

}  // namespace
}  // namespace weft

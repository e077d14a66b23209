// A folder that a command fills: all of it or nothing.
//
//     NewFolder folder(options.out, "synth");   // absent or empty
//     folder.require_free(bytes);
//     write files
//     folder.keep();
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace weft {

class NewFolder {
 public:
  // Makes the folder. Throws bad_input when it is neither absent nor empty, or cannot be made.
  NewFolder(std::filesystem::path path, std::string_view place);
  // Without keep(): removes the files in the folder, and the folder where it was made here.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // Throws bad_input with both numbers when the file system has less room than `bytes`.
  void require_free(int64_t bytes) const;
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  std::string_view place_;
  bool made_ = false;
  bool kept_ = false;
};

}  // namespace weft

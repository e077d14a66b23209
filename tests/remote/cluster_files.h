// Cluster files of tests that run the program.
#pragma once

#include <filesystem>
#include <fstream>

#include "app/program.h"

namespace weft::remote_test {

// Two stages of k3-mini at Unix sockets in `folder`, where the file is written.
inline std::filesystem::path write_cluster(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "cluster.toml";
  std::ofstream out(file);
  out << "[cluster]\nname = \"test\"\npipeline_parallel_size = 2\n"
      << "[[nodes]]\nid = \"coordinator\"\naddress = \"unix:" << (folder / "c").string() << "\"\nrole = \"hybrid\"\n";
  for (int s = 0; s < 2; ++s) {
    out << "[[nodes]]\nid = \"stage-" << s << "\"\naddress = \"unix:" << (folder / "s").string() << s
        << "\"\nrole = \"pipeline_stage\"\nstage = " << s << "\nmodel_dir = \"" << app_test::mini_dir() << "\"\n";
  }
  return file;
}

}  // namespace weft::remote_test

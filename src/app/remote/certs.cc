// weft certs: certificates for the nodes of a cluster.
#include "pipeline/remote/certs.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Stages on other hosts speak TLS, and each side asks the other for a certificate. This makes them once, on one machine:
an authority (ca.pem, and ca.key, which signs and stays here), for each node NAME.pem and NAME.key, and cluster.token, a
secret that all nodes share. A node's certificate names its id in the cluster file and the hosts where others reach it, as
the addresses of the cluster file spell them. Nodes on one host are named in each other's certificate, so that they can share
one pair of files. What to copy where is printed. Nothing is overwritten.

Examples:
  weft certs -o certs --node coordinator=k3-a.example --node stage-0=k3-a.example --node stage-1=k3-b.example,10.0.0.12
  weft certs -o certs --add --node stage-2=k3-c.example
  openssl x509 -in certs/stage-1.pem -noout -text)";

struct Flags {
  CertsOptions options;
  std::vector<std::string> nodes;
};

ExitCode certs(const Flags& flags) {
  CertsOptions options = flags.options;
  for (const std::string& node : flags.nodes) options.nodes.push_back(parse_cert_node(node));
  write_output(make_certs(options).to_text());
  return kExitSuccess;
}

}  // namespace

void add_certs(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("certs", "Certificates, keys and a token for the nodes of a cluster");
  sub->footer(kExamples);
  sub->add_option("-o,--out", flags->options.out, "Folder for the files: absent or empty, but for --add")
      ->required()
      ->type_name("DIR");
  sub->add_option("--node", flags->nodes, "A node's id in the cluster file, and its hosts; once for each node")
      ->required()
      ->allow_extra_args(false)
      ->type_name("ID=HOST[,HOST]");
  sub->add_option("--days", flags->options.days, "How long certificates of nodes are valid")
      ->check(CLI::Range(int64_t{1}, int64_t{36500}))
      ->capture_default_str();
  sub->add_flag("--add", flags->options.add, "More nodes for the authority that lies in the folder");
  sub->callback([flags, &command] { command.run = [flags] { return certs(*flags); }; });
}

}  // namespace weft

// The certificates of a cluster: an authority of its own, and for each node a certificate and a key that it has signed.
//
//     CertsOptions options;
//     options.out = "certs";
//     options.nodes = {parse_cert_node("stage-0=k3-a.example,10.0.0.11")};
//     make_certs(options);  // certs/ca.pem, ca.key, stage-0.pem, stage-0.key, cluster.token
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct CertNode {
  std::string id;                  // of the cluster file; printable ASCII
  std::vector<std::string> hosts;  // names and numeric addresses by which others reach it
};

// "ID=HOST[,HOST]...". Throws bad_input naming what is wrong.
[[nodiscard]] CertNode parse_cert_node(std::string_view text);

struct CertsOptions {
  std::filesystem::path out;
  std::vector<CertNode> nodes;
  int64_t days = 825;  // that certificates of nodes are valid; the authority's: 3650, or that if it is more
  bool add = false;    // nodes for the authority that lies in `out`; no token
};

struct CertFiles {
  CertNode node;
  std::string name;                 // NAME.pem and NAME.key
  std::vector<std::string> others;  // ids of nodes on the same hosts, which the certificate names too
};

struct CertsReport {
  std::filesystem::path out;
  std::vector<CertFiles> nodes;
  bool added = false;

  // What lies where, and what to copy to which host.
  [[nodiscard]] std::string to_text() const;
};

// ECDSA P-256, SHA-256. A node's certificate is good for servers and for clients, and names (subjectAltName) its id as DNS
// name, or as URI weft:node/ID where the id is none, its hosts as DNS names and addresses, and likewise the ids of nodes that
// share a host with it, whose processes then can share the files. Keys and token have mode 0600; the token is 32 random bytes
// in hexadecimal digits. Nothing is overwritten: `out` is absent or empty, or with `add` has none of the new files. After a
// failure nothing of what was written is left. Throws bad_input naming node and value, unavailable naming the file.
CertsReport make_certs(const CertsOptions& options);

}  // namespace weft

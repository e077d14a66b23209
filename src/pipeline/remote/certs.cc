#include "pipeline/remote/certs.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/file.h"
#include "base/new_folder.h"
#include "base/utf8.h"
#include "pipeline/remote/tls_files.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "certs";
constexpr int64_t kAuthorityDays = 3650;
constexpr int64_t kMostDays = 36500;
constexpr int64_t kSecondsEarly = 3600;  // clocks differ
constexpr size_t kMostIdBytes = 128;
constexpr size_t kMostCommonName = 64;  // X.520
constexpr int kTokenBytes = 32;

using BioPointer = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using NamePointer = std::unique_ptr<X509_NAME, OpensslFree<X509_NAME_free>>;
using ExtensionPointer = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>>;
using NumberPointer = std::unique_ptr<BIGNUM, OpensslFree<BN_free>>;
using OctetsPointer = std::unique_ptr<ASN1_OCTET_STRING, OpensslFree<ASN1_OCTET_STRING_free>>;
using TextPointer = std::unique_ptr<ASN1_IA5STRING, OpensslFree<ASN1_IA5STRING_free>>;
using NamesPointer = std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>>;

void require(bool good, const char* what) {
  if (!good) fail(ErrorKind::internal, kPlace, "{}: {}", what, openssl_reason());
}

bool letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// Labels of letters, digits and inner hyphens, with points between.
bool is_dns_name(std::string_view name) {
  if (name.empty() || name.size() > 253) return false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view label = name.substr(begin, end - begin);
    const bool good = std::ranges::all_of(label, [](char c) { return letter_or_digit(c) || c == '-'; });
    if (!good || label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-') return false;
    begin = end + 1;
  }
  return true;
}

// The bytes of a numeric address, or none.
std::string numeric_address(const std::string& host) {
  std::array<char, 16> bytes{};
  if (::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return {bytes.data(), 4};
  if (::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1) return {bytes.data(), 16};
  return {};
}

void check_node(const CertNode& node) {
  const bool printing = std::ranges::all_of(node.id, [](char c) { return c >= ' ' && c <= '~'; });
  if (node.id.empty() || node.id.size() > kMostIdBytes || !printing)
    fail(ErrorKind::bad_input, kPlace,
         "node: wanted an id of 1 to {} characters of ASCII, which a certificate can hold, found '{}'", kMostIdBytes,
         printable(node.id.substr(0, 200)));
  if (node.hosts.empty()) fail(ErrorKind::bad_input, kPlace, "node '{}': wanted ID=HOST[,HOST]..., found no host", node.id);
  for (const std::string& host : node.hosts)
    if (numeric_address(host).empty() && !is_dns_name(host))
      fail(ErrorKind::bad_input, kPlace,
           "node '{}': wanted names of hosts or numeric addresses, without ports and brackets, found '{}'", node.id,
           printable(host.substr(0, 200)));
}

// The name of a node's files: its id, with '_' for what could lead elsewhere.
std::string file_name(const std::string& id) {
  std::string name = id;
  for (char& c : name)
    if (!letter_or_digit(c) && c != '-' && c != '_' && c != '.') c = '_';
  if (name.front() == '.') name.front() = '_';
  return name;
}

void add_name(GENERAL_NAMES& names, int type, std::string_view value) {
  std::unique_ptr<GENERAL_NAME, OpensslFree<GENERAL_NAME_free>> name(GENERAL_NAME_new());
  require(name != nullptr, "a name");
  ASN1_STRING* text = nullptr;
  if (type == GEN_IPADD) {
    OctetsPointer octets(ASN1_OCTET_STRING_new());
    text = octets.get();
    GENERAL_NAME_set0_value(name.get(), type, octets.release());
  } else {
    TextPointer ia5(ASN1_IA5STRING_new());
    text = ia5.get();
    GENERAL_NAME_set0_value(name.get(), type, ia5.release());
  }
  require(text != nullptr && ASN1_STRING_set(text, value.data(), static_cast<int>(value.size())) == 1, "a name");
  require(sk_GENERAL_NAME_push(&names, name.get()) > 0, "a name");
  (void)name.release();
}

void add_id(GENERAL_NAMES& names, const std::string& id) {
  if (is_dns_name(id))
    add_name(names, GEN_DNS, id);
  else
    add_name(names, GEN_URI, "weft:node/" + id);
}

void add_extension(X509& certificate, X509& issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const ExtensionPointer extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  require(extension != nullptr && X509_add_ext(&certificate, extension.get(), -1) == 1, value);
}

std::array<unsigned char, 16> random_bytes16() {
  std::array<unsigned char, 16> bytes{};
  require(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "random bytes");
  return bytes;
}

KeyPointer new_key() {
  KeyPointer key(EVP_EC_gen("P-256"));
  require(key != nullptr, "a key");
  return key;
}

// What every certificate has; not signed yet.
X509Pointer new_certificate(EVP_PKEY& key, const std::string& common_name, const X509* issuer, int64_t days) {
  X509Pointer made(X509_new());
  require(made != nullptr && X509_set_version(made.get(), X509_VERSION_3) == 1, "a certificate");
  std::array<unsigned char, 16> serial = random_bytes16();
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7FU) | 0x40U);  // positive, and always of 16 bytes
  const NumberPointer number(BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr));
  require(number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) != nullptr,
          "a serial number");
  require(X509_gmtime_adj(X509_getm_notBefore(made.get()), -kSecondsEarly) != nullptr, "a date");
  require(X509_time_adj_ex(X509_getm_notAfter(made.get()), static_cast<int>(days), 0, nullptr) != nullptr, "a date");
  require(X509_set_pubkey(made.get(), &key) == 1, "a key");
  const NamePointer subject(X509_NAME_new());
  require(subject != nullptr && X509_NAME_add_entry_by_txt(subject.get(), "CN", MBSTRING_UTF8,
                                                           reinterpret_cast<const unsigned char*>(common_name.data()),
                                                           static_cast<int>(common_name.size()), -1, 0) == 1,
          "a subject");
  require(X509_set_subject_name(made.get(), subject.get()) == 1, "a subject");
  require(X509_set_issuer_name(made.get(), issuer == nullptr ? subject.get() : X509_get_subject_name(issuer)) == 1,
          "an issuer");
  return made;
}

struct Authority {
  KeyPointer key;
  X509Pointer certificate;
};

Authority new_authority(int64_t days) {
  Authority made{new_key(), nullptr};
  const std::array<unsigned char, 16> tag = random_bytes16();  // two authorities have two names
  made.certificate = new_certificate(
      *made.key, fmt::format("Weft cluster {:02x}{:02x}{:02x}{:02x}", tag[0], tag[1], tag[2], tag[3]), nullptr, days);
  X509& certificate = *made.certificate;
  add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate, certificate, NID_subject_key_identifier, "hash");
  require(X509_sign(&certificate, made.key.get(), EVP_sha256()) > 0, "a signature");
  return made;
}

X509Pointer new_node_certificate(const Authority& authority, EVP_PKEY& key, const CertFiles& files, int64_t days) {
  const std::string& id = files.node.id;
  X509Pointer made = new_certificate(key, id.size() <= kMostCommonName ? id : "Weft node", authority.certificate.get(), days);
  add_extension(*made, *authority.certificate, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(*made, *authority.certificate, NID_key_usage, "critical,digitalSignature");
  add_extension(*made, *authority.certificate, NID_ext_key_usage, "serverAuth,clientAuth");
  add_extension(*made, *authority.certificate, NID_subject_key_identifier, "hash");
  add_extension(*made, *authority.certificate, NID_authority_key_identifier, "keyid:always");
  const NamesPointer names(GENERAL_NAMES_new());
  require(names != nullptr, "names");
  add_id(*names, id);
  for (const std::string& host : files.node.hosts) {
    const std::string number = numeric_address(host);
    if (number.empty() && host == id) continue;  // named already
    add_name(*names, number.empty() ? GEN_DNS : GEN_IPADD, number.empty() ? host : number);
  }
  for (const std::string& other : files.others) add_id(*names, other);
  require(X509_add1_ext_i2d(made.get(), NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1, "names");
  require(X509_sign(made.get(), authority.key.get(), EVP_sha256()) > 0, "a signature");
  return made;
}

// Text of OpenSSL's, wiped at the end: it may hold a key.
class PemText {
 public:
  explicit PemText(const std::function<int(BIO*)>& write) : bio_(BIO_new(BIO_s_secmem())) {
    require(bio_ != nullptr && write(bio_.get()) == 1, "PEM");
  }
  [[nodiscard]] std::string_view view() const {
    char* text = nullptr;
    const long length = BIO_get_mem_data(bio_.get(), &text);
    return {text, static_cast<size_t>(std::max(0L, length))};
  }

 private:
  BioPointer bio_;
};

// New files of a folder, which are gone again unless kept.
class NewFiles {
 public:
  explicit NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~NewFiles() {
    if (kept_) return;
    for (const std::filesystem::path& file : files_) ::unlink(file.c_str());
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  void write(const std::string& name, mode_t mode, std::string_view content) {
    const std::filesystem::path file = folder_ / name;
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor < 0 && errno == EEXIST)
      fail(ErrorKind::bad_input, kPlace, "{}: wanted a new file, found one that is there and is not overwritten",
           file.string());
    if (descriptor < 0) fail(ErrorKind::unavailable, kPlace, "{}: {}", file.string(), std::strerror(errno));
    files_.push_back(file);
    bool good = ::fchmod(descriptor, mode) == 0;
    for (size_t done = 0; good && done < content.size();) {
      const ssize_t got = ::write(descriptor, content.data() + done, content.size() - done);
      if (got < 0 && errno == EINTR) continue;
      good = got > 0;
      if (good) done += static_cast<size_t>(got);
    }
    good = good && ::fsync(descriptor) == 0;
    const std::string reason = good ? "" : std::strerror(errno);
    ::close(descriptor);
    if (!good) fail(ErrorKind::unavailable, kPlace, "{}: writing: {}", file.string(), reason);
  }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path> files_;
  bool kept_ = false;
};

void write_certificate(NewFiles& files, const std::string& name, X509& certificate) {
  files.write(name, 0644, PemText([&](BIO* bio) { return PEM_write_bio_X509(bio, &certificate); }).view());
}

void write_key(NewFiles& files, const std::string& name, EVP_PKEY& key) {
  files.write(name, 0600, PemText([&](BIO* bio) {
                            return PEM_write_bio_PKCS8PrivateKey(bio, &key, nullptr, nullptr, 0, nullptr, nullptr);
                          }).view());
}

void write_token(NewFiles& files) {
  std::array<unsigned char, kTokenBytes> bytes{};
  require(RAND_bytes(bytes.data(), kTokenBytes) == 1, "random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  text += '\n';
  files.write("cluster.token", 0600, text);
  OPENSSL_cleanse(text.data(), text.size());
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

Authority read_authority(const std::filesystem::path& folder) {
  TransportSecurity files;
  files.cert = folder / "ca.pem";
  files.key = folder / "ca.key";
  files.ca = files.cert;
  TlsFiles text = read_tls_files(files);  // which belong together, and are valid now
  const auto bio_of = [](const std::string& pem) {
    return BioPointer(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  };
  Authority authority{KeyPointer(PEM_read_bio_PrivateKey(bio_of(text.key).get(), nullptr, nullptr, nullptr)),
                      X509Pointer(PEM_read_bio_X509(bio_of(text.cert).get(), nullptr, nullptr, nullptr))};
  OPENSSL_cleanse(text.key.data(), text.key.size());
  require(authority.key && authority.certificate, "an authority");
  return authority;
}

// Names of files, and who shares a host with whom.
std::vector<CertFiles> plan_files(const std::vector<CertNode>& nodes) {
  if (nodes.empty()) fail(ErrorKind::bad_input, kPlace, "wanted one node or more, found none");
  std::vector<CertFiles> made;
  std::set<std::string> ids;
  std::set<std::string> names = {"ca"};
  for (const CertNode& node : nodes) {
    check_node(node);
    if (!ids.insert(node.id).second)
      fail(ErrorKind::bad_input, kPlace, "node '{}': wanted each id once, found it again", node.id);
    CertFiles files{node, file_name(node.id), {}};
    if (!names.insert(files.name).second)
      fail(ErrorKind::bad_input, kPlace, "node '{}': its files {}.pem and {}.key are those of another; wanted another id",
           node.id, files.name, files.name);
    for (const CertNode& other : nodes) {
      const bool shares = std::ranges::any_of(
          node.hosts, [&](const std::string& host) { return std::ranges::find(other.hosts, host) != other.hosts.end(); });
      if (shares && other.id != node.id) files.others.push_back(other.id);
    }
    made.push_back(std::move(files));
  }
  return made;
}

}  // namespace

CertNode parse_cert_node(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos)
    fail(ErrorKind::bad_input, kPlace, "node: wanted ID=HOST[,HOST]..., found '{}'", printable(text.substr(0, 200)));
  CertNode node;
  node.id = text.substr(0, equals);
  const std::string_view hosts = text.substr(equals + 1);
  for (size_t begin = 0; begin < hosts.size();) {
    const size_t end = std::min(hosts.find(',', begin), hosts.size());
    node.hosts.emplace_back(hosts.substr(begin, end - begin));
    begin = end + 1;
  }
  if (hosts.ends_with(',')) node.hosts.emplace_back();
  check_node(node);
  return node;
}

CertsReport make_certs(const CertsOptions& options) {
  if (options.days < 1 || options.days > kMostDays)
    fail(ErrorKind::bad_input, kPlace, "days: wanted 1 to {}, found {}", kMostDays, options.days);
  CertsReport report{options.out, plan_files(options.nodes), options.add};
  std::optional<NewFolder> folder;
  if (!options.add) folder.emplace(options.out, kPlace);
  NewFiles files(options.out);
  const Authority authority = options.add ? read_authority(options.out) : new_authority(std::max(options.days, kAuthorityDays));
  if (!options.add) {
    write_certificate(files, "ca.pem", *authority.certificate);
    write_key(files, "ca.key", *authority.key);
  }
  for (const CertFiles& node : report.nodes) {
    const KeyPointer key = new_key();
    const X509Pointer certificate = new_node_certificate(authority, *key, node, options.days);
    write_certificate(files, node.name + ".pem", *certificate);
    write_key(files, node.name + ".key", *key);
  }
  if (!options.add) write_token(files);
  files.keep();
  if (folder) folder->keep();
  return report;
}

std::string CertsReport::to_text() const {
  std::string text = fmt::format("{}:\n", out.string());
  if (!added) {
    text += "  ca.pem         the cluster's authority: every node needs it\n";
    text += "  ca.key         signs certificates: it stays here, and no node needs it\n";
    text += "  cluster.token  a secret that all nodes share\n";
  }
  for (const CertFiles& files : nodes) {
    text += fmt::format("  {}.pem, {}.key  node {}", files.name, files.name, files.node.id);
    if (!files.others.empty()) text += fmt::format(", and {} on the same host", fmt::join(files.others, ", "));
    text += fmt::format(": {}\n", fmt::join(files.node.hosts, ", "));
  }
  text += "\nCopy to each host, beside the cluster file, over a channel that you trust:\n";
  std::set<std::string> served;  // nodes for whom files of another are copied
  for (const CertFiles& files : nodes) {
    if (served.contains(files.node.id)) continue;
    served.insert(files.others.begin(), files.others.end());
    const std::string& host = files.node.hosts.front();
    const std::string folder = (out / "").string();
    text += fmt::format("  scp {}ca.pem {}cluster.token {}:DIR/\n", folder, folder, host);
    text += fmt::format("  scp {}{}.pem {}:DIR/node.pem\n", folder, files.name, host);
    text += fmt::format("  scp {}{}.key {}:DIR/node.key\n", folder, files.name, host);
  }
  if (added) {
    text += R"(
A host that runs another node of this cluster has node.pem and node.key already, which do not name the new node: keep them, copy
the new pair under its own name, and start the new node with --tls-cert and --tls-key.
)";
  }
  text += R"(
The cluster file, DIR/cluster.toml, then says on every host:
  [security]
  cert = "node.pem"
  key = "node.key"
  ca = "ca.pem"
  token_file = "cluster.token"
)";
  return text;
}

}  // namespace weft

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>

#include "base/file.h"
#include "base/guard.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/node_address.h"
#include "pipeline/remote/tls_files.h"

namespace weft {
namespace {

constexpr int64_t kMostPemBytes = int64_t{1} << 20;
constexpr size_t kLeastTokenBytes = 32;
constexpr size_t kMostTokenBytes = 4096;  // it travels in a header of at most 8 KiB
constexpr const char* kPlace = "security";

using BioPointer = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;

BioPointer bio_of(const std::string& text) { return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// OpenSSL would ask on the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

std::vector<X509Pointer> certificates_of(const std::string& pem, const std::filesystem::path& file) {
  std::vector<X509Pointer> found;
  const BioPointer bio = bio_of(pem);
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr)) found.emplace_back(next);
  // The end of the text is an error too, of a kind of its own.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = openssl_reason();
  if (found.empty() || !ended)
    fail(ErrorKind::security, kPlace, "{}: wanted certificates in PEM, found {}", file.string(), ended ? "none" : reason);
  return found;
}

std::string readable_time(const ASN1_TIME* time) {
  const BioPointer bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(std::max(0L, length))};
}

// What is wrong with the certificate's dates now, or nothing.
std::string wrong_dates(const X509& certificate) {
  const ASN1_TIME* from = X509_get0_notBefore(&certificate);
  const ASN1_TIME* until = X509_get0_notAfter(&certificate);
  if (X509_cmp_current_time(from) >= 0) return "is not valid before " + readable_time(from);
  if (X509_cmp_current_time(until) <= 0) return "expired on " + readable_time(until);
  return {};
}

std::string read_pem(const std::filesystem::path& file) { return read_text_file(file, ErrorKind::security, kMostPemBytes); }

void require_owner_alone(const struct stat& status, const std::filesystem::path& file, std::string_view what) {
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  fail(ErrorKind::security, kPlace, "{}: a {} is for its owner alone: wanted mode 0600 or 0400, found {:04o}", file.string(),
       what, static_cast<unsigned>(status.st_mode & 07777U));
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

// The bytes of a numeric address, or nothing.
std::string numeric_address(const std::string& text) {
  std::array<char, 16> bytes{};
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return {bytes.data(), 4};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return {bytes.data(), 16};
  return {};
}

bool names_host(const std::string& name, const std::string& host) {
  const std::string number = numeric_address(host);
  if (!number.empty()) return numeric_address(name) == number;
  if (same_name(name, host)) return true;
  const size_t dot = host.find('.');  // "*.example.com" stands for one label, never for a whole domain
  return name.starts_with("*.") && dot != std::string::npos && name.find('.', 2) != std::string::npos &&
         same_name(std::string_view(name).substr(1), std::string_view(host).substr(dot));
}

}  // namespace

std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason ? reason : "an unknown error of OpenSSL";
}

TlsFiles read_tls_files(const TransportSecurity& security) {
  ERR_clear_error();
  TlsFiles files{read_pem(security.cert), read_pem(security.key), read_pem(security.ca)};
  struct stat status{};
  if (::stat(security.key.c_str(), &status) != 0)
    fail(ErrorKind::security, kPlace, "{}: {}", security.key.string(), std::strerror(errno));
  require_owner_alone(status, security.key, "private key");
  const auto chain = certificates_of(files.cert, security.cert);
  const auto authorities = certificates_of(files.ca, security.ca);
  const BioPointer bio = bio_of(files.key);
  const KeyPointer key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (!key)
    fail(ErrorKind::security, kPlace, "{}: wanted a private key in PEM without a passphrase, found {}", security.key.string(),
         openssl_reason());
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    fail(ErrorKind::security, kPlace, "{}: the key does not belong to the certificate in {}", security.key.string(),
         security.cert.string());
  }
  for (const X509Pointer& certificate : chain)
    if (const std::string wrong = wrong_dates(*certificate); !wrong.empty())
      fail(ErrorKind::security, kPlace, "{}: the certificate {}", security.cert.string(), wrong);
  // Of several authorities some may be of the past, or of the future.
  std::string wrong;
  for (const X509Pointer& authority : authorities)
    if (wrong = wrong_dates(*authority); wrong.empty()) break;
  if (!wrong.empty()) fail(ErrorKind::security, kPlace, "{}: the certificate {}", security.ca.string(), wrong);
  return files;
}

std::string read_token(const std::filesystem::path& file) {
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  } const opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status{};
  if (opened.number < 0 || ::fstat(opened.number, &status) != 0)
    fail(ErrorKind::security, kPlace, "{}: {}", file.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::security, kPlace, "{}: wanted a regular file for a token", file.string());
  require_owner_alone(status, file, "token");
  std::string token(kMostTokenBytes + 3, '\0');
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t got = ::read(opened.number, token.data() + filled, token.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorKind::security, kPlace, "{}: {}", file.string(), std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  token.resize(filled);
  if (token.ends_with('\n')) token.pop_back();
  if (token.ends_with('\r')) token.pop_back();
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes)
    fail(ErrorKind::security, kPlace, "{}: wanted a token of {} to {} bytes, found {}{}", file.string(), kLeastTokenBytes,
         kMostTokenBytes, token.size() > kMostTokenBytes ? "at least " : "", token.size());
  return token;
}

bool is_loopback(const std::string& address) {
  const ParsedAddress parsed = parse_address(address, true);
  NodeEndpoint end;
  (parsed.unix_socket ? end.path : end.host) = parsed.host;
  return end.loopback();
}

bool names_node(const std::vector<std::string>& names, const NodeAddress& node) {
  const ParsedAddress parsed = parse_address(node.address, true);
  return std::ranges::any_of(names, [&](const std::string& name) {
    if (!node.node.empty() && (same_name(name, node.node) || name == "weft:node/" + node.node)) return true;
    return !parsed.unix_socket && names_host(name, parsed.host);
  });
}

void TransportSecurity::require_usable(const std::string& address) const {
  const int given = !cert.empty() + !key.empty() + !ca.empty();
  if (given != 0 && given != 3) {
    const char* missing = cert.empty() ? "certificate" : key.empty() ? "key" : "ca";
    fail(ErrorKind::security, kPlace, "TLS: wanted a certificate, a key and a ca, found no {}", missing);
  }
  if (tls()) (void)read_tls_files(*this);
  if (!token_file.empty()) (void)read_token(token_file);
  if (!tls() && !allow_insecure && !is_loopback(address))
    fail(ErrorKind::security, kPlace, "{} is not a loopback address: wanted TLS, or plaintext to be allowed, found neither",
         address);
}

}  // namespace weft

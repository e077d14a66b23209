// weft certs: what is written, parsed by OpenSSL.
#include "pipeline/remote/certs.h"

#include <arpa/inet.h>
#include <ctime>
#include <functional>
#include <set>
#include <string>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "base/file.h"
#include "pipeline/remote/tls_files.h"

#include "support/models.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::TemporaryFolder;

X509Pointer read_certificate(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  const std::unique_ptr<BIO, OpensslFree<BIO_free_all>> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  X509Pointer made(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  EXPECT_NE(made, nullptr) << file;
  return made;
}

KeyPointer read_key(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  const std::unique_ptr<BIO, OpensslFree<BIO_free_all>> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  KeyPointer made(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  EXPECT_NE(made, nullptr) << file;
  return made;
}

// "DNS:x", "URI:x", "IP:10.0.0.1".
std::vector<std::string> names_of(X509& certificate) {
  std::vector<std::string> found;
  const std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const auto* value = static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type));
    const std::string bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                            static_cast<size_t>(ASN1_STRING_length(value)));
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (type == GEN_IPADD) ::inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text.data(), text.size());
    found.push_back(type == GEN_DNS ? "DNS:" + bytes : type == GEN_URI ? "URI:" + bytes : "IP:" + std::string(text.data()));
  }
  return found;
}

// What OpenSSL says of `certificate` for a purpose, with the authority `ca` trusted and no other.
std::string verify(X509& certificate, X509& ca, int purpose) {
  const std::unique_ptr<X509_STORE, OpensslFree<X509_STORE_free>> store(X509_STORE_new());
  X509_STORE_add_cert(store.get(), &ca);
  const std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), &certificate, nullptr);
  X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(context.get()), X509_V_FLAG_X509_STRICT);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  X509_verify_cert(context.get());
  return X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
}

unsigned mode_of(const std::filesystem::path& file) {
  struct stat status{};
  EXPECT_EQ(::stat(file.c_str(), &status), 0) << file;
  return status.st_mode & 07777U;
}

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::string refusal(const std::function<void()>& body, ErrorKind kind = ErrorKind::bad_input) {
  try {
    body();
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
}

CertsOptions three_nodes(const std::filesystem::path& out) {
  CertsOptions options;
  options.out = out;
  options.nodes = {parse_cert_node("coordinator=k3-a.example,10.0.0.11"), parse_cert_node("stage-0=k3-a.example"),
                   parse_cert_node("stage 1/b=k3-b.example,2001:db8::7")};
  return options;
}

TEST(Certs, ChainsNamesAndUses) {
  const TemporaryFolder dir;
  const std::filesystem::path out = dir.path() / "certs";
  const CertsReport report = make_certs(three_nodes(out));
  EXPECT_THAT(files_in(out), ElementsAre("ca.key", "ca.pem", "cluster.token", "coordinator.key", "coordinator.pem",
                                         "stage-0.key", "stage-0.pem", "stage_1_b.key", "stage_1_b.pem"));
  const X509Pointer ca = read_certificate(out / "ca.pem");
  EXPECT_EQ(X509_check_ca(ca.get()), 1);
  EXPECT_EQ(X509_get_pathlen(ca.get()), 0);
  EXPECT_EQ(X509_get_key_usage(ca.get()), static_cast<uint32_t>(KU_KEY_CERT_SIGN | KU_CRL_SIGN));
  EXPECT_EQ(X509_check_private_key(ca.get(), read_key(out / "ca.key").get()), 1);
  EXPECT_EQ(X509_verify(ca.get(), X509_get0_pubkey(ca.get())), 1);

  const auto names = [&](const char* file) { return names_of(*read_certificate(out / file)); };
  // Who shares a host shares names, so that one pair of files serves the host.
  EXPECT_THAT(names("coordinator.pem"), ElementsAre("DNS:coordinator", "DNS:k3-a.example", "IP:10.0.0.11", "DNS:stage-0"));
  EXPECT_THAT(names("stage-0.pem"), ElementsAre("DNS:stage-0", "DNS:k3-a.example", "DNS:coordinator"));
  EXPECT_THAT(names("stage_1_b.pem"), ElementsAre("URI:weft:node/stage 1/b", "DNS:k3-b.example", "IP:2001:db8::7"));

  const TemporaryFolder elsewhere;
  CertsOptions options = three_nodes(elsewhere.path());
  (void)make_certs(options);
  const X509Pointer stranger = read_certificate(elsewhere.path() / "ca.pem");
  std::set<std::string> serials;
  for (const char* name : {"coordinator", "stage-0", "stage_1_b"}) {
    SCOPED_TRACE(name);
    const X509Pointer node = read_certificate(out / (std::string(name) + ".pem"));
    const KeyPointer key = read_key(out / (std::string(name) + ".key"));
    for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
      EXPECT_EQ(verify(*node, *ca, purpose), "ok");
      EXPECT_NE(verify(*node, *stranger, purpose), "ok");
    }
    EXPECT_EQ(X509_check_ca(node.get()), 0);
    EXPECT_EQ(X509_get_extended_key_usage(node.get()), static_cast<uint32_t>(XKU_SSL_SERVER | XKU_SSL_CLIENT));
    EXPECT_EQ(X509_get_key_usage(node.get()), static_cast<uint32_t>(KU_DIGITAL_SIGNATURE));
    EXPECT_EQ(X509_check_private_key(node.get(), key.get()), 1);
    EXPECT_EQ(X509_get_signature_nid(node.get()), NID_ecdsa_with_SHA256);
    std::array<char, 64> group{};
    EXPECT_EQ(EVP_PKEY_get_group_name(key.get(), group.data(), group.size(), nullptr), 1);
    EXPECT_STREQ(group.data(), "prime256v1");
    const ASN1_INTEGER* serial = X509_get0_serialNumber(node.get());
    EXPECT_EQ(ASN1_STRING_length(serial), 16);
    serials.emplace(reinterpret_cast<const char*>(ASN1_STRING_get0_data(serial)), 16);
  }
  EXPECT_EQ(serials.size(), 3U);
  EXPECT_EQ(X509_check_host(read_certificate(out / "stage-0.pem").get(), "k3-a.example", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_ip_asc(read_certificate(out / "coordinator.pem").get(), "10.0.0.11", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(read_certificate(out / "coordinator.pem").get(), "10.0.0.12", 0), 0);

  const std::string text = report.to_text();
  EXPECT_THAT(
      text, AllOf(HasSubstr("coordinator.pem k3-a.example:DIR/node.pem"), HasSubstr("stage_1_b.key k3-b.example:DIR/node.key"),
                  HasSubstr("cluster.token k3-b.example:DIR/"), HasSubstr("cert = \"node.pem\"")));
  EXPECT_EQ(text.find("stage-0.key k3-a"), std::string::npos) << "one pair of files serves a host";
  EXPECT_EQ(text.find("ca.key k3"), std::string::npos);
}

TEST(Certs, DatesFollowTheDays) {
  const TemporaryFolder dir;
  CertsOptions options = three_nodes(dir.path() / "a");
  const auto days_left = [](const std::filesystem::path& file) {
    const X509Pointer certificate = read_certificate(file);
    EXPECT_LT(X509_cmp_current_time(X509_get0_notBefore(certificate.get())), 0);
    int days = 0;
    int seconds = 0;
    EXPECT_EQ(ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(certificate.get())), 1);
    return days + (seconds > 0 ? 1 : 0);
  };
  (void)make_certs(options);
  EXPECT_EQ(days_left(dir.path() / "a" / "stage-0.pem"), 825);
  EXPECT_EQ(days_left(dir.path() / "a" / "ca.pem"), 3650);
  options.out = dir.path() / "b";
  options.days = 4000;
  (void)make_certs(options);
  EXPECT_EQ(days_left(dir.path() / "b" / "stage-0.pem"), 4000);
  EXPECT_EQ(days_left(dir.path() / "b" / "ca.pem"), 4000);
  for (const int64_t days : {int64_t{0}, int64_t{-1}, int64_t{36501}}) {
    options.out = dir.path() / "c";
    options.days = days;
    EXPECT_THAT(refusal([&] { (void)make_certs(options); }), HasSubstr(fmt::format("found {}", days)));
  }
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "c"));
}

TEST(Certs, SecretsAreForTheirOwner) {
  const TemporaryFolder dir;
  const std::filesystem::path out = dir.path() / "certs";
  const mode_t before = ::umask(0);
  (void)make_certs(three_nodes(out));
  ::umask(before);
  for (const char* secret : {"ca.key", "coordinator.key", "stage-0.key", "stage_1_b.key", "cluster.token"})
    EXPECT_EQ(mode_of(out / secret), 0600U) << secret;
  for (const char* open : {"ca.pem", "coordinator.pem"}) EXPECT_EQ(mode_of(out / open), 0644U) << open;
  const std::string token = read_text_file(out / "cluster.token");
  EXPECT_EQ(token.size(), 65U);
  EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), 64U);
  EXPECT_EQ(read_token(out / "cluster.token"), token.substr(0, 64));
  const std::filesystem::path other = dir.path() / "other";
  (void)make_certs(three_nodes(other));
  EXPECT_NE(read_text_file(other / "cluster.token"), token);
}

// What the transport asks of its files.
TEST(Certs, ServeTheTransport) {
  const TemporaryFolder dir;
  const std::filesystem::path out = dir.path() / "certs";
  (void)make_certs(three_nodes(out));
  const TransportSecurity security{out / "stage-0.pem", out / "stage-0.key", out / "ca.pem", out / "cluster.token", false};
  EXPECT_NO_THROW(security.require_usable("10.0.0.1:1"));
  const TransportSecurity mixed{out / "stage-0.pem", out / "coordinator.key", out / "ca.pem", {}, false};
  EXPECT_THROW(mixed.require_usable("10.0.0.1:1"), Error);
}

TEST(Certs, NothingIsOverwritten) {
  const TemporaryFolder dir;
  const std::filesystem::path out = dir.path() / "certs";
  (void)make_certs(three_nodes(out));
  const std::string key = read_text_file(out / "stage-0.key");
  EXPECT_THAT(refusal([&] { (void)make_certs(three_nodes(out)); }), HasSubstr(out.string()));
  EXPECT_EQ(read_text_file(out / "stage-0.key"), key);

  // More nodes of the same authority.
  CertsOptions more;
  more.out = out;
  more.add = true;
  more.nodes = {parse_cert_node("stage-2=k3-c.example"), parse_cert_node("stage-0=k3-a.example")};
  const std::set<std::string> before = files_in(out);
  EXPECT_THAT(refusal([&] { (void)make_certs(more); }), AllOf(HasSubstr("stage-0.pem"), HasSubstr("not overwritten")));
  EXPECT_EQ(files_in(out), before);
  more.nodes.pop_back();
  const CertsReport report = make_certs(more);
  EXPECT_EQ(files_in(out).size(), before.size() + 2);
  EXPECT_EQ(verify(*read_certificate(out / "stage-2.pem"), *read_certificate(out / "ca.pem"), X509_PURPOSE_SSL_SERVER), "ok");
  EXPECT_EQ(read_text_file(out / "stage-0.key"), key);
  EXPECT_THAT(report.to_text(), AllOf(HasSubstr("stage-2.pem k3-c.example:DIR/node.pem"), HasSubstr("keep them")));
  EXPECT_THAT(make_certs(three_nodes(dir.path() / "first")).to_text(), Not(HasSubstr("keep them")));
  more.out = dir.path() / "nothing";
  EXPECT_THAT(refusal([&] { (void)make_certs(more); }, ErrorKind::security), HasSubstr("ca.pem"));
}

TEST(Certs, NodesThatCannotBe) {
  EXPECT_THAT(parse_cert_node("a=b=host").id, "a=b");
  struct Case {
    std::string text;
    const char* mention;
  };
  for (const Case& c : std::vector<Case>{{"stage-0", "ID=HOST[,HOST]..., found 'stage-0'"},
                                         {"stage-0=", "found no host"},
                                         {"=host", "found ''"},
                                         {"stage-0=host,", "found ''"},
                                         {"stage-0=host:19001", "found 'host:19001'"},
                                         {"stage-0=[::1]", "found '[::1]'"},
                                         {"stage-0=a b", "found 'a b'"},
                                         {"stage-0=-host", "found '-host'"},
                                         {"stage-0=a..b", "found 'a..b'"},
                                         {"ü=host", "ASCII"},
                                         {"a\nb=host", "a\\x0ab"},
                                         {std::string(129, 'x') + "=host", "1 to 128"}})
    EXPECT_THAT(refusal([&] { (void)parse_cert_node(c.text); }), HasSubstr(c.mention)) << c.text;
  const TemporaryFolder dir;
  CertsOptions options;
  options.out = dir.path() / "certs";
  EXPECT_THAT(refusal([&] { (void)make_certs(options); }), HasSubstr("found none"));
  options.nodes = {{"a", {"h"}}, {"a", {"h"}}};
  EXPECT_THAT(refusal([&] { (void)make_certs(options); }), HasSubstr("node 'a': wanted each id once"));
  options.nodes = {{"a/b", {"h"}}, {"a b", {"h"}}};
  EXPECT_THAT(refusal([&] { (void)make_certs(options); }), HasSubstr("a_b.pem"));
  options.nodes = {{"ca", {"h"}}};
  EXPECT_THAT(refusal([&] { (void)make_certs(options); }), HasSubstr("ca.pem"));
  options.nodes = {{"../../x", {"h"}}};
  (void)make_certs(options);
  EXPECT_TRUE(std::filesystem::exists(options.out / "_._.._x.pem"));
  EXPECT_EQ(files_in(dir.path()).size(), 1U);
}

TEST(Certs, LongIds) {
  const TemporaryFolder dir;
  CertsOptions options;
  options.out = dir.path() / "certs";
  const std::string id(128, 'x');
  options.nodes = {{id, {"h"}}};
  (void)make_certs(options);
  EXPECT_THAT(names_of(*read_certificate(options.out / (id + ".pem"))), ElementsAre("URI:weft:node/" + id, "DNS:h"));
}

}  // namespace
}  // namespace weft

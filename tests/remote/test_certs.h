// Certificates for tests, made on the spot: elliptic curves, so that each takes a millisecond.
//
//     TestAuthority authority(folder, "ca");
//     TransportSecurity identity = authority.issue("stage-1", {"DNS:stage-1", "IP:127.0.0.1"});
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "pipeline/remote/grpc_transport.h"

namespace weft::remote_test {

// Dates in seconds from now.
struct TestValidity {
  long from = -3600;
  long until = 3600;
};

class TestAuthority {
 public:
  TestAuthority(std::filesystem::path folder, const std::string& name, TestValidity validity = {})
      : folder_(std::move(folder)), file_(folder_ / (name + ".pem")), key_(new_key()) {
    certificate_ = sign(name, key_.get(), {}, validity, true);
    write(file_, [&](FILE* file) { return PEM_write_X509(file, certificate_.get()); });
  }

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

  // Writes NAME.crt and NAME.key, over what is there. Names as OpenSSL's configuration has them: "DNS:x", "URI:x", "IP:x".
  [[nodiscard]] TransportSecurity issue(const std::string& name, const std::vector<std::string>& names,
                                        TestValidity validity = {}) const {
    const Key key(new_key());
    const Certificate certificate = sign(name, key.get(), names, validity, false);
    TransportSecurity security;
    security.cert = folder_ / (name + ".crt");
    security.key = folder_ / (name + ".key");
    security.ca = file_;
    write(security.cert, [&](FILE* file) { return PEM_write_X509(file, certificate.get()); });
    write(security.key,
          [&](FILE* file) { return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
    return security;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static void require(bool good, const char* what) {
    if (!good) throw std::runtime_error(std::string("test certificate: ") + what);
  }

  static Key new_key() {
    Key key(EVP_EC_gen("P-256"));
    require(key != nullptr, "no key");
    return key;
  }

  // By a new name, so that a reader sees the old file or the new one.
  template <class Body>
  static void write(const std::filesystem::path& path, Body&& body) {
    const std::string other = path.string() + ".new";
    FILE* file = std::fopen(other.c_str(), "w");
    require(file != nullptr, "no file");
    const bool good = body(file) == 1;
    require(std::fclose(file) == 0 && good, "not written");
    std::filesystem::permissions(other, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::rename(other, path);
  }

  static void add(X509* certificate, X509* issuer, int kind, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
    require(extension != nullptr, value.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  [[nodiscard]] Certificate sign(const std::string& name, EVP_PKEY* key, const std::vector<std::string>& names,
                                 TestValidity validity, bool authority) const {
    static long serial = 0;
    Certificate made(X509_new());
    X509* issuer = authority ? made.get() : certificate_.get();
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), validity.from);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), validity.until);
    X509_set_pubkey(made.get(), key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
    add(made.get(), issuer, NID_basic_constraints, authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
    std::string all;
    for (const std::string& one : names) all += (all.empty() ? "" : ",") + one;
    if (!all.empty()) add(made.get(), issuer, NID_subject_alt_name, all);
    require(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0, "not signed");
    return made;
  }

  std::filesystem::path folder_;
  std::filesystem::path file_;
  Key key_;
  Certificate certificate_;
};

}  // namespace weft::remote_test

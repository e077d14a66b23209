// A certificate for tests, signed by itself, made on the spot: elliptic curves, so that it takes a millisecond.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace weft::http_test {

class TestCertificate {
 public:
  TestCertificate() : folder_(std::filesystem::temp_directory_path() / ("weft-http-test-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    const std::unique_ptr<EVP_PKEY, Free> made_key(EVP_EC_gen("P-256"));
    const std::unique_ptr<X509, Free> made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), made_key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(made.get(), X509_get_subject_name(made.get()));
    require(X509_sign(made.get(), made_key.get(), EVP_sha256()) > 0, "not signed");
    write(certificate(), [&](FILE* file) { return PEM_write_X509(file, made.get()); });
    write(key(), [&](FILE* file) { return PEM_write_PrivateKey(file, made_key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  }
  ~TestCertificate() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TestCertificate(const TestCertificate&) = delete;
  TestCertificate& operator=(const TestCertificate&) = delete;

  static const TestCertificate& shared() {
    static const TestCertificate one;
    return one;
  }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::string certificate() const { return (folder_ / "server.pem").string(); }
  [[nodiscard]] std::string key() const { return (folder_ / "server.key").string(); }

 private:
  struct Free {
    void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
    void operator()(X509* one) const { X509_free(one); }
  };
  static void require(bool good, const char* what) {
    if (!good) throw std::runtime_error(std::string("test certificate: ") + what);
  }
  template <class Body>
  static void write(const std::string& path, Body&& body) {
    FILE* file = std::fopen(path.c_str(), "w");
    require(file != nullptr, "no file");
    const bool good = body(file) == 1;
    require(std::fclose(file) == 0 && good, "not written");
  }

  std::filesystem::path folder_;
};

}  // namespace weft::http_test

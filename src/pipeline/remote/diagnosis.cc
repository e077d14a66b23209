#include "pipeline/remote/diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <future>
#include <memory>
#include <netdb.h>
#include <thread>
#include <utility>

#include <sys/socket.h>

#include "base/error.h"
#include "base/plural.h"
#include "base/text_table.h"
#include "base/utf8.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/observer_link.h"
#include "pipeline/remote/tls_files.h"

namespace weft {
namespace {

constexpr double kMostSkew = 5.0;      // seconds; distributed.md 5.3
constexpr double kPairSeconds = 60.0;  // connecting, a handshake and a measurement
constexpr double kDaysBeforeExpiry = 14.0;

std::vector<std::string> look_up(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (result != 0) fail(ErrorKind::unreachable, "address", "'{}': wanted an address, found: {}", host, ::gai_strerror(result));
  const std::unique_ptr<addrinfo, OpensslFree<::freeaddrinfo>> owner(found);
  std::vector<std::string> made;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      made.emplace_back(text.data());
  }
  return made;
}

// Numeric addresses. The system's look-up cannot be ended: one that takes too long is left to itself.
std::vector<std::string> resolve(const std::string& address, double seconds) {
  const ParsedAddress parsed = parse_address(address, false);
  if (parsed.unix_socket) {
    if (!std::filesystem::exists(parsed.host))
      fail(ErrorKind::unreachable, "address", "'{}': wanted a socket, found nothing", address);
    return {};
  }
  using Addresses = std::vector<std::string>;
  const auto task = std::make_shared<std::packaged_task<Addresses()>>(
      [host = parsed.host, port = std::to_string(parsed.port)] { return look_up(host, port); });
  std::future<Addresses> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    fail(ErrorKind::unreachable, "address", "'{}': wanted an address within {:.0f} s, found none", parsed.host, seconds);
  }
  return result.get();
}

std::string connection_text(const TransportSecurity& security, const std::string& address) {
  const std::string token = security.token_file.empty() ? "" : ", token";
  if (security.tls()) return "mutual TLS" + token;
  if (address.starts_with("unix:")) return "Unix socket" + token;
  return (is_loopback(address) ? "plaintext on loopback" : "plaintext") + token;
}

// How long this end's certificate is good for, in days, and the date in words.
std::pair<double, std::string> expiry(const TransportSecurity& security) {
  const TlsFiles files = read_tls_files(security);
  const std::unique_ptr<BIO, OpensslFree<BIO_free>> bio(
      BIO_new_mem_buf(files.cert.data(), static_cast<int>(files.cert.size())));
  const X509Pointer certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  tm until{};
  if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &until) != 1) {
    fail(ErrorKind::security, security.cert.string(), "{}", openssl_reason());
  }
  const double seconds = std::difftime(::timegm(&until), std::time(nullptr));
  return {seconds / 86400.0,
          fmt::format("valid until {:04}-{:02}-{:02}", until.tm_year + 1900, until.tm_mon + 1, until.tm_mday)};
}

void visit(const DiagnosisOptions& options, const ClusterNode& node, NodeDiagnosis& to) {
  to.resolved = resolve(node.address, options.observer.cluster.timeouts.connect);
  const ObserverLink link(options.observer, node);
  const wire::HelloReply& hello = link.hello();
  to.build = hello.self().build();
  to.features = hello.features();
  to.device = hello.device();
  to.operators = hello.operators();
  to.family = hello.self().family();
  to.config_sha256 = hello.self().config_sha256();
  to.layers = hello.loaded_layers();
  to.memory = static_cast<int64_t>(hello.memory());
  to.clock_skew = link.clock_skew();
  to.reached = true;
}

// The link from `from` to the next stage, as `from` measures it.
LinkMeasure measure_pair(const DiagnosisOptions& options, const ClusterNode& from, const ClusterNode& to) {
  ObserverLink link(options.observer, from);
  wire::Control question;
  wire::MeasureLink& wanted = *question.mutable_measure_link();
  wanted.set_node(to.id);
  wanted.set_address(to.address);
  wanted.set_bytes(options.bytes);
  wanted.set_repeats(options.repeats);
  const wire::Control answer = link.ask(question, kPairSeconds);
  if (!answer.has_measured_link()) fail(ErrorKind::bad_input, "doctor", "wanted a measurement, found another message");
  const wire::MeasuredLink& measured = answer.measured_link();
  if (measured.has_failure()) from_wire(measured.failure()).raise();
  return {measured.round_trip(), measured.bandwidth()};
}

class Examination {
 public:
  explicit Examination(const DiagnosisOptions& options) : options_(options), cluster_(options.observer.cluster) {}

  Diagnosis run() {
    made_.cluster = cluster_.name;
    made_.build = options_.observer.build;
    made_.features = built_with();
    look_at_certificate();
    visit_all();
    compare();
    look_at_shards();
    for (const NodeDiagnosis& node : made_.nodes) {
      measure(cluster_.coordinator().id, node.node, node.reached, [&] {
        const ClusterNode& to = cluster_.stage(node.stage);
        return measure_link(connect_grpc({to.address, to.id}, options_.observer.security, cluster_.timeouts.connect),
                            options_.observer.link, observer_hello(options_.observer, to), options_.bytes, options_.repeats);
      });
    }
    for (size_t s = 1; s < made_.nodes.size(); ++s) {
      const bool both = made_.nodes[s - 1].reached && made_.nodes[s].reached;
      measure(made_.nodes[s - 1].node, made_.nodes[s].node, both, [&] {
        return measure_pair(options_, cluster_.stage(static_cast<int64_t>(s) - 1), cluster_.stage(static_cast<int64_t>(s)));
      });
    }
    return std::move(made_);
  }

 private:
  void warn(const std::string& place, ErrorKind kind, std::string message) {
    made_.findings.push_back({true, place, {kind, std::move(message)}});
  }
  void refuse(const std::string& place, Failure failure) { made_.findings.push_back({false, place, std::move(failure)}); }

  void look_at_certificate() {
    if (!options_.observer.security.tls()) return;
    const std::optional<Failure> failure = guard([&] {
      const auto [days, text] = expiry(options_.observer.security);
      made_.certificate = text;
      if (days < kDaysBeforeExpiry) {
        warn("here", ErrorKind::security, fmt::format("the certificate is {}, for {:.1f} more days", text, days));
      }
    });
    if (failure) refuse("here", *failure);
  }

  void visit_all() {
    made_.nodes.resize(static_cast<size_t>(cluster_.stages));
    std::vector<std::optional<Failure>> failures(made_.nodes.size());
    {
      std::vector<std::jthread> threads;
      for (size_t s = 0; s < made_.nodes.size(); ++s) {
        const ClusterNode& node = cluster_.stage(static_cast<int64_t>(s));
        NodeDiagnosis& to = made_.nodes[s];
        to.stage = static_cast<int64_t>(s);
        to.node = node.id;
        to.address = node.address;
        to.connection = connection_text(options_.observer.security, node.address);
        threads.emplace_back(
            [this, &node, &to, &failure = failures[s]] { failure = guard([&] { visit(options_, node, to); }); });
      }
    }
    for (size_t s = 0; s < failures.size(); ++s) {
      if (failures[s]) refuse(made_.nodes[s].node, *failures[s]);
    }
  }

  // What two ends must or should agree about.
  void compare() {
    std::string config = options_.config_sha256;
    std::string whose = "here";
    std::string operators;
    for (const NodeDiagnosis& node : made_.nodes) {
      if (!options_.observer.security.tls() && !is_loopback(node.address)) {
        warn(node.node, ErrorKind::security, "plaintext: whoever is on the way reads and changes what is sent");
      }
      if (!node.reached) continue;
      if (config.empty()) {
        config = node.config_sha256;
        whose = node.node;
      }
      if (node.config_sha256 != config) {
        refuse(node.node, {ErrorKind::handshake,
                           fmt::format("config.json (SHA-256): wanted {} ({}), found {}", config, whose, node.config_sha256)});
      }
      if (node.build != made_.build) {
        warn(node.node, ErrorKind::handshake, fmt::format("build: wanted {}, as here, found {}", made_.build, node.build));
      }
      if (operators.empty()) operators = node.operators;
      if (node.operators != operators) {
        warn(node.node, ErrorKind::handshake,
             fmt::format("operators: wanted {}, as the stage before, found {}: answers agree within rounding", operators,
                         node.operators));
      }
      if (std::abs(node.clock_skew) > kMostSkew) {
        warn(node.node, ErrorKind::handshake,
             fmt::format("clock: wanted at most {:.0f} s of difference, found {:+.1f} s", kMostSkew, node.clock_skew));
      }
    }
  }

  // Only where every node was reached: the plan needs the memory of all.
  void look_at_shards() {
    if (!options_.plan || !std::ranges::all_of(made_.nodes, &NodeDiagnosis::reached)) return;
    std::vector<int64_t> memory;
    for (const NodeDiagnosis& node : made_.nodes) {
      const int64_t stated = cluster_.stage(node.stage).memory_bytes;
      memory.push_back(stated > 0 ? stated : node.memory);
    }
    std::optional<wire::Plan> plan;
    const std::optional<Failure> failure = guard([&] { plan = to_wire(options_.plan(memory), 1); });
    if (failure) return refuse("plan", *failure);
    std::vector<std::optional<Failure>> failures(made_.nodes.size());
    {
      std::vector<std::jthread> threads;
      for (size_t s = 0; s < made_.nodes.size(); ++s) {
        threads.emplace_back([&, s] { failures[s] = guard([&] { made_.nodes[s].shards = survey(*plan, made_.nodes[s]); }); });
      }
    }
    std::vector<std::vector<ShardDigest>> holders;
    for (size_t s = 0; s < made_.nodes.size(); ++s) {
      if (failures[s]) refuse(made_.nodes[s].node, *failures[s]);
      holders.push_back(made_.nodes[s].shards);
    }
    for (const ShardConflict& one : shard_conflicts(holders)) {
      refuse(made_.nodes[one.second].node,
             {ErrorKind::handshake, fmt::format("shard '{}': wanted digest {}, as {} has it, found {}", one.file, one.wanted,
                                                made_.nodes[one.first].node, one.found)});
    }
  }

  [[nodiscard]] std::vector<ShardDigest> survey(const wire::Plan& plan, const NodeDiagnosis& node) const {
    ObserverLink link(options_.observer, cluster_.stage(node.stage));
    wire::Control question;
    *question.mutable_survey()->mutable_plan() = plan;
    question.mutable_survey()->set_stage(static_cast<uint32_t>(node.stage));
    const wire::Control answer = link.ask(question, cluster_.timeouts.load);
    if (!answer.has_survey_reply()) fail(ErrorKind::bad_input, "doctor", "wanted a list of shards, found another message");
    if (answer.survey_reply().has_failure()) from_wire(answer.survey_reply().failure()).raise();
    return shards_of(answer.survey_reply());
  }

  template <class Body>
  void measure(const std::string& from, const std::string& to, bool possible, Body&& body) {
    LinkDiagnosis& link = made_.links.emplace_back();
    link.from = from;
    link.to = to;
    if (!possible) return;  // that is a finding already
    const std::optional<Failure> failure = guard([&] { link.measure = body(); });
    if (failure) refuse(fmt::format("{} -> {}", from, to), *failure);
  }

  const DiagnosisOptions& options_;
  const ClusterConfig& cluster_;
  Diagnosis made_;
};

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

Diagnosis diagnose(const DiagnosisOptions& options) { return Examination(options).run(); }

std::optional<ErrorKind> Diagnosis::worst() const {
  std::vector<ErrorKind> kinds;
  for (const Finding& finding : findings) {
    if (!finding.warning) kinds.push_back(finding.failure.kind);
  }
  return worst_kind(kinds);
}

Json Diagnosis::to_json() const {
  Json made = {{"cluster", cluster}, {"build", build}, {"features", features}};
  if (!certificate.empty()) made["certificate"] = certificate;
  made["nodes"] = Json::array();
  for (const NodeDiagnosis& node : nodes) {
    Json one = {{"stage", node.stage},           {"node", node.node},
                {"address", node.address},       {"resolved", node.resolved},
                {"connection", node.connection}, {"reached", node.reached}};
    if (node.reached) {
      one["build"] = node.build;
      one["features"] = node.features;
      one["device"] = node.device;
      one["operators"] = node.operators;
      one["family"] = node.family;
      one["config_sha256"] = node.config_sha256;
      one["layers"] = node.layers;
      one["memory_bytes"] = node.memory;
      one["shards"] = Json::array();
      for (const ShardDigest& shard : node.shards) one["shards"].push_back(shard.file);
      one["clock_skew_seconds"] = node.clock_skew;
    }
    made["nodes"].push_back(std::move(one));
  }
  made["links"] = Json::array();
  for (const LinkDiagnosis& link : links) {
    Json one = {{"from", link.from}, {"to", link.to}, {"round_trip_seconds", nullptr}, {"bytes_per_second", nullptr}};
    if (link.measure) {
      one["round_trip_seconds"] = link.measure->round_trip;
      one["bytes_per_second"] = link.measure->bandwidth;
    }
    made["links"].push_back(std::move(one));
  }
  made["findings"] = Json::array();
  for (const Finding& finding : findings) {
    made["findings"].push_back({{"level", finding.warning ? "warning" : "error"},
                                {"place", finding.place},
                                {"kind", std::string(to_string(finding.failure.kind))},
                                {"message", finding.failure.message}});
  }
  return made;
}

std::string Diagnosis::to_text() const {
  std::string text =
      fmt::format("cluster {}: {}; this program: {} ({})\n", cluster, counted(std::ssize(nodes), "stage"), build, features);
  if (!certificate.empty()) text += fmt::format("certificate: {}\n", certificate);
  std::vector<std::vector<std::string>> rows;
  for (const NodeDiagnosis& node : nodes) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("{}", node.stage), node.node, node.address, or_dash(fmt::format("{}", fmt::join(node.resolved, " "))),
           node.connection};
    if (!node.reached) {
      row.resize(13, "-");
      continue;
    }
    row.insert(row.end(),
               {node.build, node.features, node.operators, human_bytes(node.memory), or_dash(node.layers),
                node.shards.empty() ? "-" : fmt::format("{}", node.shards.size()),
                fmt::format("{} {}", node.family, node.config_sha256.substr(0, 8)), fmt::format("{:+.3f} s", node.clock_skew)});
  }
  text += '\n' + text_table({{"stage", true},
                             {"node"},
                             {"address"},
                             {"resolved"},
                             {"connection"},
                             {"build"},
                             {"built with"},
                             {"operators"},
                             {"memory", true},
                             {"layers"},
                             {"shards", true},
                             {"model"},
                             {"clock", true}},
                            rows);
  rows.clear();
  for (const LinkDiagnosis& link : links) {
    rows.push_back({link.from, link.to, link.measure ? fmt::format("{:.3f} ms", 1e3 * link.measure->round_trip) : "-",
                    link.measure ? human_bytes(static_cast<int64_t>(link.measure->bandwidth)) + "/s" : "-"});
  }
  text += '\n' + text_table({{"from"}, {"to"}, {"round trip", true}, {"bandwidth", true}}, rows) + '\n';
  for (const Finding& finding : findings) {
    text +=
        printable(fmt::format("{}: {}: {}", finding.warning ? "warning" : "error", finding.place, finding.failure.message)) +
        '\n';
  }
  return text + (worst() ? "not all is well\n" : "all is well\n");
}

}  // namespace weft

#include "pipeline/remote/stage_metrics.h"

#include <arpa/inet.h>
#include <array>
#include <exception>
#include <optional>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/guard.h"
#include "pipeline/remote/messages.h"
#include "pipeline/remote/worker.h"

namespace weft {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::string_view kPlace = "metrics";
// Scrapers that read slowly, or say nothing, hold a thread each until their time is over.
constexpr const char* kThreads = "8";
constexpr const char* kRequestMs = "2000";

// One that is asked when it is scraped: there is no second copy of the figures.
class StageFigures final : public prometheus::Collectable {
 public:
  StageFigures(Worker& worker, bool insecure) : worker_(worker), insecure_(insecure) {}

  std::vector<MetricFamily> Collect() const override {
    std::vector<MetricFamily> made;
    // An exception must not reach the HTTP server.
    const std::optional<Failure> failure = guard([&] { made = families(worker_.status(), insecure_); });
    return failure ? std::vector<MetricFamily>() : made;
  }

 private:
  using Labels = std::vector<ClientMetric::Label>;

  static std::vector<MetricFamily> families(const wire::Status& status, bool insecure) {
    std::vector<MetricFamily> made;
    const std::string stage = fmt::format("{}", status.stage());
    const auto family = [&](const char* name, const char* help, MetricType type) {
      MetricFamily& one = made.emplace_back();
      one.name = name;
      one.help = help;
      one.type = type;
    };
    const auto add = [&](double value, Labels more) {
      ClientMetric& metric = made.back().metric.emplace_back();
      metric.label = {{"stage", stage}};
      metric.label.insert(metric.label.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
      if (made.back().type == MetricType::Counter) {
        metric.counter.value = value;
      } else {
        metric.gauge.value = value;
      }
    };
    const auto gauge = [&](const char* name, const char* help, double value) {
      family(name, help, MetricType::Gauge);
      add(value, {});
    };
    const auto counter = [&](const char* name, const char* help, double value) {
      family(name, help, MetricType::Counter);
      add(value, {});
    };
    const auto number = [](int64_t value) { return static_cast<double>(value); };

    family("weft_stage_up", "1: connected to a coordinator and to its neighbours, ready for steps", MetricType::Gauge);
    add(status.state() == "ready" ? 1.0 : 0.0, {{"node", status.node()}});
    family("weft_memory_bytes", "Memory of the process, by what it holds; resident and peak are those of the whole process",
           MetricType::Gauge);
    add(number(status.trunk_bytes()), {{"kind", "trunk"}});
    add(number(status.expert_bytes()), {{"kind", "experts"}});
    add(number(status.state_bytes()), {{"kind", "states"}});
    add(number(status.workspace_bytes()), {{"kind", "workspace"}});
    add(number(status.resident_bytes()), {{"kind", "resident"}});
    add(number(status.peak_bytes()), {{"kind", "peak"}});
    if (status.gpu_planned_bytes() > 0) {
      add(number(status.gpu_planned_bytes()), {{"kind", "gpu_planned"}});
      add(number(status.gpu_used_bytes()), {{"kind", "gpu_used"}});
    }
    counter("weft_compute_seconds_total", "Computing, since the stage was connected", status.compute_seconds());
    counter("weft_wait_seconds_total", "Waiting for the boundary of a step, since the stage was connected",
            status.wait_seconds());
    counter("weft_send_seconds_total", "Sending boundaries, beside computing, since the stage was connected",
            status.send_seconds());
    gauge("weft_connected_seconds", "Since the stage was connected; 0: it is not", status.up_seconds());
    family("weft_transfer_bytes_total",
           "To and from the coordinator and the neighbours, headers included, since the stage was connected",
           MetricType::Counter);
    add(number(status.bytes_sent()), {{"direction", "sent"}});
    add(number(status.bytes_received()), {{"direction", "received"}});
    counter("weft_steps_total", "Steps that were run, since the stage was connected", number(status.steps()));
    counter("weft_failures_total", "Decisions that failed", number(status.failures()));
    gauge("weft_sequences", "Sequences that have a state here", number(status.sequences()));
    gauge("weft_plan_epoch", "Of the newest plan that was loaded", static_cast<double>(status.epoch()));
    gauge("weft_insecure", "1: plaintext from other hosts is allowed", insecure ? 1.0 : 0.0);
    return made;
  }

  Worker& worker_;
  bool insecure_;
};

}  // namespace

struct StageMetrics::Impl {
  std::shared_ptr<StageFigures> figures;
  std::unique_ptr<prometheus::Exposer> exposer;  // ends before the figures
  std::string address;
};

StageMetrics::StageMetrics(const std::string& host, int port, Worker& worker, bool insecure) : impl_(std::make_unique<Impl>()) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const bool v6 = ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
  if (!v6 && ::inet_pton(AF_INET, host.c_str(), bytes.data()) != 1) {
    fail(ErrorKind::bad_input, kPlace, "wanted a numeric address to listen on, found '{}'", host);
  }
  const std::string shown = v6 ? "[" + host + "]" : host;
  impl_->figures = std::make_shared<StageFigures>(worker, insecure);
  try {
    const std::string listens = fmt::format("{}:{}", shown, port);
    impl_->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", listens, "num_threads", kThreads, "request_timeout_ms", kRequestMs, "enable_keep_alive", "no"});
  } catch (const std::exception& error) {
    fail(ErrorKind::unavailable, kPlace, "{}:{}: wanted an address to listen on, found: {}", shown, port, error.what());
  }
  impl_->exposer->RegisterCollectable(impl_->figures, "/metrics");
  const std::vector<int> ports = impl_->exposer->GetListeningPorts();
  if (ports.empty()) fail(ErrorKind::unavailable, kPlace, "{}:{}: wanted a port, found none", shown, port);
  impl_->address = fmt::format("{}:{}", shown, ports.front());
}

StageMetrics::~StageMetrics() = default;

const std::string& StageMetrics::address() const { return impl_->address; }

}  // namespace weft

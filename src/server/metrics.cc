#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace weft {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

Buckets first_token_buckets() { return {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200}; }
Buckets between_token_buckets() { return {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}; }
Buckets whole_buckets() { return {0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800}; }

}  // namespace

struct ServerMetrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter().Name("weft_requests_total").Help("HTTP requests answered").Register(registry);
  prometheus::Family<prometheus::Counter>& recoveries = prometheus::BuildCounter()
                                                            .Name("weft_parse_recoveries_total")
                                                            .Help("Model output that did not go by the book, by kind")
                                                            .Register(registry);
  prometheus::Family<prometheus::Counter>& ends =
      prometheus::BuildCounter().Name("weft_answers_total").Help("Generated answers by how they ended").Register(registry);
  prometheus::Counter& prompt = counter("weft_prompt_tokens_total", "Tokens of prompts");
  prometheus::Counter& reused = counter("weft_prompt_tokens_reused_total", "Of them, found in stored states");
  prometheus::Counter& generated = counter("weft_generation_tokens_total", "Tokens generated");
  prometheus::Counter& preemptions = counter("weft_preemptions_total", "Times that a request gave its memory to others");
  prometheus::Gauge& running = gauge("weft_requests_running", "Requests that hold memory");
  prometheus::Gauge& waiting = gauge("weft_requests_waiting", "Requests in the queue");
  prometheus::Gauge& states = gauge("weft_kv_usage_ratio", "Share of the memory for sequence states that is in use");
  prometheus::Gauge& connections = gauge("weft_connections", "Open connections");
  prometheus::Histogram& first =
      histogram("weft_time_to_first_token_seconds", "From the queue to the first token", first_token_buckets());
  prometheus::Histogram& between =
      histogram("weft_inter_token_seconds", "Between two tokens of an answer", between_token_buckets());
  prometheus::Histogram& whole =
      histogram("weft_e2e_seconds", "From a request's first byte to its answer's last", whole_buckets());

  prometheus::Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }
  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }
};

ServerMetrics::ServerMetrics() : impl_(std::make_unique<Impl>()) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::count_request(std::string_view endpoint, int status, double seconds) {
  impl_->requests.Add({{"endpoint", std::string(endpoint)}, {"status", std::to_string(status)}}).Increment();
  impl_->whole.Observe(seconds);
}

void ServerMetrics::count_answer(const RequestReport& report) {
  const auto name = [&] {
    switch (report.end) {
      case RequestEnd::stop: return "stop";
      case RequestEnd::length: return "length";
      case RequestEnd::cancelled: return "cancelled";
      case RequestEnd::timeout: return "timeout";
      case RequestEnd::failed: break;
    }
    return "failed";
  };
  impl_->ends.Add({{"end", name()}}).Increment();
  impl_->prompt.Increment(static_cast<double>(report.prompt_tokens));
  impl_->reused.Increment(static_cast<double>(report.reused_tokens));
  impl_->preemptions.Increment(static_cast<double>(report.preemptions));
}

void ServerMetrics::count_recoveries(const ParserCounters& counters) {
  const auto add = [&](const char* kind, int64_t count) {
    if (count > 0) impl_->recoveries.Add({{"kind", kind}}).Increment(static_cast<double>(count));
  };
  add("stray_marker", counters.stray_markers);
  add("skipped_think_channel", counters.recoveries);
  add("abandoned_call", counters.abandoned_calls);
  add("discarded_call", counters.discarded_calls);
  add("dropped_tail", counters.dropped_tail_bytes > 0 ? 1 : 0);
}

void ServerMetrics::count_token(double seconds, bool first) {
  impl_->generated.Increment();
  (first ? impl_->first : impl_->between).Observe(seconds);
}

int64_t ServerMetrics::generated_so_far() const { return static_cast<int64_t>(impl_->generated.Value()); }

std::string ServerMetrics::text(const LoadFigures& load) const {
  impl_->running.Set(static_cast<double>(load.running));
  impl_->waiting.Set(static_cast<double>(load.waiting));
  impl_->states.Set(load.state_share);
  impl_->connections.Set(static_cast<double>(load.connections));
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace weft

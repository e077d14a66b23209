#include "server/serving.h"

#include <chrono>
#include <utility>

#include "base/guard.h"

namespace weft {
namespace {

constexpr std::chrono::seconds kLastWords{2};  // of answers that are cut off

}  // namespace

Serving::Serving(const Model& model, api::Router& router, http::Server& server, ServerMetrics& metrics,
                 const EngineOptions& engine_options, api::ServiceOptions service_options, StatusOptions status_options)
    : server_(server),
      engine_(model.executor(), engine_options),
      service_(model, engine_, metrics, std::move(service_options)),
      status_(model, engine_, metrics, std::move(status_options)) {
  router.open(service_, status_);
}

// The engine first: the ends of its requests are written by the service, and told by the server.
Serving::~Serving() {
  static_cast<void>(guard([&] { engine_.stop(); }));
  static_cast<void>(guard([&] { static_cast<void>(server_.wait_until_idle(kLastWords)); }));
  static_cast<void>(guard([&] { server_.stop(); }));
}

}  // namespace weft

// A model behind an HTTP server, from the moment when it is ready.
//
//     api::Router router(router_options, metrics);
//     http::Server server(http_options, router);  // answers 503 (loading)
//     const std::unique_ptr<Model> model = Model::load(...);
//     Serving serving(*model, router, server, metrics, engine_options, service_options, status_options);
//     ...                                         // until the end
//     serving.drain();
//     server.wait_until_idle(grace);
//
// However it ends, by an exception too, no request comes to what is gone: the server stops with this object, before its parts.
#pragma once

#include <cstdint>

#include "engine/engine_thread.h"
#include "server/api/router.h"
#include "server/http/server.h"
#include "server/status.h"

namespace weft {

class Serving {
 public:
  // All outlive it. Errors: EngineThread.
  Serving(const Model& model, api::Router& router, http::Server& server, ServerMetrics& metrics,
          const EngineOptions& engine_options, api::ServiceOptions service_options, StatusOptions status_options);
  // Cancels what is under way, gives its clients a moment to hear of it, and stops the server.
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  [[nodiscard]] int64_t context() const { return service_.context(); }  // tokens
  // No new requests any more; those under way go on.
  void drain() { service_.drain(); }

 private:
  http::Server& server_;
  EngineThread engine_;
  api::Service service_;
  StatusReport status_;
};

}  // namespace weft

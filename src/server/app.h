// The application behind the transport: routing, access, the state of the server, errors in the shape of the
// API in use, metrics and the access log.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/access.h"
#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/routes.h"

namespace gem::server {

struct AppOptions {
  AccessOptions access = {};
  std::string prefix = {};     // of every path: "/gem"; empty: none. Begins with a slash and ends without one
  std::string server = "gem";  // the Server header
};

class App : public HttpApp {
 public:
  // Metrics must outlive it. Error(kUsage) for options that cannot be.
  App(AppOptions options, Metrics& metrics, AccessLog log);

  // Until then, what needs the model answers 503 "Loading model".
  void serve(ApiContext context);
  // From now on, what makes work answers 503; everything else goes on.
  void drain();

  std::optional<HttpResponse> admit(const HttpRequest& head) override;
  Reply handle(HttpRequest request) override;
  HttpResponse refuse(const HttpRequest* head, int status, const std::string& message) override;
  void decorate(const HttpRequest& request, HttpResponse& response) override;
  void finished(const ExchangeRecord& record) override;

 private:
  // The path below the prefix; nothing when it is not below it.
  std::optional<std::string_view> local_path(std::string_view path) const;
  ErrorShape shape_of(const HttpRequest& request) const;
  std::optional<ApiError> check(const HttpRequest& head, const Route& route) const;
  HttpResponse own(std::string_view path) const;
  std::shared_ptr<const ApiContext> context() const;

  AppOptions options_;
  AccessGuard guard_;
  Metrics& metrics_;
  AccessLog log_;
  std::atomic<bool> draining_{false};
  mutable std::mutex context_mutex_;
  std::shared_ptr<const ApiContext> context_;  // null: loading
};

}  // namespace gem::server

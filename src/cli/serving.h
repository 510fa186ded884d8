// A server from its options: transport, application, model, service, in the order in which they start and
// stop.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cli/server_options.h"
#include "cli/signals.h"
#include "engine/session.h"
#include "server/app.h"
#include "server/http/http_server.h"
#include "server/metrics.h"
#include "server/service.h"

namespace gem::cli {

class Serving {
 public:
  // Listens at once and answers 503 until the model is open. Error(kUsage) for options that cannot be,
  // Error(kFailed) where the address cannot be had. The log must be set up.
  explicit Serving(const ServerOptions& options);
  ~Serving();  // stop()
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Opens the model and starts to serve; blocks. Throws as Session::open.
  void load();
  // The same while signals are heeded: one that comes meanwhile ends the process, by that signal. Later
  // `signals` are woken when the device is lost.
  void load(SignalQueue& signals);
  // Why nothing can be served any more, once the device is lost; else empty.
  std::string lost() const;

  std::string address() const { return http_->address(); }
  std::uint16_t port() const { return http_->port(); }
  const std::string& model_name() const { return name_; }
  // After load(): what is served, in a line.
  std::string description() const;

  // Lets what runs come to its end, new requests get 503. False when a further signal came, or the time was
  // up, before everything had ended.
  bool drain(std::chrono::milliseconds limit, SignalQueue& signals);
  void stop();

 private:
  ServerOptions options_;
  std::string name_;
  mutable std::mutex mutex_;
  std::string lost_;
  std::function<void()> wake_;
  server::Metrics metrics_;
  server::App app_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace gem::cli

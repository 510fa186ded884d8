// What lives as long as one exchange of a connection, and the two that may outlive it. Internal to the
// transport.
#pragma once

#include <spdlog/spdlog.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/http/connection.h"

namespace gem::server {

// From the request's first byte to the end of its reply: tells the application once, however it ends.
class Connection::Exchange {
 public:
  Exchange(HttpApp& app, const std::string& peer, Clock::time_point began) : app_(app), began_(began) {
    record.peer = peer;
    record.aborted = true;
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    record.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    try {
      app_.finished(record);
    } catch (const std::exception& e) {
      spdlog::error("the access record of {} {} is lost: {}", record.method, record.path, e.what());
    }
  }

  ExchangeRecord record;
  int status = 0;  // goes to the record with the first byte

 private:
  HttpApp& app_;
  const Clock::time_point began_;
};

// A request at a worker. The connection may be gone when the reply comes; the reply then dies on the I/O
// thread, which ends the work behind it.
class Connection::Call : public std::enable_shared_from_this<Connection::Call> {
 public:
  Call(Connection& connection, HttpRequest request)
      : app_(connection.transport_.app),
        io_(connection.transport_.io),
        connection_(&connection),
        request_(std::move(request)) {}

  // On a worker.
  void run() {
    Reply result;
    bool threw = false;
    try {
      result = app_.handle(std::move(request_));
    } catch (const std::exception& e) {
      spdlog::error("a request failed: {}", e.what());
      threw = true;
    } catch (...) {
      spdlog::error("a request failed");
      threw = true;
    }
    asio::post(io_, [self = shared_from_this(), result = std::move(result), threw]() mutable {
      if (self->connection_ == nullptr) return;
      self->failed = threw;
      self->reply = std::move(result);
      self->connection_->notify();
    });
  }

  void detach() { connection_ = nullptr; }

  std::optional<Reply> reply;
  bool failed = false;

 private:
  HttpApp& app_;
  asio::io_context& io_;
  Connection* connection_;  // I/O thread only
  HttpRequest request_;
};

// What a source holds to call us with: from any thread, at any time, also when both the connection and the
// server are gone.
class Connection::Wake : public std::enable_shared_from_this<Connection::Wake> {
 public:
  explicit Wake(Connection& connection) : connection_(&connection) {}

  void ring() {
    if (rung_.exchange(true)) return;  // one is on its way
    const std::lock_guard lock(mutex_);
    if (connection_ == nullptr) return;
    asio::post(connection_->transport_.io, [self = shared_from_this()] {
      self->rung_ = false;
      self->ready = true;
      if (self->connection_ != nullptr) self->connection_->notify();
    });
  }

  void detach() {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
  }

  std::function<void()> function() {
    return [self = shared_from_this()] { self->ring(); };
  }

  bool ready = true;  // I/O thread only: the source is to be asked

 private:
  std::mutex mutex_;
  std::atomic<bool> rung_{false};
  Connection* connection_;  // changed on the I/O thread, under the mutex
};

// Detaches what may call a connection when the coroutine leaves the scope.
template <typename T>
class Attached {
 public:
  explicit Attached(std::shared_ptr<T> object) : object_(std::move(object)) {}
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  ~Attached() { object_->detach(); }
  T* operator->() const { return object_.get(); }
  const std::shared_ptr<T>& get() const { return object_; }

 private:
  std::shared_ptr<T> object_;
};

}  // namespace gem::server

#include "server/http/http_server.h"

#include "server/http/connection.h"  // before Asio's own headers

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/http/listener.h"

namespace gem::server {
namespace {

using std::chrono::milliseconds;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, IoExecutor>;
constexpr asio::use_awaitable_t<IoExecutor> kAwait{};

// After a failed accept (no descriptors or memory left): the connection stays in the kernel's queue.
constexpr milliseconds kAcceptPause{100};
// Connections beyond the limit that are told so at the same time; those beyond that are just closed.
constexpr std::size_t kMaxTurnedAway = 64;

// A client that is cut off without a word (a cable, a suspended machine) would hold its stream for as long as
// nothing is written to it; the kernel asks after a minute, and gives up after another.
void keep_probing(int fd) {
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
}

}  // namespace

struct HttpServer::Impl {
  HttpApp& app;
  const HttpOptions options;
  std::string address;
  std::uint16_t port = 0;
  SocketFile socket_file;

  asio::io_context io{1};
  asio::executor_work_guard<IoExecutor> work{io.get_executor()};
  asio::thread_pool workers;
  Transport transport;
  std::thread io_thread;

  // On the I/O thread.
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::vector<std::unique_ptr<Timer>> accept_pauses;
  std::unordered_set<Connection*> connections;  // each is kept by its coroutine
  std::size_t turned_away = 0;
  bool stopped_accepting = false;

  std::atomic<std::size_t> served{0};
  std::mutex mutex;
  std::condition_variable gone;
  std::size_t alive = 0;  // served ones and those being turned away
  bool drain_asked = false, drain_begun = false;

  enum class State { kReady, kRunning, kStopped };
  std::mutex state_mutex;  // held by start() and stop() throughout
  State state = State::kReady;

  Impl(HttpApp& application, HttpOptions given)
      : app(application),
        options(std::move(given)),
        workers(std::max(1U, options.workers)),
        transport{app, options, io, workers, false, 0, {}} {
    Listeners listeners = listen_on(options.host, options.port);
    address = listeners.address;
    port = listeners.port;
    for (ListeningSocket& socket : listeners.sockets) {
      if (socket.family == AF_UNIX) socket_file = SocketFile(options.host);
      auto acceptor = std::make_unique<Acceptor>(io);
      acceptor->assign(asio::generic::stream_protocol(socket.family, 0), socket.fd.get());
      socket.fd.release();
      acceptors.push_back(std::move(acceptor));
      accept_pauses.push_back(std::make_unique<Timer>(io));
    }
  }

  void run() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception& e) {
        spdlog::error("the HTTP transport goes on after: {}", e.what());
      }
    }
  }

  Task<void> accept_from(Acceptor& acceptor, Timer& pause) {
    bool complained = false;
    while (!stopped_accepting) {
      Socket socket(io.get_executor());
      boost::system::error_code ec;
      co_await acceptor.async_accept(socket, asio::redirect_error(kAwait, ec));
      if (stopped_accepting || ec == asio::error::operation_aborted) break;
      if (ec == asio::error::connection_aborted) continue;  // the client was faster
      if (ec) {
        if (!complained) spdlog::warn("cannot accept connections at the moment: {}", ec.message());
        complained = true;
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(kAwait, ec));
        continue;
      }
      complained = false;
      try {
        admit(std::move(socket));
      } catch (const std::exception& e) {
        spdlog::error("a connection is lost: {}", e.what());
      }
    }
  }

  void count(bool excess, int change) {
    if (excess) {
      turned_away += static_cast<std::size_t>(change);
    } else {
      served += static_cast<std::size_t>(change);
    }
    const std::lock_guard lock(mutex);
    alive += static_cast<std::size_t>(change);
    if (alive == 0) gone.notify_all();
  }

  void admit(Socket socket) {
    boost::system::error_code ec;
    socket.non_blocking(true, ec);
    if (ec) return;
    const int fd = socket.native_handle();
    std::string peer = peer_name(fd);
    // A token is sent when it is there; and what the kernel holds of an unread stream is bounded, too.
    if (peer != "unix") {
      socket.set_option(asio::ip::tcp::no_delay(true), ec);
      keep_probing(fd);
    }
    socket.set_option(asio::socket_base::send_buffer_size(static_cast<int>(
                          std::min<std::size_t>(options.send_buffer_bytes, std::size_t{1} << 30))),
                      ec);
    const bool excess = served >= options.max_connections;
    if (excess && turned_away >= kMaxTurnedAway) return;
    auto connection = std::make_shared<Connection>(transport, std::move(socket), std::move(peer));
    Connection* const key = connection.get();
    connections.insert(key);
    count(excess, 1);
    asio::co_spawn(io.get_executor(), excess ? connection->turn_away() : connection->serve(),
                   [this, connection, key, excess](const std::exception_ptr&) {
                     connections.erase(key);
                     count(excess, -1);
                   });
  }

  void stop_accepting() {
    stopped_accepting = true;
    boost::system::error_code ignored;
    for (auto& acceptor : acceptors) acceptor->close(ignored);
    for (auto& pause : accept_pauses) pause->cancel();
    socket_file.remove();
  }

  void begin_drain() {
    stop_accepting();
    transport.draining = true;
    for (Connection* connection : connections) connection->notify();
    const std::lock_guard lock(mutex);
    drain_begun = true;
    gone.notify_all();
  }

  void close_everything() {
    stop_accepting();
    transport.draining = true;
    for (Connection* connection : connections) connection->close();
  }
};

HttpServer::HttpServer(HttpApp& app, HttpOptions options) {
  try {
    impl_ = std::make_unique<Impl>(app, std::move(options));
  } catch (const std::system_error& e) {
    fail(ErrorCode::kFailed, "cannot start the HTTP server: {}", e.what());
  }
}

HttpServer::~HttpServer() {
  stop();
}

std::uint16_t HttpServer::port() const {
  return impl_->port;
}

std::string HttpServer::address() const {
  return impl_->address;
}

void HttpServer::start() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.state_mutex);
  if (impl.state != Impl::State::kReady) return;
  for (std::size_t i = 0; i < impl.acceptors.size(); ++i) {
    asio::co_spawn(impl.io.get_executor(), impl.accept_from(*impl.acceptors[i], *impl.accept_pauses[i]),
                   [](const std::exception_ptr&) {});
  }
  try {
    impl.io_thread = std::thread([&impl] { impl.run(); });
  } catch (const std::system_error& e) {
    fail(ErrorCode::kFailed, "cannot start the HTTP server: {}", e.what());
  }
  impl.state = Impl::State::kRunning;
}

void HttpServer::drain() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  if (std::exchange(impl.drain_asked, true)) return;
  asio::post(impl.io, [&impl] { impl.begin_drain(); });
}

bool HttpServer::wait_until_drained(std::chrono::milliseconds limit) {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  return impl.gone.wait_for(lock, limit,
                            [&] { return impl.alive == 0 && impl.drain_begun == impl.drain_asked; });
}

void HttpServer::stop() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.state_mutex);
  if (impl.state == Impl::State::kRunning) {
    // Calls that wait are never made; those that are running end first, and their results are dropped.
    impl.workers.stop();
    asio::post(impl.io, [&impl] { impl.close_everything(); });
    impl.workers.join();
    impl.work.reset();
    impl.io_thread.join();
  } else if (impl.state == Impl::State::kReady) {
    impl.stop_accepting();
  }
  impl.state = Impl::State::kStopped;
  const std::lock_guard drained(impl.mutex);
  impl.drain_begun = impl.drain_asked = true;
}

std::size_t HttpServer::connections() const {
  return impl_->served;
}

}  // namespace gem::server

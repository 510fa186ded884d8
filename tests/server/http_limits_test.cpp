// Hostile and broken clients: cases 39 to 41 of the list in the specification, and keep-alive after refusals.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http_fixture.h"

namespace gem::server::http_test {
namespace {

const std::string kHead = "POST /echo HTTP/1.1\r\nHost: x\r\n";

// A refusal that ends the connection: the client sees status and message, then the end, never a reset
// instead.
void expect_refused(Running& run, const std::string& text, int status, const std::string& words) {
  Client client = run.client();
  std::thread sender([&] {
    client.send(text);  // perhaps cut short
    client.half_close();
  });
  const Received reply = client.receive();
  EXPECT_EQ(reply.status, status) << text.substr(0, 100);
  EXPECT_TRUE(reply.whole);
  EXPECT_NE(reply.body.find(words), std::string::npos) << reply.body;
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_EQ(reply.header("Server"), "fake");
  sender.join();
  EXPECT_TRUE(client.at_end());
}

TEST(HttpLimits, HeadersByCountAndSize) {
  Running run;
  run.start();
  std::string many = kHead;
  for (int i = 0; i < 100'000; ++i) many += "X-" + std::to_string(i) + ": 1\r\n";
  expect_refused(run, many + "\r\n", 431, "headers");
  expect_refused(run, kHead + "X: " + std::string(1 << 20, 'x') + "\r\n\r\n", 431, "larger than 32768 bytes");
  expect_refused(run, "GET /" + std::string(1 << 20, 'x') + " HTTP/1.1\r\n", 431, "larger than 32768 bytes");
  std::string exactly = kHead;
  for (int i = 0; i < 100; ++i) exactly += "X: 1\r\n";
  expect_refused(run, exactly + "\r\n", 431, "more than 100 headers");
  const auto records = run.app.records(4);
  ASSERT_EQ(records.size(), 4u);
  for (const ExchangeRecord& record : records) EXPECT_EQ(record.status, 431);
}

TEST(HttpLimits, HeadersThatNeverEnd) {
  HttpOptions options = quick_options();
  options.header_timeout = 80ms;
  Running run(options);
  run.start();
  Client client = run.client();
  ASSERT_TRUE(client.send(kHead));
  // A header now and then does not extend the time.
  std::atomic<bool> enough{false};
  std::thread loris([&] {
    while (!enough && client.send("X: 1\r\n")) ::poll(nullptr, 0, 20);
  });
  const auto began = steady_clock::now();
  const Received reply = client.receive();
  EXPECT_LT(steady_clock::now() - began, 10s);
  EXPECT_EQ(reply.status, 408);
  EXPECT_EQ(reply.body, "/echo: the request's headers did not come in time");
  enough = true;
  loris.join();
}

TEST(HttpLimits, LengthsThatContradict) {
  Running run;
  run.start();
  expect_refused(run, kHead + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
                 "/echo: Transfer-Encoding");
  expect_refused(run, kHead + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400,
                 "/echo: Content-Length");
  expect_refused(run, kHead + "Content-Length: 3\r\nContent-Length: 30\r\n\r\nabc", 400, "two different");
  expect_refused(run, kHead + "Content-Length: -3\r\n\r\nabc", 400, "not a number");
  expect_refused(run, kHead + "Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc", 400, "malformed chunk");
  expect_refused(run, "garbage\r\n\r\n", 400, "?: ");
  expect_refused(run, kHead + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "chunked");
  expect_refused(run, "GET / HTTP/3.0\r\n\r\n", 505, "HTTP/1.1");
  EXPECT_EQ(run.app.handled.count(), 0);
}

TEST(HttpLimits, BodiesOverTheCap) {
  HttpOptions options = quick_options();
  options.max_body_bytes = 1 << 20;
  Running run(options);
  run.start();
  const std::string large(20 << 20, 'x');
  // Its whole body is sent before anybody looks for an answer, as many clients do: they see it all the same.
  Client client = run.client();
  EXPECT_TRUE(client.send(kHead + "Content-Length: " + std::to_string(large.size()) + "\r\n\r\n" + large));
  const Received reply = client.receive();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.body, "/echo: the body is larger than 1048576 bytes");
  client.close();
  std::string chunked = kHead + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40; ++i) chunked += "8000\r\n" + std::string(0x8000, 'x') + "\r\n";
  expect_refused(run, chunked, 413, "larger than 1048576 bytes");
  // One that only announces a huge body costs nothing at all.
  expect_refused(run, kHead + "Content-Length: 18446744073709551615\r\n\r\n", 413, "larger");
  EXPECT_EQ(run.app.handled.count(), 0);
}

TEST(HttpLimits, BodiesOfAllConnectionsTogether) {
  HttpOptions options = quick_options();
  options.max_total_body_bytes = 300'000;
  Running run(options);
  run.start();
  const std::string half(200'000, 'x');
  Client first = run.client();
  first.send(kHead + "Content-Length: 200001\r\n\r\n" + half);
  Client second = run.client();
  second.send(kHead + "Content-Length: 200001\r\n\r\n" + half);
  // One of them is refused, whichever came later; the other goes on.
  pollfd both[2] = {{first.fd(), POLLIN, 0}, {second.fd(), POLLIN, 0}};
  ASSERT_EQ(::poll(both, 2, static_cast<int>(kPatience.count())), 1);
  Client& refused = (both[0].revents != 0) ? first : second;
  Client& other = (both[0].revents != 0) ? second : first;
  EXPECT_EQ(refused.receive().status, 503);
  other.send("x");
  EXPECT_EQ(other.receive().status, 200);
  // The room is free again.
  Client third = run.client();
  third.send(kHead + "Content-Length: 200000\r\n\r\n" + half);
  EXPECT_EQ(third.receive().status, 200);
}

TEST(HttpLimits, BodiesThatDoNotCome) {
  HttpOptions options = quick_options();
  options.body_timeout = 60ms;
  Running run(options);
  run.start();
  Client client = run.client();
  client.send(kHead + "Content-Length: 10\r\n\r\n12345");
  EXPECT_EQ(client.receive().status, 408);
}

// Longer than the time limit, but there is progress.
TEST(HttpLimits, BodiesThatComeSlowly) {
  HttpOptions options = quick_options();
  options.body_timeout = 1s;
  Running run(options);
  run.start();
  Client client = run.client();
  client.send(kHead + "Content-Length: 12\r\n\r\n");
  for (int i = 0; i < 12; ++i) {
    ::poll(nullptr, 0, 100);
    client.send("x");
  }
  EXPECT_EQ(client.receive().body, "POST xxxxxxxxxxxx");
}

// Case 41: what is not decompressed cannot explode.
TEST(HttpLimits, CodedBodies) {
  Running run;
  run.start();
  Client client = run.client();
  for (const char* coding : {"gzip", "br", "zstd", "deflate, gzip"}) {
    client.send(kHead + "Content-Encoding: " + coding + "\r\nContent-Length: 6\r\n\r\nabcdef");
    const Received reply = client.receive();
    EXPECT_EQ(reply.status, 415);
    EXPECT_EQ(reply.header("Connection"), "") << "the connection goes on";
  }
  client.send(kHead + "Content-Encoding: identity\r\nContent-Length: 6\r\n\r\nabcdef");
  EXPECT_EQ(client.receive().body, "POST abcdef");
}

// The connection goes on after whatever can be refused while the request's end is known.
TEST(HttpLimits, KeepAliveAfterEveryRefusal) {
  HttpOptions options = quick_options();
  options.max_body_bytes = 1000;
  Running run(options);
  run.app.route("/teapot", [](HttpRequest) {
    HttpResponse response;
    response.status = 400;
    return Reply(std::move(response));
  });
  run.start();
  const std::string body(5000, 'b');
  const std::string length = "Content-Length: 5000\r\n\r\n" + body;
  const std::string chunks = "Transfer-Encoding: chunked\r\n\r\n1388\r\n" + body + "\r\n0\r\nX: y\r\n\r\n";
  const std::vector<std::pair<int, std::string>> cases = {
      {404, "POST /no HTTP/1.1\r\nHost: x\r\n" + length},  // refused on sight
      {404, "POST /no HTTP/1.1\r\nHost: x\r\n" + chunks},
      {404, "GET /no HTTP/1.1\r\nHost: x\r\n\r\n"},
      {413, kHead + length},  // too large, but small enough to read
      {415, kHead + "Content-Encoding: gzip\r\n" + length},
      {415, kHead + "Content-Encoding: gzip\r\n" + chunks},
      {417, kHead + "Expect: miracles\r\n" + length},
      {400, "POST /teapot HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"},  // by the application
  };
  Client client = run.client();
  for (const auto& [status, text] : cases) {
    ASSERT_TRUE(client.send(text));
    const Received reply = client.receive();
    EXPECT_EQ(reply.status, status) << text.substr(0, 100);
    EXPECT_EQ(reply.header("Connection"), "") << text.substr(0, 100);
    client.send(kHead + "Content-Length: 2\r\n\r\nok");
    ASSERT_EQ(client.receive().body, "POST ok") << "after " << text.substr(0, 100);
  }
  EXPECT_EQ(run.server.connections(), 1u);
  EXPECT_EQ(run.app.records(2 * cases.size()).size(), 2 * cases.size());
}

TEST(HttpLimits, ARefusedLargeBodyEndsTheConnectionAfterTheAnswer) {
  Running run;
  run.start();
  const std::string large(4 << 20, 'x');
  Client client = run.client();
  EXPECT_TRUE(client.send("POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(large.size()) +
                          "\r\n\r\n" + large));
  const Received reply = client.receive();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(HttpLimits, ConnectionsBeyondTheLimitAreToldSo) {
  HttpOptions options = quick_options();
  options.max_connections = 3;
  Running run(options);
  run.start();
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(run.client());
    EXPECT_EQ(clients.back().get("/echo").status, 200);
  }
  Client excess = run.client();
  excess.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  const Received reply = excess.receive();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "?: too many connections");
  EXPECT_TRUE(excess.at_end());
  EXPECT_EQ(run.server.connections(), 3u);
  clients.pop_back();
  ASSERT_TRUE(eventually([&] { return run.server.connections() == 2; }));
  EXPECT_EQ(run.client().get("/echo").status, 200);
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(HttpLimits, WithoutFileDescriptorsItWaitsInsteadOfSpinning) {
  // UBSan looks at an object through a pipe before it trusts its type, and there will be no pipes. So the
  // logger is seen now, once, and has nothing to format later. (And before there are threads: spdlog's
  // library is not built for TSan, which would take its making of the logger for a race.)
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  spdlog::debug("seen");
  Running run;
  run.start();
  Client settled = run.client();
  EXPECT_EQ(settled.get("/echo").status, 200);
  const int spare = ::dup(0);
  std::optional<Client> waiting;
  {
    // The client's own socket is the last one: the kernel completes the connection, accept() cannot.
    const int last = ::dup(spare);
    ::close(last);
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    rlimit now = before;
    now.rlim_cur = static_cast<rlim_t>(last) + 1;
    ::setrlimit(RLIMIT_NOFILE, &now);
    waiting.emplace(run.server.port());
    const double used = processor_seconds();
    EXPECT_TRUE(waiting->connected());
    waiting->send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(waiting->silent_for(500ms));
    EXPECT_LT(processor_seconds() - used, 0.02) << "a spinning thread takes all it can get";
    EXPECT_EQ(settled.get("/echo").status, 200) << "those who are in are served";
    ::setrlimit(RLIMIT_NOFILE, &before);
  }
  EXPECT_EQ(waiting->receive().status, 200);
  spdlog::set_level(level);
  ::close(spare);
}

// ---- clients that vanish (case 46)
// ---------------------------------------------------------------------------

TEST(HttpVanishing, BeforeTheRequestIsWhole) {
  Running run;
  run.start();
  for (const bool reset : {false, true}) {
    for (const std::string& text :
         {std::string(), std::string("POS"), kHead, kHead + "Content-Length: 10\r\n\r\n12345",
          kHead + "Transfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
      Client client = run.client();
      client.send(text);
      ASSERT_TRUE(eventually([&] { return run.server.connections() == 1; }));
      if (reset) {
        client.reset();
      } else {
        client.close();
      }
      ASSERT_TRUE(eventually([&] { return run.server.connections() == 0; })) << text;
    }
  }
  // Those that had said what they wanted are recorded: left before a status was sent.
  const auto records = run.app.records(4);
  EXPECT_EQ(records.size(), 4u);
  for (const ExchangeRecord& record : records) {
    EXPECT_EQ(record.path, "/echo");
    EXPECT_EQ(record.status, 0);
    EXPECT_TRUE(record.aborted);
  }
  EXPECT_EQ(run.app.handled.count(), 0);
}

TEST(HttpVanishing, WhileTheWorkerIsAtIt) {
  Running run;
  Latch inside, leave;
  auto feed = std::make_shared<Feed>();
  int turn = 0;
  run.app.route("/slow", [&](HttpRequest) {
    inside.add();
    EXPECT_TRUE(leave.wait_for(++turn));
    return turn % 2 == 0 ? event_reply(feed) : pending_reply(feed);
  });
  run.start();
  for (int i = 1; i <= 4; ++i) {
    Client client = run.client();
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(inside.wait_for(i));
    if (i <= 2) {
      client.close();
    } else {
      client.reset();
      EXPECT_TRUE(eventually([&] { return run.server.connections() == 0; })) << "a reset shows at once";
    }
    leave.add();
    EXPECT_TRUE(feed->destroyed.wait_for(i)) << "the reply dies as soon as it is there";
    EXPECT_TRUE(eventually([&] { return run.server.connections() == 0; }));
  }
  EXPECT_EQ(feed->pulls.count(), 0);
  for (const ExchangeRecord& record : run.app.records(4)) {
    EXPECT_EQ(record.status, 0);
    EXPECT_TRUE(record.aborted);
  }
}

TEST(HttpVanishing, AHalfClosedClientGetsItsPlainAnswer) {
  Running run;
  run.start();
  Client client = run.client();
  client.send(kHead + "Content-Length: 2\r\n\r\nhi" + kHead + "Content-Length: 3\r\n\r\nyou");
  client.half_close();
  EXPECT_EQ(client.receive().body, "POST hi");
  EXPECT_EQ(client.receive().body, "POST you");
  EXPECT_TRUE(client.at_end());
}

TEST(HttpVanishing, WhileAPendingReplyIsAwaited) {
  Running run;
  auto feed = std::make_shared<Feed>();
  run.app.route("/later", [&](HttpRequest) { return pending_reply(feed); });
  run.start();
  int ended = 0;
  for (const char* how : {"close", "reset", "half"}) {
    Client client = run.client();
    client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(feed->attached.wait_for(ended + 1));
    if (how[0] == 'c') client.close();
    if (how[0] == 'r') client.reset();
    if (how[0] == 'h') client.half_close();
    EXPECT_TRUE(feed->destroyed.wait_for(++ended)) << how;
    EXPECT_TRUE(eventually([&] { return run.server.connections() == 0; }));
  }
  for (const ExchangeRecord& record : run.app.records(3)) {
    EXPECT_EQ(record.status, 0);
    EXPECT_TRUE(record.aborted);
  }
}

TEST(HttpVanishing, AClientThatDoesNotReadItsAnswerIsDropped) {
  HttpOptions options = quick_options();
  options.write_timeout = 100ms;
  options.send_buffer_bytes = 16 << 10;
  Running run(options);
  run.app.route("/large", [](HttpRequest) {
    HttpResponse response;
    response.body.assign(32 << 20, 'x');
    return Reply(std::move(response));
  });
  run.start();
  Client client = run.client(8 << 10);
  client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto records = run.app.records(1);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].status, 200);
  EXPECT_TRUE(records[0].aborted);
  EXPECT_LT(records[0].bytes_out, 32u << 20);
  EXPECT_TRUE(eventually([&] { return run.server.connections() == 0; }));
}

}  // namespace
}  // namespace gem::server::http_test

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/request_parser.h"
#include "server/http/request_target.h"

namespace gem::server {
namespace {

using namespace std::string_literals;

// Feeds the text in pieces of that size, as a connection does: what is left over is given again.
void feed(RequestParser& parser, const std::string& text, std::size_t piece) {
  std::string pending;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    pending += text.substr(at, piece);
    for (;;) {
      const bool head_before = parser.head_done();
      pending.erase(0, parser.put(pending));
      if (parser.done() || parser.fault()) return;
      if (head_before == parser.head_done()) break;
    }
  }
}

int status_of(const std::string& text, const RequestLimits& limits = {}) {
  int status = -1;
  for (const std::size_t piece : {text.size(), std::size_t{1}, std::size_t{7}}) {
    RequestParser parser(limits);
    feed(parser, text, piece);
    const int found = parser.fault() ? parser.fault()->status : parser.done() ? 200 : 0;
    if (status == -1) status = found;
    EXPECT_EQ(found, status) << "in pieces of " << piece << ": " << text.substr(0, 200);
  }
  return status;
}

TEST(HttpRequestParser, TakesARequestApartWhateverThePieces) {
  const std::string text =
      "POST /v1/chat%20x?a=1&b=two+words&c HTTP/1.1\r\nHost: here\r\nX-Many: 1\r\ncontent-type: a/b\r\n"
      "X-Many: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nX-Trailer: "
      "t\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser({});
    feed(parser, text, piece);
    ASSERT_TRUE(parser.done()) << piece << " " << (parser.fault() ? parser.fault()->message : "");
    const HttpRequest& request = *parser.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/chat x");
    ASSERT_EQ(request.query.size(), 3u);
    EXPECT_EQ(request.query_value("b"), "two words");
    EXPECT_EQ(request.query_value("c"), "");
    EXPECT_EQ(request.header("Content-Type"), "a/b");
    EXPECT_EQ(request.header("x-many"), "1");
    EXPECT_EQ(request.header("X-Trailer"), "") << "a trailer must not pass for a header";
    EXPECT_EQ(request.body, "hello, world");
  }
}

TEST(HttpRequestParser, LeavesWhatFollowsTheRequest) {
  RequestParser parser({});
  const std::string text =
      "\r\n\r\nPOST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n";
  std::size_t taken = parser.put(text);
  EXPECT_TRUE(parser.head_done());
  EXPECT_FALSE(parser.done());
  taken += parser.put(std::string_view(text).substr(taken));
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(text.substr(taken), "GET / HTTP/1.1\r\n");
}

TEST(HttpRequestParser, RefusesWhatLeavesTheBodysEndInDoubt) {
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(status_of(post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 3, 4\r\n\r\nabc"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"), 200);
  for (const char* length :
       {"-1", "", "0x10", "+3", "3.0", "1e3", "18446744073709551616", "99999999999999999999999"}) {
    EXPECT_EQ(status_of(post + "Content-Length: " + length + "\r\n\r\nabc"), 400) << length;
  }
  EXPECT_EQ(status_of(post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: identity\r\n\r\n"), 501);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            501);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
}

TEST(HttpRequestParser, RefusesBadChunks) {
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(post + "3\r\nabc\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(status_of(post + "g\r\nabc\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "-1\r\nabc\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "3\r\nabcd\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "FFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"), 413);
  EXPECT_EQ(status_of(post + "3;" + std::string(1 << 20, 'x')), 400);
  EXPECT_EQ(status_of(post + "0\r\nX: " + std::string(1 << 20, 'x')), 400);
  EXPECT_EQ(status_of(post + "0\r\nContent-Length: 5\r\n\r\n"), 400);
}

TEST(HttpRequestParser, RefusesMalformedHeads) {
  EXPECT_EQ(status_of("\x16\x03\x01\x02\x01\x01\x01"), 400);  // TLS
  EXPECT_EQ(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nName : v\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nName\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"s), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /a%2 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
}

TEST(HttpRequestParser, CountsHeadersAndBytesAcrossReads) {
  RequestLimits limits;
  limits.max_header_bytes = 1000;
  limits.max_headers = 5;
  limits.max_body_bytes = 10;
  const std::string line = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(status_of(line + "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n\r\n", limits), 200);
  EXPECT_EQ(status_of(line + "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n\r\n", limits), 431);
  const std::string fill(1000 - line.size() - 7, 'x');
  EXPECT_EQ(status_of(line + "A: " + fill + "\r\n\r\n", limits), 200);
  EXPECT_EQ(status_of(line + "A: x" + fill + "\r\n\r\n", limits), 431);
  EXPECT_EQ(status_of("GET /" + std::string(2000, 'x'), limits), 431);
  // The parser takes the request line as soon as it is there: it counts all the same.
  RequestParser parser(limits);
  const std::string first = "GET /" + std::string(600, 'x') + " HTTP/1.1\r\n";
  EXPECT_EQ(parser.put(first), first.size());
  parser.put("Host: x\r\nA: " + std::string(600, 'x') + "\r\n\r\n");
  ASSERT_TRUE(parser.fault());
  EXPECT_EQ(parser.fault()->status, 431);
  EXPECT_EQ(
      status_of(line + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n", limits),
      200);
  EXPECT_EQ(
      status_of(line + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\nworlds\r\n0\r\n\r\n", limits),
      413);
}

TEST(HttpRequestParser, SaysWhatOfABodyCannotBeServed) {
  const auto body_status = [](const std::string& headers) {
    RequestParser parser({});
    parser.put("POST / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    EXPECT_TRUE(parser.head_done()) << headers;
    const auto fault = parser.body_fault();
    return fault ? fault->status : 0;
  };
  EXPECT_EQ(body_status("Content-Length: 3\r\nContent-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(body_status("Content-Length: 3\r\nContent-Encoding: Identity\r\n"), 0);
  EXPECT_EQ(body_status("Content-Length: 67108865\r\n"), 413);
  EXPECT_EQ(body_status("Content-Length: 67108864\r\n"), 0);
  EXPECT_EQ(body_status("Content-Length: 3\r\nExpect: a-miracle\r\n"), 417);
  EXPECT_EQ(body_status("Content-Length: 3\r\nExpect: 100-Continue\r\n"), 0);
}

TEST(HttpRequestTarget, AbsoluteFormsBringTheirHost) {
  RequestParser parser({});
  parser.put("GET http://there:81/a/b?q=1 HTTP/1.1\r\nHost: here\r\n\r\n");
  ASSERT_TRUE(parser.done());
  EXPECT_EQ(parser.request()->path, "/a/b");
  EXPECT_EQ(parser.request()->header("Host"), "there:81");
  EXPECT_EQ(parser.request()->query_value("q"), "1");
}

TEST(HttpRequestTarget, Forms) {
  const auto path = [](const std::string& target) {
    HttpRequest request;
    request.target = target;
    return parse_target(request) ? request.path : std::string("refused");
  };
  EXPECT_EQ(path("/"), "/");
  EXPECT_EQ(path("/?x"), "/");
  EXPECT_EQ(path("/a%2Fb%20c+d"), "/a/b c+d");
  EXPECT_EQ(path("/../etc/passwd"), "/../etc/passwd");  // not ours to resolve: routes are compared whole
  EXPECT_EQ(path("https://host"), "/");
  EXPECT_EQ(path("HTTP://host?x=1"), "/");
  EXPECT_EQ(path("ftp://host/"), "refused");
  EXPECT_EQ(path("http:///x"), "refused");
  EXPECT_EQ(path("*"), "*");
  EXPECT_EQ(path("host:443"), "refused");
  EXPECT_EQ(path(""), "refused");
  EXPECT_EQ(path("/x?%zz"), "refused");
}

}  // namespace
}  // namespace gem::server

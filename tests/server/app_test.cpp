// The application without a socket: routes, methods, access, states, error shapes.
#include "server/app.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "server/api_support.h"

namespace gem::server {
namespace {

using testing::demo_session;
using testing::Json;

class IdleService : public Service {
 public:
  std::vector<std::unique_ptr<Generation>> submit(std::vector<GenerationJob>) override {
    throw ApiError::queue_full(7);
  }
  ServiceStatus status() const override {
    ServiceStatus s;
    s.slots = {{.id = 0, .kept = 12},
               {.id = 1, .busy = true, .prompt_tokens = 9, .prompt_done = 5, .cached = 2, .generated = 1}};
    s.running = 1;
    s.kv_used = 30;
    s.kv_total = 120;
    if (all_busy) s.slots[0].busy = true;
    return s;
  }
  std::optional<std::uint32_t> erase_slot(std::size_t id) override {
    if (id == 1) return std::nullopt;
    return 12;
  }
  void drain() override {}
  bool wait_idle(std::chrono::milliseconds) override { return true; }
  void stop() override {}
  bool all_busy = false;
};

class AppTest : public ::testing::Test {
 protected:
  explicit AppTest(AppOptions options = {}) { start(std::move(options)); }

  void start(AppOptions options) {
    sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
    auto logger = std::make_shared<spdlog::logger>("access", sink_);
    logger->set_pattern("%v");
    app_ = std::make_unique<App>(std::move(options), metrics_, AccessLog(LogFormat::kText, logger));
  }
  void open() {
    ModelCard card;
    card.id = "org/demo";
    card.created = 1780000000;
    card.fingerprint = "gem-test";
    app_->serve({.session = demo_session(),
                 .service = service_,
                 .card = card,
                 .defaults = testing::demo_defaults(),
                 .new_id = [](const char* prefix) { return std::string(prefix) + "1"; },
                 .now = [] { return std::int64_t{1780000000}; }});
  }
  HttpRequest request(std::string method, std::string target, std::string body = "", Headers headers = {}) {
    HttpRequest r;
    r.method = std::move(method);
    r.target = target;
    const std::size_t mark = target.find('?');
    r.path = target.substr(0, mark);
    if (mark != std::string::npos) {
      const std::string query = target.substr(mark + 1);
      const std::size_t equal = query.find('=');
      r.query = {{query.substr(0, equal), query.substr(equal + 1)}};
    }
    r.headers = std::move(headers);
    r.headers.emplace_back("Host", "localhost:8080");
    r.body = std::move(body);
    return r;
  }
  // As the transport calls it.
  HttpResponse call(HttpRequest r) {
    if (auto refused = app_->admit(r)) {
      app_->decorate(r, *refused);
      return *refused;
    }
    Reply reply = app_->handle(r);
    HttpResponse response = std::get<HttpResponse>(std::move(reply));
    app_->decorate(r, response);
    return response;
  }
  HttpResponse call(std::string method, std::string target, std::string body = "", Headers headers = {}) {
    return call(request(std::move(method), std::move(target), std::move(body), std::move(headers)));
  }
  static Json json(const HttpResponse& response) { return Json::parse(response.body); }
  static std::string header_of(const HttpResponse& response, std::string_view name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }
  static void expect_error(const HttpResponse& response, int status, std::string_view type,
                           std::string_view words = "") {
    EXPECT_EQ(response.status, status) << response.body;
    const Json body = json(response);
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_EQ(body["error"]["code"], status);
    EXPECT_NE(body["error"]["message"].get<std::string>().find(words), std::string::npos) << response.body;
  }

  Metrics metrics_{{}};
  std::ostringstream log_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_;
  IdleService service_;
  std::unique_ptr<App> app_;
};

TEST_F(AppTest, RoutesAreFound) {
  std::set<std::string_view> seen;
  for (const Route& route : all_routes()) {
    EXPECT_TRUE(seen.insert(route.pattern).second) << route.pattern;
    std::string path(route.pattern);
    if (path.ends_with('*')) path.back() = 'x';
    ASSERT_EQ(find_route(path), &route) << path;
  }
  EXPECT_EQ(find_route("/v1/models/"), nullptr);
  EXPECT_EQ(find_route("/v1/modelsx"), nullptr);
  EXPECT_EQ(find_route("/V1/models"), nullptr);
  EXPECT_EQ(find_route("//v1/models"), nullptr);
}

TEST_F(AppTest, UnknownPaths) {
  open();
  for (const char* path :
       {"/nothing", "/v1", "/v1/", "/v1/embeddings", "/infill", "/tools", "/v1/chat", "/../etc/passwd",
        "/page/../../etc/passwd", "/page/..%2f", "/.git/config", "//", "*", ""}) {
    expect_error(call("GET", path), 404, "not_found_error", "File Not Found");
    expect_error(call("POST", path), 404, "not_found_error", "File Not Found");
  }
  const Json anthropic = json(call("GET", "/v1/messages/batches"));
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(anthropic["error"]["type"], "not_found_error");
  EXPECT_FALSE(json(call("GET", "/v1/messagesx")).contains("type"));
}

TEST_F(AppTest, WrongMethods) {
  open();
  for (const Route& route : all_routes()) {
    std::string path(route.pattern);
    if (path.ends_with('*')) path.back() = '0';
    for (const char* method :
         {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "get", "GET, POST"}) {
      if (takes(route, method)) continue;
      const HttpResponse response = call(method, path);
      EXPECT_EQ(response.status, 405) << method << " " << path;
      EXPECT_EQ(header_of(response, "Allow"), allowed_methods(route));
    }
  }
  EXPECT_EQ(allowed_methods(*find_route("/props")), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(header_of(call("DELETE", "/"), "Allow"), "GET, HEAD, OPTIONS");
}

TEST_F(AppTest, OptionsNeedsNothing) {
  start({.access = {.keys = {"key"}}});
  const HttpResponse response = call("OPTIONS", "/v1/chat/completions");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "");
  EXPECT_EQ(header_of(response, "Allow"), "POST, OPTIONS");
  // But not to foreign pages.
  expect_error(call("OPTIONS", "/v1/chat/completions", "", {{"Origin", "http://evil.example"}}), 403,
               "permission_error", "evil.example");
}

TEST_F(AppTest, WhileLoading) {
  for (const Route& route : all_routes()) {
    if (route.needs == Route::Needs::kNothing) continue;
    std::string path(route.pattern);
    if (path.ends_with('*')) path.back() = '0';
    const HttpResponse response = call(route.methods.starts_with("GET") ? "GET" : "POST", path, "{}");
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_NE(response.body.find("Loading model"), std::string::npos) << path;
  }
  EXPECT_EQ(call("GET", "/health").body,
            R"({"error":{"code":503,"message":"Loading model","type":"unavailable_error","param":null}})");
  EXPECT_EQ(call("GET", "/ready").status, 503);
  EXPECT_EQ(call("GET", "/").status, 200);
  EXPECT_NE(call("GET", "/metrics").body.find("gem_model_loaded 0"), std::string::npos);
  open();
  EXPECT_EQ(call("GET", "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(call("HEAD", "/v1/health").status, 200);
  EXPECT_EQ(call("GET", "/ready").status, 200);
  EXPECT_NE(call("GET", "/metrics").body.find("gem_model_loaded 1"), std::string::npos);
}

TEST_F(AppTest, WhileStopping) {
  open();
  app_->drain();
  for (const Route& route : all_routes()) {
    if (route.needs != Route::Needs::kService) continue;
    EXPECT_EQ(call("POST", std::string(route.pattern), "{}").status, 503) << route.pattern;
  }
  EXPECT_EQ(call("GET", "/ready").status, 503);
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(call("GET", "/v1/models").status, 200);
}

TEST_F(AppTest, EveryRouteButThePublicOnesNeedsAKey) {
  start({.access = {.keys = {"right"}}});
  open();
  const std::set<std::string_view> open_routes{"/health", "/v1/health", "/ready"};
  for (const Route& route : all_routes()) {
    std::string path(route.pattern);
    if (path.ends_with('*')) path.back() = '0';
    const std::string method = route.methods.starts_with("GET") ? "GET" : "POST";
    const HttpResponse without = call(method, path, "{}");
    const HttpResponse wrong = call(method, path, "{}", {{"Authorization", "Bearer wrong"}});
    const HttpResponse right = call(method, path, "{}", {{"Authorization", "Bearer right"}});
    const bool is_open = open_routes.contains(route.pattern);
    EXPECT_EQ(without.status == 401, !is_open) << path;
    EXPECT_EQ(wrong.status == 401, !is_open) << path;
    EXPECT_NE(right.status, 401) << path;
    if (!is_open) {
      EXPECT_EQ(header_of(without, "WWW-Authenticate"), "Bearer");
      EXPECT_NE(without.body.find("authentication_error"), std::string::npos);
      EXPECT_NE(without.body.find("Invalid API Key"), std::string::npos);
    }
  }
  EXPECT_EQ(call("GET", "/").status, 200);
  EXPECT_EQ(json(call("POST", "/v1/messages"))["type"], "error");
  // Whether there is a key is told before whether the model is open.
  start({.access = {.keys = {"right"}}});
  EXPECT_EQ(call("GET", "/v1/models").status, 401);
}

TEST_F(AppTest, ForeignHostsAndOriginsOnEveryRoute) {
  open();
  for (const char* path : {"/", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/nothing"}) {
    HttpRequest rebound = request("GET", path);
    rebound.headers = {{"Host", "evil.example:8080"}};
    EXPECT_EQ(call(rebound).status, 403) << path;
    const HttpResponse foreign = call("GET", path, "", {{"Origin", "null"}});
    EXPECT_EQ(foreign.status, 403) << path;
    EXPECT_EQ(header_of(foreign, "Access-Control-Allow-Origin"), "");
  }
  EXPECT_EQ(call("GET", "/v1/models", "", {{"Origin", "http://localhost:8080"}}).status, 200);
}

TEST_F(AppTest, APrefix) {
  start({.access = {}, .prefix = "/gem/"});
  open();
  EXPECT_EQ(call("GET", "/gem/v1/models").status, 200);
  EXPECT_EQ(call("GET", "/gem/health").status, 200);
  EXPECT_EQ(call("GET", "/gem/").status, 200);
  EXPECT_EQ(call("GET", "/gem").status, 308);
  EXPECT_EQ(header_of(call("GET", "/gem"), "Location"), "/gem/");
  for (const char* path : {"/v1/models", "/", "/gemx/v1/models", "/gemv1/models", "/gem/gem/v1/models"})
    expect_error(call("GET", path), 404, "not_found_error");
  EXPECT_EQ(json(call("POST", "/gem/v1/messages", "x"))["type"], "error");
  EXPECT_EQ(json(call("POST", "/gem/slots/0?action=erase"))["n_erased"], 12);
  EXPECT_THROW(start({.access = {}, .prefix = "gem"}), Error);
}

TEST_F(AppTest, FaultsOfTheTransportInTheShapeOfTheApi) {
  const HttpRequest anthropic = request("POST", "/v1/messages"),
                    openai = request("POST", "/v1/chat/completions");
  EXPECT_EQ(json(app_->refuse(&anthropic, 413, "too large"))["error"]["type"], "request_too_large");
  expect_error(app_->refuse(&openai, 413, "too large"), 413, "invalid_request_error", "too large");
  expect_error(app_->refuse(&openai, 503, "busy"), 503, "unavailable_error");
  expect_error(app_->refuse(nullptr, 400, "no HTTP"), 400, "invalid_request_error");
  expect_error(app_->refuse(nullptr, 431, "headers"), 431, "invalid_request_error");
  const HttpRequest models = request("GET", "/v1/models", "", {{"anthropic-version", "2023-06-01"}});
  EXPECT_EQ(json(app_->refuse(&models, 400, "x"))["type"], "error");
}

TEST_F(AppTest, ErrorsOfEndpoints) {
  open();
  expect_error(call("POST", "/tokenize", "{\"content\":"), 400, "invalid_request_error");
  const HttpResponse full =
      call("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})");
  expect_error(full, 429, "rate_limit_error");
  EXPECT_EQ(header_of(full, "Retry-After"), "7");
}

TEST_F(AppTest, Models) {
  open();
  const Json list = json(call("GET", "/v1/models"));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  const Json& model = list["data"][0];
  EXPECT_EQ(model["id"], "org/demo");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["created"], 1780000000);
  EXPECT_EQ(model["created_at"], "2026-05-28T20:26:40Z");
  EXPECT_EQ(model["meta"]["n_ctx"], 2048);
  EXPECT_EQ(model["meta"]["n_vocab"], demo_session().model().geometry().vocab);
  EXPECT_GT(model["meta"]["n_params"].get<std::uint64_t>(), 100'000u);
  EXPECT_EQ(list["models"][0]["name"], "org/demo");
  EXPECT_EQ(call("GET", "/models").body, call("GET", "/v1/models").body);
  // An id may hold slashes.
  EXPECT_EQ(json(call("GET", "/v1/models/org/demo")), model);
  const HttpResponse unknown = call("GET", "/v1/models/../demo");
  expect_error(unknown, 404, "not_found_error", "../demo");
  EXPECT_EQ(call("GET", "/models/org/demo").status, 200);
}

TEST_F(AppTest, Props) {
  open();
  const HttpResponse response = call("GET", "/props?model=anything");
  const Json props = json(response);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 2048);
  EXPECT_EQ(props["default_generation_settings"]["params"]["top_k"], demo_session().default_sampling().top_k);
  EXPECT_EQ(props["total_slots"], 2);
  EXPECT_EQ(props["modalities"]["vision"], false);
  EXPECT_EQ(props["bos_token"], "<bos>");
  EXPECT_EQ(props["eos_token"], "<turn|>");
  EXPECT_EQ(props["model_path"], "gem-demo.gguf");
  EXPECT_EQ(response.body.find(GEM_SOURCE_DIR), std::string::npos);
  expect_error(call("POST", "/props", "{}"), 501, "not_supported_error");
}

TEST_F(AppTest, Slots) {
  open();
  const Json slots = json(call("GET", "/slots"));
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0]["is_processing"], false);
  EXPECT_EQ(slots[1]["is_processing"], true);
  EXPECT_EQ(slots[1]["n_prompt_tokens"], 9);
  EXPECT_EQ(slots[1]["n_prompt_tokens_processed"], 5);
  EXPECT_EQ(slots[1]["next_token"][0]["n_decoded"], 1);
  EXPECT_EQ(call("GET", "/slots?fail_on_no_slot=1").status, 200);
  service_.all_busy = true;
  EXPECT_EQ(call("GET", "/slots?fail_on_no_slot=1").status, 503);
  EXPECT_EQ(call("GET", "/slots?fail_on_no_slot=0").status, 200);
  EXPECT_EQ(call("POST", "/slots/0?action=erase").body, R"({"id_slot":0,"n_erased":12})");
  EXPECT_EQ(call("POST", "/slots/1?action=erase").status, 409);
  for (const char* path : {"/slots/2?action=erase", "/slots/x?action=erase", "/slots/-1?action=erase",
                           "/slots/99999999999999999999?action=erase", "/slots/0x0?action=erase", "/slots/0",
                           "/slots/0?action=eat", "/slots/../0?action=erase"})
    EXPECT_EQ(call("POST", path).status, 400) << path;
  expect_error(call("POST", "/slots/0?action=save", R"({"filename":"../x"})"), 501, "not_supported_error");
  expect_error(call("POST", "/slots/0?action=restore"), 501, "not_supported_error");
}

TEST_F(AppTest, TokensAndBack) {
  open();
  const Json plain = json(call("POST", "/tokenize", R"({"content":"Hello <turn|> world"})"));
  const Json pieces =
      json(call("POST", "/tokenize", R"({"content":"Hello <turn|> world","with_pieces":true})"));
  ASSERT_EQ(plain["tokens"].size(), pieces["tokens"].size());
  std::string text;
  for (std::size_t i = 0; i < plain["tokens"].size(); ++i) {
    EXPECT_EQ(pieces["tokens"][i]["id"], plain["tokens"][i]);
    text += pieces["tokens"][i]["piece"].get<std::string>();
  }
  EXPECT_EQ(text, "Hello <turn|> world");
  const Json back = json(call("POST", "/detokenize", Json{{"tokens", plain["tokens"]}}.dump()));
  EXPECT_EQ(back["content"], "Hello <turn|> world");
  // One control token, or its letters.
  const Json letters = json(call("POST", "/tokenize", R"({"content":"<turn|>","parse_special":false})"));
  EXPECT_GT(letters["tokens"].size(), 1u);
  EXPECT_EQ(json(call("POST", "/tokenize", R"({"content":"<turn|>"})"))["tokens"].size(), 1u);
  const Json with_bos = json(call("POST", "/tokenize", R"({"content":"Hello","add_special":true})"));
  EXPECT_EQ(with_bos["tokens"][0], demo_session().tokenizer().bos());
  const Json mixed = json(call("POST", "/tokenize", R"({"content":["Hello",5," world"]})"));
  EXPECT_NE(std::find(mixed["tokens"].begin(), mixed["tokens"].end(), Json(5)), mixed["tokens"].end());
  const Json vllm = json(call("POST", "/tokenize", R"({"prompt":"Hello"})"));
  EXPECT_EQ(vllm["count"], vllm["tokens"].size());
  EXPECT_EQ(vllm["max_model_len"], 2048);
  EXPECT_EQ(vllm["tokens"], with_bos["tokens"]);
}

TEST_F(AppTest, APieceThatIsNoText) {
  open();
  // A character outside the vocabulary falls to bytes, none of which is text.
  const Json pieces = json(call("POST", "/tokenize", R"({"content":"\ud83e\udd80","with_pieces":true})"));
  std::string bytes;
  for (const Json& token : pieces["tokens"]) {
    if (token["piece"].is_string()) {
      bytes += token["piece"].get<std::string>();
    } else {
      for (const Json& byte : token["piece"]) bytes += static_cast<char>(byte.get<int>());
    }
  }
  EXPECT_EQ(bytes, "\xF0\x9F\xA6\x80");
}

TEST_F(AppTest, TokenRequestsThatCannotBe) {
  open();
  for (const char* body :
       {"", "[]", "{}", R"({"content":5})", R"({"content":null})", R"({"content":[true]})",
        R"({"content":[-1]})", R"({"content":[99999999]})", R"({"content":"x","with_pieces":1})"})
    expect_error(call("POST", "/tokenize", body), 400, "invalid_request_error");
  for (const char* body : {"{}", R"({"tokens":5})", R"({"tokens":["x"]})", R"({"tokens":[-1]})",
                           R"({"tokens":[1.5]})", R"({"tokens":[4294967296]})", R"({"tokens":[1e99]})"})
    expect_error(call("POST", "/detokenize", body), 400, "invalid_request_error");
  EXPECT_EQ(json(call("POST", "/detokenize", R"({"tokens":[]})"))["content"], "");
}

TEST_F(AppTest, PromptsWithoutAReply) {
  open();
  const std::string body = R"({"messages":[{"role":"user","content":"Hi <turn|> there"}]})";
  const Json prompt = json(call("POST", "/apply-template", body));
  const std::string text = prompt["prompt"];
  EXPECT_TRUE(text.starts_with("<bos><|turn>user\nHi")) << text;
  EXPECT_NE(text.find("<|turn>model\n"), std::string::npos) << text;
  const Json count = json(call("POST", "/v1/chat/completions/input_tokens", body));
  EXPECT_EQ(count["object"], "response.input_tokens");
  // As many as the prompt has, where the client's own marker stays text.
  EXPECT_GT(count["input_tokens"].get<std::size_t>(), demo_session().tokenizer().encode(text, true).size());
  EXPECT_EQ(call("POST", "/apply-template", R"({"messages":[]})").status, 400);
}

TEST_F(AppTest, ControlOfRunningReplies) {
  open();
  const Json unknown =
      json(call("POST", "/v1/chat/completions/control", R"({"id":"chatcmpl-x","action":"reasoning_end"})"));
  EXPECT_EQ(unknown["success"], false);
  EXPECT_TRUE(unknown["message"].is_string());
  EXPECT_EQ(call("POST", "/v1/chat/completions/control", R"({"id":"x","action":"explode"})").status, 400);
  EXPECT_EQ(call("POST", "/v1/chat/completions/control", R"({"action":"reasoning_end"})").status, 400);
}

TEST_F(AppTest, ExchangesAreCountedByRouteAndLoggedWithoutContents) {
  open();
  app_->finished({.method = "POST",
                  .path = "/v1/chat/completions",
                  .peer = "127.0.0.1:9",
                  .status = 200,
                  .bytes_in = 10,
                  .bytes_out = 20,
                  .seconds = 0.5});
  app_->finished({.method = "GET", .path = "/v1/models/a", .peer = "127.0.0.1:9", .status = 404});
  app_->finished({.method = "GET", .path = "/v1/models/b", .peer = "127.0.0.1:9", .status = 404});
  app_->finished({.method = "BREW", .path = "/wp-login.php\n\"x", .peer = "127.0.0.1:9", .status = 404});
  app_->finished({.method = "GET", .path = "/", .peer = "127.0.0.1:9", .status = 0, .aborted = true});
  const std::string text = call("GET", "/metrics").body;
  for (const char* sample :
       {"{method=\"POST\",route=\"/v1/chat/completions\",code=\"200\"} 1",
        "{method=\"GET\",route=\"/v1/models/*\",code=\"404\"} 2",
        "{method=\"other\",route=\"other\",code=\"404\"} 1", "{method=\"GET\",route=\"page\",code=\"0\"} 1"})
    EXPECT_NE(text.find(std::string("gem_http_requests_total") + sample), std::string::npos) << sample << "\n"
                                                                                             << text;
  EXPECT_EQ(text.find("wp-login"), std::string::npos);
  const std::string log = log_.str();
  EXPECT_NE(log.find("127.0.0.1:9 \"POST /v1/chat/completions\" 200 in 10 out 20 0.500 s\n"),
            std::string::npos)
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5) << log;  // nobody adds lines of his own
}

TEST_F(AppTest, EveryResponseNamesTheServer) {
  start({.access = {}, .server = "gem/9"});
  EXPECT_EQ(header_of(call("GET", "/nothing"), "Server"), "gem/9");
}

TEST_F(AppTest, Metrics) {
  open();
  const HttpResponse response = call("GET", "/metrics");
  EXPECT_TRUE(response.content_type.starts_with("text/plain; version=0.0.4"));
  EXPECT_GT(std::stoll(header_of(response, "Process-Start-Time-Unix")), 1'600'000'000);
  EXPECT_NE(response.body.find("gem_requests_running 1\n"), std::string::npos);
  EXPECT_NE(response.body.find("gem_kv_positions_used 30\n"), std::string::npos);
}

}  // namespace
}  // namespace gem::server

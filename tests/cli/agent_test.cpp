// gem agent with a stand-in for hax: a script that looks at what it was given and talks to the server.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace gem::testing {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// A request by bash alone: get METHOD URL [BODY [KEY]].
constexpr const char* kClient = R"sh(#!/bin/bash
request() {
  local method=$1 url=${2#http://} body=${3:-} key=${4-$HAX_LLAMACPP_API_KEY}
  local authority=${url%%/*} path=/${url#*/}
  exec 3<>"/dev/tcp/${authority%:*}/${authority#*:}" || return 1
  printf '%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    "$method" "$path" "$authority" "$key" "${#body}" "$body" >&3
  cat <&3
  exec 3>&-
}
root=${HAX_LLAMACPP_BASE_URL%/v1}
)sh";

class Agent : public ::testing::Test {
 protected:
  void install(const std::string& script) {
    fs::create_directory(folder_ / "bin");
    write_text(folder_ / "bin" / "hax", kClient + script);
    fs::permissions(folder_ / "bin" / "hax", fs::perms::owner_all);
  }
  std::unique_ptr<Process> start(std::vector<std::string> arguments,
                                 std::map<std::string, std::string> more = {}) {
    std::map<std::string, std::string> variables = {
        {"PATH", (folder_ / "bin").string() + ":" + std::getenv("PATH")},
        {"XDG_STATE_HOME", (folder_ / "state").string()},
        {"OUT", (folder_ / "").string()},
        {"HAX_MODEL", "another-model"},
        {"HAX_LLAMACPP_PORT", "1"},
    };
    for (auto& [key, value] : more) variables[key] = value;
    arguments.insert(arguments.begin(), {"agent", "--threads", "1", "--no-think"});
    return std::make_unique<Process>(std::move(arguments), variables, "typed text\n");
  }
  std::string file(const std::string& name) const { return read_text(folder_ / name); }
  bool has(const std::string& name) const { return fs::exists(folder_ / name); }

  Folder folder_;
};

std::string body_of(const std::string& response) {
  const std::size_t end = response.find("\r\n\r\n");
  return end == std::string::npos ? "" : response.substr(end + 4);
}

TEST_F(Agent, RunsHaxAgainstItsServer) {
  install(R"sh(
tr '\0' '\n' <"/proc/$$/environ" >"$OUT/env"
printf '%s\n' "$@" >"$OUT/arguments"
request GET "$HAX_LLAMACPP_BASE_URL/models" >"$OUT/models"
request GET "$root/props?model=$HAX_MODEL" >"$OUT/props"
request GET "$HAX_LLAMACPP_BASE_URL/models" "" wrong >"$OUT/refused"
request POST "$HAX_LLAMACPP_BASE_URL/chat/completions" '{"model":"x","messages":[{"role":"user","content":"What is 25 + 17?"}],"stream":true,"stream_options":{"include_usage":true},"return_progress":true,"temperature":0}' >"$OUT/chat"
cat
echo done >&2
exit 7
)sh");
  auto agent = start({"--", "-p", "a b", "--raw"});
  EXPECT_EQ(agent->wait(), 7) << agent->err();
  EXPECT_EQ(agent->out(), "typed text\n");
  EXPECT_EQ(agent->err(), "done\n");  // the terminal is hax's
  EXPECT_EQ(file("arguments"), "-p\na b\n--raw\n");

  const Json models = Json::parse(body_of(file("models")));
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "gem-demo");
  const Json props = Json::parse(body_of(file("props")));
  EXPECT_GT(props["default_generation_settings"]["n_ctx"].get<int>(), 0);
  EXPECT_TRUE(file("refused").starts_with("HTTP/1.1 401")) << file("refused");
  const std::string chat = file("chat");
  EXPECT_TRUE(chat.starts_with("HTTP/1.1 200")) << chat;
  EXPECT_NE(chat.find("data: [DONE]"), std::string::npos) << chat;
  EXPECT_NE(chat.find("\"finish_reason\":\"stop\""), std::string::npos) << chat;
  EXPECT_NE(streamed_content(chat).find("42"), std::string::npos) << chat;

  std::map<std::string, std::string> env;
  for (const std::string& line : lines_of(file("env")))
    EXPECT_TRUE(env.emplace(line.substr(0, line.find('=')), line.substr(line.find('=') + 1)).second)
        << "twice: " << line;
  EXPECT_EQ(env["HAX_PROVIDER"], "llama.cpp");
  EXPECT_EQ(env["HAX_MODEL"], "gem-demo");
  EXPECT_TRUE(env["HAX_LLAMACPP_BASE_URL"].starts_with("http://127.0.0.1:")) << env["HAX_LLAMACPP_BASE_URL"];
  EXPECT_EQ(env["HAX_LLAMACPP_BASE_URL"], "http://127.0.0.1:" + env["HAX_LLAMACPP_PORT"] + "/v1");
  EXPECT_GE(env["HAX_LLAMACPP_API_KEY"].size(), 32u);
  EXPECT_EQ(env["HAX_CATALOG_REFRESH"], "0");
  EXPECT_NE(env["no_proxy"].find("127.0.0.1"), std::string::npos);

  // Nothing is left, and the log is this user's alone.
  EXPECT_FALSE(Client(static_cast<std::uint16_t>(std::stoi(env["HAX_LLAMACPP_PORT"]))).connected());
  const fs::path log = folder_ / "state" / "gem" / "agent.log";
  const std::string text = read_text(log);
  EXPECT_NE(text.find("\"POST /v1/chat/completions\" 200"), std::string::npos) << text;
  EXPECT_EQ(text.find(env["HAX_LLAMACPP_API_KEY"]), std::string::npos);
  struct stat info {};
  ASSERT_EQ(::stat(log.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(Agent, TwoAtOnceHaveServersOfTheirOwn) {
  install(
      R"sh(echo "$HAX_LLAMACPP_BASE_URL $HAX_LLAMACPP_API_KEY"; request GET "$HAX_LLAMACPP_BASE_URL/models" | head -n 1)sh");
  auto first = start({}), second = start({});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_NE(first->out().find("200"), std::string::npos);
  EXPECT_NE(second->out().find("200"), std::string::npos);
  EXPECT_NE(first->out(), second->out());
}

TEST_F(Agent, WithoutHaxNothingIsLoaded) {
  fs::create_directory(folder_ / "bin");
  write_text(folder_ / "bin" / "hax", "not executable");
  auto agent = start({"-m", (folder_ / "missing.gguf").string()}, {{"PATH", (folder_ / "bin").string()}});
  EXPECT_EQ(agent->wait(), 1);
  EXPECT_NE(agent->err().find("gem: error: the agent hax is not on PATH"), std::string::npos) << agent->err();
}

TEST_F(Agent, AModelThatIsNoneDoesNotStartHax) {
  install("touch \"$OUT/started\"");
  write_text(folder_ / "no.gguf", "nothing");
  auto agent = start({"-m", (folder_ / "no.gguf").string()});
  EXPECT_EQ(agent->wait(), 3);
  EXPECT_FALSE(has("started"));
}

TEST_F(Agent, SignalsSentToItReachHaxAndCtrlCIsNotItsBusiness) {
  // Waits in the background, so that traps run at once.
  install(R"sh(
for s in TERM HUP INT; do trap "echo $s >>$OUT/signals" $s; done
trap 'echo TERM >>$OUT/signals; exit 5' TERM
touch "$OUT/started"
while :; do sleep 30 & wait $!; done
)sh");
  auto agent = start({});
  ASSERT_TRUE(eventually([&] { return has("started"); }));
  agent->send(SIGINT);  // of a terminal, hax has its own
  agent->send(SIGHUP);
  ASSERT_TRUE(eventually([&] { return file("signals") == "HUP\n"; })) << file("signals");
  EXPECT_TRUE(agent->running());
  agent->send(SIGTERM);
  EXPECT_EQ(agent->wait(), 5);
  EXPECT_EQ(file("signals"), "HUP\nTERM\n");
}

TEST_F(Agent, HaxGetsOrdinarySignals) {
  // Ignored signals would be inherited.
  install(R"sh(grep -E '^Sig(Ign|Blk)' /proc/self/status >"$OUT/signals"; kill -KILL $$)sh");
  auto agent = start({});
  EXPECT_EQ(agent->wait(), 128 + SIGKILL);
  for (const std::string& line : lines_of(file("signals"))) {
    const std::uint64_t set = std::stoull(line.substr(line.find('\t') + 1), nullptr, 16);
    for (const int signal : {SIGINT, SIGPIPE, SIGTERM, SIGHUP, SIGCHLD, SIGQUIT})
      EXPECT_EQ(set >> (signal - 1) & 1, 0u) << line << " " << signal;
  }
  EXPECT_EQ(lines_of(file("signals")).size(), 2u);
}

TEST_F(Agent, StopsAndGoesOnWithHax) {
  install(R"sh(touch "$OUT/started"; kill -STOP $$; touch "$OUT/again"; exit 3)sh");
  auto agent = start({});
  ASSERT_TRUE(eventually([&] { return has("started"); }));
  const auto state = [&] {
    const std::string stat = read_text("/proc/" + std::to_string(agent->pid()) + "/stat");
    const std::size_t end = stat.rfind(") ");
    return end == std::string::npos ? '?' : stat[end + 2];
  };
  EXPECT_TRUE(eventually([&] { return state() == 'T'; }));
  EXPECT_FALSE(has("again"));
  agent->send(SIGCONT);
  EXPECT_EQ(agent->wait(), 3);
  EXPECT_TRUE(has("again"));
}

TEST_F(Agent, AProxyForTheWorldIsKept) {
  install(R"sh(echo "$no_proxy|$NO_PROXY|$HAX_CATALOG_REFRESH|$HAX_CATALOG_URL")sh");
  auto agent = start({}, {{"no_proxy", "intranet"}, {"NO_PROXY", "*"}, {"HAX_CATALOG_URL", "x"}});
  EXPECT_EQ(agent->wait(), 0);
  EXPECT_EQ(agent->out(), "intranet,127.0.0.1|*||x\n");
}

TEST_F(Agent, NoPlaceForALogIsNoReasonToFail) {
  install("exit 0");
  write_text(folder_ / "file", "");
  auto agent = start({}, {{"XDG_STATE_HOME", (folder_ / "file").string()}});
  EXPECT_EQ(agent->wait(), 0) << agent->err();
  EXPECT_NE(agent->err().find("log has no place"), std::string::npos) << agent->err();
}

}  // namespace
}  // namespace gem::testing

#include "server/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace gem::server {
namespace {

constexpr const char* kAccess = "access";

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What a client sent, on one line: no control characters, not long.
std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F || c == '"' || c == '\\') {
      fmt::format_to(std::back_inserter(out), "%{:02X}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kLongest) out += "...";
  return out;
}

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    const auto since = msg.time.time_since_epoch();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
    const auto level = spdlog::level::to_string_view(msg.level);
    const std::string_view payload(msg.payload.data(), msg.payload.size());
    const bool members = std::string_view(msg.logger_name.data(), msg.logger_name.size()) == kAccess;
    fmt::format_to(std::back_inserter(out),
                   "{{\"time\":\"{:%Y-%m-%dT%H:%M:%S}.{:03}Z\",\"level\":\"{}\",{}}}\n",
                   fmt::gmtime(std::chrono::system_clock::to_time_t(msg.time)), ms,
                   std::string_view(level.data(), level.size()),
                   members ? std::string(payload) : "\"message\":" + json_string(payload));
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

spdlog::level::level_enum parse_level(const std::string& name) {
  const auto level = spdlog::level::from_str(name);  // off for what it does not know
  if (level == spdlog::level::off && name != "off")
    fail(ErrorCode::kUsage, "unknown log level {}: expected trace, debug, info, warn, error or off", name);
  return level;
}

std::shared_ptr<spdlog::logger> default_sibling() {
  const std::shared_ptr<spdlog::logger> log = spdlog::default_logger();
  auto access = std::make_shared<spdlog::logger>(kAccess, log->sinks().begin(), log->sinks().end());
  access->set_level(log->level());
  return access;
}

}  // namespace

std::unique_ptr<spdlog::formatter> json_log_formatter() {
  return std::make_unique<JsonFormatter>();
}

void set_up_log(const LogOptions& options) {
  const auto level = parse_level(options.level);
  spdlog::sink_ptr sink;
  try {
    if (options.file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    }
  } catch (const spdlog::spdlog_ex& e) {
    fail(ErrorCode::kFailed, "cannot write the log {}: {}", options.file, e.what());
  }
  auto logger = std::make_shared<spdlog::logger>("gem", std::move(sink));
  logger->set_level(level);
  logger->flush_on(spdlog::level::info);                 // a log that lags is of no use when something hangs
  logger->set_error_handler([](const std::string&) {});  // a full disk must not cost the server anything
  if (options.format == LogFormat::kJson) {
    logger->set_formatter(json_log_formatter());
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  }
  spdlog::set_default_logger(std::move(logger));
}

std::string access_line(const ExchangeRecord& r) {
  return fmt::format("{} \"{} {}\" {} in {} out {} {:.3f} s{}", r.peer, shown(r.method), shown(r.path),
                     r.status, r.bytes_in, r.bytes_out, r.seconds, r.aborted ? " client left" : "");
}

std::string access_members(const ExchangeRecord& r) {
  return fmt::format(
      "\"event\":\"request\",\"peer\":{},\"method\":{},\"path\":{},\"status\":{},\"bytes_in\":{},"
      "\"bytes_out\":{},\"seconds\":{:.6f},\"aborted\":{}",
      json_string(r.peer), json_string(shown(r.method)), json_string(shown(r.path)), r.status, r.bytes_in,
      r.bytes_out, r.seconds, r.aborted);
}

AccessLog::AccessLog(LogFormat format) : AccessLog(format, default_sibling()) {}

AccessLog::AccessLog(LogFormat format, std::shared_ptr<spdlog::logger> logger)
    : format_(format), logger_(std::move(logger)) {
  logger_->flush_on(spdlog::level::info);
  logger_->set_error_handler([](const std::string&) {});
}

void AccessLog::write(const ExchangeRecord& record) const {
  if (!logger_->should_log(spdlog::level::info)) return;
  logger_->info("{}", format_ == LogFormat::kJson ? access_members(record) : access_line(record));
}

}  // namespace gem::server

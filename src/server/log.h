// The server's log: lines for people, or JSON objects for collectors; and the access log, one line an
// exchange, without contents and without keys.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

#include "server/http/exchange.h"

namespace gem::server {

enum class LogFormat { kText, kJson };

struct LogOptions {
  LogFormat format = LogFormat::kText;
  std::string level = "info";  // trace, debug, info, warn, error, off
  std::string file = {};       // empty: standard error
};

// Makes spdlog's default logger as said. Error(kUsage) for an unknown level, Error(kFailed) for a file that
// cannot be written.
void set_up_log(const LogOptions& options);

// One exchange as a line: `text` or the members of a JSON object after its opening brace.
std::string access_line(const ExchangeRecord& record);
std::string access_members(const ExchangeRecord& record);

class AccessLog {
 public:
  // Writes where the default logger writes; nothing when its level is above info.
  explicit AccessLog(LogFormat format = LogFormat::kText);
  // Writes to that logger (tests).
  AccessLog(LogFormat format, std::shared_ptr<spdlog::logger> logger);
  void write(const ExchangeRecord& record) const;

 private:
  LogFormat format_;
  std::shared_ptr<spdlog::logger> logger_;
};

// A formatter of one JSON object a line: time (UTC), level, then `message`; of a logger named "access" the
// payload is taken as further members.
std::unique_ptr<spdlog::formatter> json_log_formatter();

}  // namespace gem::server

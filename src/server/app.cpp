#include "server/app.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "server/page/page.h"

namespace gem::server {
namespace {

// For faults that the transport found.
std::string type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

ApiError loading() {
  ApiError e = ApiError::unavailable("Loading model");
  e.retry_after = 1;
  return e;
}

HttpResponse status_response(std::string_view status) {
  HttpResponse response;
  response.body = fmt::format("{{\"status\":\"{}\"}}", status);
  return response;
}

bool is_read(std::string_view method) {
  return method == "GET" || method == "HEAD";
}

}  // namespace

App::App(AppOptions options, Metrics& metrics, AccessLog log)
    : options_(std::move(options)), guard_(options_.access), metrics_(metrics), log_(std::move(log)) {
  while (options_.prefix.ends_with('/')) options_.prefix.pop_back();
  if (!options_.prefix.empty() && !options_.prefix.starts_with('/'))
    fail(ErrorCode::kUsage, "the prefix {} does not begin with a slash", options_.prefix);
}

void App::serve(ApiContext context) {
  auto shared = std::make_shared<const ApiContext>(std::move(context));
  const std::lock_guard lock(context_mutex_);
  context_ = std::move(shared);
}

void App::drain() {
  draining_ = true;
}

std::shared_ptr<const ApiContext> App::context() const {
  const std::lock_guard lock(context_mutex_);
  return context_;
}

std::optional<std::string_view> App::local_path(std::string_view path) const {
  const std::string& prefix = options_.prefix;
  if (!path.starts_with(prefix)) return std::nullopt;
  path.remove_prefix(prefix.size());
  if (!prefix.empty() && !path.starts_with('/')) return std::nullopt;  // "/gemx" is not below "/gem"
  return path;
}

ErrorShape App::shape_of(const HttpRequest& request) const {
  const std::string_view path = local_path(request.path).value_or(request.path);
  constexpr std::string_view kMessages = "/v1/messages";
  const bool below =
      path.starts_with(kMessages) && (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  // Anthropic's clients say so wherever they call (/v1/models).
  const bool anthropic = below || !request.header("anthropic-version").empty();
  return anthropic ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

std::optional<ApiError> App::check(const HttpRequest& head, const Route& route) const {
  if (!takes(route, head.method)) {
    return ApiError::of(405, "invalid_request_error",
                        fmt::format("Method Not Allowed: this path takes {}", route.methods));
  }
  if (!route.open) {
    if (auto refused = guard_.check_key(head)) return refused;
  }
  if (route.needs != Route::Needs::kNothing && context() == nullptr) return loading();
  if (route.needs == Route::Needs::kService && draining_)
    return ApiError::unavailable("The server is stopping");
  return std::nullopt;
}

std::optional<HttpResponse> App::admit(const HttpRequest& head) {
  const ErrorShape shape = shape_of(head);
  if (const auto refused = guard_.check_site(head)) return error_response(*refused, shape);
  const auto path = local_path(head.path);
  const Route* route = path ? find_route(*path) : nullptr;
  const bool page = path && route == nullptr && is_page_file(*path);
  if (head.method == "OPTIONS")
    return guard_.preflight(head, route != nullptr ? allowed_methods(*route) : "GET, HEAD, OPTIONS");
  if (path == std::nullopt && head.path == options_.prefix && is_read(head.method)) {
    // The page's addresses are relative to its folder.
    HttpResponse moved;
    moved.status = 308;
    moved.content_type = "text/plain";
    moved.headers.emplace_back("Location", options_.prefix + "/");
    return moved;
  }
  if (page && !is_read(head.method)) {
    HttpResponse response = refuse(&head, 405, "Method Not Allowed: this path takes GET");
    response.headers.emplace_back("Allow", "GET, HEAD, OPTIONS");
    return response;
  }
  if (page) return std::nullopt;
  if (route == nullptr) return error_response(ApiError::not_found("File Not Found"), shape);
  if (const auto refused = check(head, *route)) {
    HttpResponse response = error_response(*refused, shape);
    if (refused->status == 405) response.headers.emplace_back("Allow", allowed_methods(*route));
    if (refused->status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  return std::nullopt;
}

HttpResponse App::own(std::string_view path) const {
  const std::shared_ptr<const ApiContext> context = this->context();
  if (path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.headers.emplace_back("Process-Start-Time-Unix", std::to_string(metrics_.started()));
    if (context != nullptr) {
      const ServiceStatus status = context->service.status();
      response.body = metrics_.text(&status);
    } else {
      response.body = metrics_.text(nullptr);
    }
    return response;
  }
  if (context == nullptr) return error_response(loading(), ErrorShape::kOpenAi);
  // Draining is no illness: only /ready tells balancers to send nothing more.
  if (path == "/ready" && draining_)
    return error_response(ApiError::unavailable("The server is stopping"), ErrorShape::kOpenAi);
  return status_response(path == "/ready" ? "ready" : "ok");
}

Reply App::handle(HttpRequest request) {
  const ErrorShape shape = shape_of(request);
  const auto answer = [&](const ApiError& error) { return Reply(error_response(error, shape)); };
  try {
    const auto path = local_path(request.path);
    const Route* route = path ? find_route(*path) : nullptr;
    if (route == nullptr) {
      if (auto file = path ? page_file(*path, request.header("if-none-match")) : std::nullopt) return *file;
      return answer(ApiError::not_found("File Not Found"));
    }
    if (route->handler == nullptr) return own(*path);
    const std::shared_ptr<const ApiContext> context = this->context();
    if (context == nullptr) return answer(loading());
    request.path = std::string(*path);
    return route->handler(*context, request);
  } catch (const ApiError& error) {
    return answer(error);
  } catch (const Error& error) {
    const ApiError shown = ApiError::from(error);
    if (shown.status >= 500) spdlog::error("{} {}: {}", request.method, request.path, error.what());
    return answer(shown);
  } catch (const std::bad_alloc&) {
    spdlog::error("{} {}: out of memory", request.method, request.path);
    ApiError shown = ApiError::unavailable("not enough memory for this request");
    return answer(shown);
  } catch (const std::exception& error) {
    // The text of an exception is for the log: it may name what is no client's business.
    spdlog::error("{} {}: {}", request.method, request.path, error.what());
    return answer(ApiError::internal("internal error"));
  }
}

HttpResponse App::refuse(const HttpRequest* head, int status, const std::string& message) {
  return error_response(ApiError::of(status, type_of(status), message),
                        head != nullptr ? shape_of(*head) : ErrorShape::kOpenAi);
}

void App::decorate(const HttpRequest& request, HttpResponse& response) {
  response.headers.emplace_back("Server", options_.server);
  guard_.add_cors(request, response);
}

void App::finished(const ExchangeRecord& record) {
  const auto path = local_path(record.path);
  const Route* route = path ? find_route(*path) : nullptr;
  std::string_view name = "other";
  if (route != nullptr) name = route->pattern;
  if (route == nullptr && path && is_page_file(*path)) name = "page";
  metrics_.on_exchange(record.method, name, record.status);
  log_.write(record);
}

}  // namespace gem::server

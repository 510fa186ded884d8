#include "cli/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace gem::cli {
namespace {

// The pipe's end that handlers write to; -1: none. A handler may do little more than write.
std::atomic<int> write_end{-1};

void put(unsigned char value) {
  const int saved = errno;
  const int fd = write_end;
  if (fd >= 0) {
    [[maybe_unused]] const auto written = ::write(fd, &value, 1);  // full: enough signals are noted
  }
  errno = saved;
}

extern "C" void note_signal(int signal) {
  put(static_cast<unsigned char>(signal));
}

}  // namespace

SignalQueue::SignalQueue(std::initializer_list<int> signals) {
  int ends[2];
  if (::pipe(ends) != 0) fail(ErrorCode::kFailed, "cannot make a pipe for signals");
  for (const int fd : ends) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  read_end_ = ends[0];
  write_end = ends[1];
  for (const int signal : signals) {
    struct sigaction action {
    }, before{};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, &before);
    before_.emplace_back(signal, before);
  }
}

SignalQueue::~SignalQueue() {
  for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
  ::close(write_end.exchange(-1));
  ::close(read_end_);
}

std::optional<int> SignalQueue::wait(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    unsigned char value = 0;
    if (::read(read_end_, &value, 1) == 1) return value;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd entry{.fd = read_end_, .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, static_cast<int>(left));  // interrupted: the signal is in the pipe now
  }
}

int SignalQueue::wait() {
  while (true) {
    if (const auto signal = wait(std::chrono::hours(1))) return *signal;
  }
}

void SignalQueue::wake() {
  put(kWoken);
}

void die_of(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
  std::_Exit(128 + signal);  // for signals whose default is to go on
}

}  // namespace gem::cli

// The bundled model, opened once for all tests of a program.
#pragma once

#include <string>

#include "engine/session.h"

namespace gem::server::test {

inline Session& demo_session() {
  static const std::unique_ptr<Session> session = [] {
    SessionOptions options;
    options.model = GEM_SOURCE_DIR "/models/gem-demo.gguf";
    options.threads = 2;
    options.context = 2048;
    options.streams = 2;
    return Session::open(options);
  }();
  return *session;
}

}  // namespace gem::server::test

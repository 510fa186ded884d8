// Rows that are still on their way when they are kept.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <thread>

#include "engine/kept_prompt.h"

namespace gem {
namespace {

KeptRows::Sum sum() {
  return std::make_shared<std::atomic<std::uint64_t>>(0);
}

TEST(KeptRows, WhoeverWantsThemWaits) {
  KeptRows rows(1000, sum());
  std::promise<void> arrival;
  rows.filled_by(arrival.get_future().share());
  EXPECT_EQ(rows.size(), 1000u);  // without waiting
  std::memset(rows.data(), 1, 1000);
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::memset(rows.data(), 2, 1000);
    arrival.set_value();
  });
  const std::span<const std::byte> bytes = rows.bytes();
  EXPECT_EQ(bytes.front(), std::byte{2});
  EXPECT_EQ(bytes.back(), std::byte{2});
  EXPECT_EQ(rows.bytes().size(), 1000u);  // and again
  thread.join();
}

TEST(KeptRows, WhatWentWrongIsSaidToAllWhoWantThem) {
  KeptRows rows(1000, sum());
  std::promise<void> arrival;
  rows.filled_by(arrival.get_future().share());
  arrival.set_exception(std::make_exception_ptr(std::runtime_error("lost")));
  EXPECT_THROW(rows.bytes(), std::runtime_error);
  EXPECT_THROW(rows.bytes(), std::runtime_error);
}

TEST(KeptRows, CountWhileTheyLive) {
  const KeptRows::Sum bytes = sum();
  {
    const KeptRows rows(1000, bytes);
    EXPECT_EQ(*bytes, 1000u);
    EXPECT_EQ(rows.bytes().size(), 1000u);  // there at once
  }
  EXPECT_EQ(*bytes, 0u);
}

}  // namespace
}  // namespace gem

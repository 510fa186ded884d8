#include "engine/stop_strings.h"

#include <gtest/gtest.h>

namespace gem {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::string text;
  std::string expected;
  std::string matched;
};

const std::vector<Case> kCases = {
    {{}, "anything", "anything", ""},
    {{"STOP"}, "before STOP after", "before ", "STOP"},
    {{"STOP"}, "STO, STOq, ST", "STO, STOq, ST", ""},
    {{"aab"}, "aaab", "a", "aab"},
    {{"abab"}, "ababab", "", "abab"},
    {{"\n\n", "END"}, "one\ntwo\n\nEND", "one\ntwo", "\n\n"},
    {{"END", "\n\n"}, "x END \n\n", "x ", "END"},
    {{"ab", "abc"}, "xabc", "x", "ab"},
    {{"", "z"}, "xyz", "xy", "z"},
};

// However the text is cut, the same comes out, and nothing of a stop string.
TEST(StopStrings, EveryCutGivesTheSame) {
  for (const Case& c : kCases) {
    for (std::size_t a = 0; a <= c.text.size(); ++a) {
      for (std::size_t b = a; b <= c.text.size(); ++b) {
        StopStrings stops(c.stops);
        std::string out = stops.push(c.text.substr(0, a));
        out += stops.push(c.text.substr(a, b - a));
        out += stops.push(c.text.substr(b));
        if (!stops.stopped()) out += stops.flush();
        EXPECT_EQ(out, c.expected) << c.text << " cut at " << a << ", " << b;
        EXPECT_EQ(stops.stopped(), !c.matched.empty());
      }
    }
  }
}

TEST(StopStrings, ByteByByteFindsTheSame) {
  for (const Case& c : kCases) {
    StopStrings stops(c.stops);
    std::string out;
    for (const char ch : c.text) out += stops.push(std::string(1, ch));
    if (!stops.stopped()) out += stops.flush();
    EXPECT_EQ(out, c.expected);
    EXPECT_EQ(stops.matched(), c.matched);
  }
}

TEST(StopStrings, OnlyAPossibleStartIsHeldBack) {
  StopStrings stops({"STOP"});
  EXPECT_EQ(stops.push("abcS"), "abc");
  EXPECT_EQ(stops.push("T"), "");
  EXPECT_EQ(stops.push("x"), "STx");
}

}  // namespace
}  // namespace gem

// JSON that keeps numbers as spelled, and the Python rules of text and numbers.
#include "text/json_value.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/python_text.h"

namespace gem {
namespace {

std::string round_trip(std::string_view json) {
  return to_json_text(parse_json(json));
}

TEST(JsonValue, KeepsNumbersOrderAndText) {
  EXPECT_EQ(
      round_trip(
          R"( { "b" : [ 1.50 , -0 , 1E+05 , 123456789012345678901234567890 ] , "a" : { } , "c" : [ ] } )"),
      R"({"b":[1.50,-0,1E+05,123456789012345678901234567890],"a":{},"c":[]})");
  EXPECT_EQ(round_trip(R"({"a":1,"b":2,"a":3})"), R"({"a":3,"b":2})");
  EXPECT_EQ(round_trip("\"\\u00e9\\ud83e\\udd99\\/\\u0007\x7f\""), "\"é🦙/\\u0007\x7f\"");
  EXPECT_EQ(round_trip(R"("\ud83e")"), "\"\ufffd\"");
  EXPECT_EQ(round_trip(R"("\udd99\ud83e\ud83e\udd99")"), "\"\ufffd\ufffd🦙\"");
}

TEST(JsonValue, RefusesWhatIsNoJson) {
  for (const std::string_view bad : {"",
                                     " ",
                                     "{",
                                     "[1,]",
                                     "{\"a\":1,}",
                                     "{a:1}",
                                     "{'a':1}",
                                     "01",
                                     "1.",
                                     ".5",
                                     "+1",
                                     "-",
                                     "1e",
                                     "tru",
                                     "nul",
                                     "NaN",
                                     "Infinity",
                                     "\"",
                                     "\"\\x\"",
                                     "\"\\u12g4\"",
                                     "\"a\nb\"",
                                     "\"\xff\"",
                                     "\"\xed\xa0\x80\"",
                                     "1 2",
                                     "[1}",
                                     "\"\\"}) {
    EXPECT_THROW(parse_json(bad), Error) << bad;
  }
  try {
    parse_json("{\"a\": 1, \"b\" 2}");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "not JSON at byte 13: expected ':'");
  }
}

TEST(JsonValue, RefusesDeepNestingAndTakesTheLimit) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(round_trip(nested(kMaxJsonDepth)), nested(kMaxJsonDepth));
  EXPECT_THROW(parse_json(nested(kMaxJsonDepth + 1)), Error);
  EXPECT_THROW(parse_json(std::string(5'000'000, '[')), Error);
}

TEST(JsonValue, ManyKeysTakeLinearTime) {
  std::string object = "{";
  for (int i = 0; i < 200'000; ++i) object += "\"k" + std::to_string(i) + "\":1,";
  object += "\"k0\":2}";
  const JsonValue value = parse_json(object);
  EXPECT_EQ(value.members.size(), 200'000u);
  EXPECT_EQ(value.members[0].value.text, "2");
}

TEST(JsonValue, FromTheLibrarysTree) {
  const auto json =
      nlohmann::ordered_json::parse(R"({"z":[1,-2,1.5,1e5,18446744073709551615,true,null],"a":"é"})");
  EXPECT_EQ(to_json_text(to_json_value(json)),
            R"({"z":[1,-2,1.5,100000.0,18446744073709551615,true,null],"a":"é"})");
}

TEST(PythonText, Strip) {
  EXPECT_EQ(python_strip(
                " \t\n\v\f\r\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000x "),
            "x");
  EXPECT_EQ(python_strip("\u200bx\ufeff"), "\u200bx\ufeff") << "zero width is no blank";
  EXPECT_EQ(python_strip(" \xff "), "\xff");
  EXPECT_EQ(python_rstrip("\xa0"), "\xa0") << "a lone byte is no no-break space";
  EXPECT_EQ(python_strip("\u3000"), "");
}

TEST(PythonText, Lower) {
  EXPECT_EQ(python_lower("AZaz_09ÀÖØÞ×ßĀĹŊŽŸΑΣΩΆЀЯҐԱỲẞ日"), "azaz_09àöøþ×ßāĺŋžÿασωάѐяґաỳß日");
}

TEST(PythonText, FloatRepr) {
  EXPECT_EQ(python_float_repr(0.1), "0.1");
  EXPECT_EQ(python_float_repr(-0.0), "-0.0");
  EXPECT_EQ(python_float_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_float_repr(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(python_float_repr(1e16), "1e+16");
  EXPECT_EQ(python_float_repr(1.5e300), "1.5e+300");
  EXPECT_EQ(python_float_repr(0.0001), "0.0001");
  EXPECT_EQ(python_float_repr(0.00012345), "0.00012345");
  EXPECT_EQ(python_float_repr(0.00001), "1e-05");
  EXPECT_EQ(python_float_repr(5e-324), "5e-324");
  EXPECT_EQ(python_float_repr(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
  EXPECT_EQ(python_float_repr(123456.789), "123456.789");
}

TEST(PythonText, NumbersOutOfRange) {
  EXPECT_EQ(python_number("1e999999999999999999999"), "inf");
  EXPECT_EQ(python_number("1e-999999999999999999999"), "0.0");
  EXPECT_EQ(python_number("-" + std::string(400, '1') + ".5"), "-inf");
  EXPECT_EQ(python_number("0." + std::string(400, '0') + "1e1"), "0.0");
  EXPECT_EQ(python_number("0." + std::string(400, '0') + "1e401"), "1.0");
  EXPECT_EQ(python_number("-1e-400"), "-0.0");
}

}  // namespace
}  // namespace gem

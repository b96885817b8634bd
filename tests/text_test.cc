// Texts from outside, as messages and listings show them.

#include "pm/text.h"

#include <gtest/gtest.h>

#include <string>

namespace gpm {
namespace {

TEST(Text, PrintableIsUtf8ThatATerminalShows) {
  const char* const printable[] = {"",           "plain ~!",   "größe",     "\u00a0",
                                   "\u07ff",     "\u0800",     "日本",      "\ufffd",
                                   "\U00010000", "\U0010fffd", "\U0001f642"};
  for (const char* text : printable) EXPECT_TRUE(IsPrintable(text)) << text;
  const std::string unprintable[] = {std::string(1, '\0'),
                                     "\t",
                                     "\n",
                                     "\x1b[2J",
                                     "\x7f",
                                     "\xc2\x80",
                                     "\xc2\x9f",  // C1 controls
                                     "\u200b",
                                     "\u2028",
                                     "\u202e",
                                     "\u2066",
                                     "\ufeff",  // no width, ends of lines, direction
                                     "\x80",
                                     "\xc3",
                                     "\xe2\x82",
                                     "\xf0\x9f\x99",  // cut off
                                     "\xc3(",
                                     "\xe2\x28\xa1",
                                     "\xff",
                                     "\xfe",
                                     "\xc0\xaf",
                                     "\xc1\xbf",
                                     "\xe0\x9f\xbf",
                                     "\xf0\x8f\xbf\xbf",  // longer than need be
                                     "\xed\xa0\x80",
                                     "\xed\xbf\xbf",  // surrogates
                                     "\xef\xbf\xbe",
                                     "\xef\xb7\x90",
                                     "\xf0\x9f\xbf\xbf",  // noncharacters
                                     "\xf4\x90\x80\x80",
                                     "\xf5\x80\x80\x80",   // beyond Unicode
                                     "\xf3\xa0\x80\x81"};  // a tag
  for (const std::string& text : unprintable) {
    EXPECT_FALSE(IsPrintable(text)) << Quoted(text);
    EXPECT_FALSE(IsPrintable("a" + text + "b")) << Quoted(text);
  }
}

TEST(Text, QuotedIsShort) {
  EXPECT_EQ(Quoted("größe"), "'größe'");
  EXPECT_EQ(Quoted(""), "''");
  EXPECT_EQ(Quoted("a\tb\xff"
                   "c"),
            "'a?b?c'");
  EXPECT_EQ(Quoted(std::string(kQuotedBytes, 'x')), "'" + std::string(kQuotedBytes, 'x') + "'");
  EXPECT_EQ(Quoted(std::string(1'000'000, 'x')),
            "'" + std::string(kQuotedBytes, 'x') + "...' (1000000 bytes)");
  // A character is not cut.
  EXPECT_EQ(Quoted(std::string(kQuotedBytes - 1, 'x') + "ß"),
            "'" + std::string(kQuotedBytes - 1, 'x') + "...' (61 bytes)");
}

}  // namespace
}  // namespace gpm

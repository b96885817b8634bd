#ifndef GPM_PM_TEXT_H_
#define GPM_PM_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace gpm {

/// Text from outside, as it may be shown. Thread safety: pure functions.

/// Whether `text` is UTF-8 of characters that are printable and leave a terminal as it is: no
/// control characters, line or paragraph separators, marks without width or that change the
/// direction, surrogates, noncharacters.
bool IsPrintable(std::string_view text);

/// What Quoted shows of a text, in bytes.
inline constexpr std::size_t kQuotedBytes = 60;

/// `text` between quotes, for messages: 'text'. What is not printable becomes '?'. Of a text longer
/// than kQuotedBytes only the start is there, and how long it is: 'tex...' (1000000 bytes).
std::string Quoted(std::string_view text);

}  // namespace gpm

#endif  // GPM_PM_TEXT_H_

#ifndef GPM_TESTS_CRASH_MUTANTS_H_
#define GPM_TESTS_CRASH_MUTANTS_H_

#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <string>

#include "pm/steps.h"

namespace gpm::crash {

/// What the mutation tests of both executors share.

/// What exploration found with a step left out.
struct Found {
  std::string violation;  ///< empty: none
  std::uint64_t seed = 0;
  std::uint64_t tried = 0;
};

/// @param what was tried
inline void Print(const Found& found, const char* what) {
  std::printf("caught after %llu %s: %s\n", static_cast<unsigned long long>(found.tried), what,
              found.violation.substr(0, 300).c_str());
}

/// "insert-claim-cas" as InsertClaimCas.
inline std::string NameOf(const ::testing::TestParamInfo<Step>& info) {
  std::string name;
  bool begins_word = true;
  for (const char c : StepName(info.param)) {
    if (c != '-') name += begins_word ? static_cast<char>(std::toupper(c)) : c;
    begins_word = c == '-';
  }
  return name;
}

}  // namespace gpm::crash

#endif  // GPM_TESTS_CRASH_MUTANTS_H_

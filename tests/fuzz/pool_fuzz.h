#ifndef GPM_TESTS_FUZZ_POOL_FUZZ_H_
#define GPM_TESTS_FUZZ_POOL_FUZZ_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "gpmstore/error.h"

namespace gpm::fuzz {

/// What a damaged pool must give (docs/FORMAT.md), shown for one input:
///
///  1. Check and open end, without undefined behaviour, with success or a gpm::Error that says
///     something.
///  2. The check writes nothing. A pool that is refused as damaged keeps its bytes and its size.
///     What the check throws, open throws. What open refuses as damaged, the check has a defect
///     for.
///  3. `no space` is the only other refusal: an interrupted resize that the pool's maximum leaves
///     no room for. Such a pool opens with a larger maximum, and lost nothing.
///  4. A pool that opens is a store: finds, mixed batches, resizes, closing and opening again work.
///     As long as the superblock in force says what it said, all items are there and whole but
///     those of which a slot or a cell was damaged and those whose key a damaged slot claims.
///  5. Damage that recovery does not look for (an item in a bucket that its key does not hash to, a
///     state word that is not its key's, a second copy of a key in a pool that says it was closed
///     in order) stays, and the check goes on naming it: a closed pool has no defect that it did
///     not have before it was opened, and no half-inserted slot, reference outside, shared cell or
///     unfinished resize at all.
///  6. In a pool without defects the counts are right too: items and free cells, before and after,
///     and what is read from it before it is recovered.
///
/// What does not hold is thrown.
struct Violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct Outcome {
  bool opened = false;
  std::optional<ErrorCode> refused;  ///< what opening threw
  bool sound = false;                ///< the check found no defect
  bool table_intact = false;
  bool resized = false;
};

/// Makes the damaged pool of an input, and uses it. Thread safety: one thread.
/// @throws Violation
Outcome RunInput(std::span<const std::uint8_t> input);

/// Counts of outcomes, for people.
class Tally {
 public:
  void Add(const Outcome& outcome);
  std::uint64_t opened() const { return opened_; }
  std::uint64_t refused() const;
  std::string ToString() const;

 private:
  std::uint64_t opened_ = 0;
  std::uint64_t with_defects_ = 0;
  std::uint64_t table_intact_ = 0;
  std::uint64_t resized_ = 0;
  std::map<ErrorCode, std::uint64_t> refused_;
};

}  // namespace gpm::fuzz

#endif  // GPM_TESTS_FUZZ_POOL_FUZZ_H_

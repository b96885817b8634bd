#ifndef GPM_TESTS_FUZZ_DAMAGE_H_
#define GPM_TESTS_FUZZ_DAMAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/fuzz/base_pools.h"

namespace gpm::fuzz {

/// What an input means. Inputs are short descriptions, so that a mutation of a few bytes is a
/// change of a few words of a pool, and any bytes mean something:
///
///     0    base pool
///     1    flags, see Flag; bits 6 and 7: how much is done with the store, when it opens
///     2    seed of the operations
///     3    the file's size: low 3 bits what (cut, extended, or as it is), high 5 bits how much
///     4... patches, until the input ends: a byte, of which the low 4 bits say what is changed and
///          the high 4 bits how its new value is made, and their arguments
///
/// With kRaw, what follows byte 3 is the beginning of the file instead.
enum Flag : std::uint8_t {
  kFixCrcA = 1,  ///< copy A of the superblock gets a right CRC after the patches
  kFixCrcB = 2,  ///< copy B
  kRaw = 4,      ///< the rest of the input is the beginning of the file
  kTight = 8,    ///< the pool can not grow
  kCrash = 16,   ///< the store is not closed: what is there then is opened next
};

enum class Volume : std::uint8_t { kNothing, kFew, kMany, kResize };

/// A damaged pool, and what still has to be true of it.
struct Damage {
  const BasePool* base = nullptr;
  std::vector<std::byte> image;  ///< the whole file
  bool tight = false;
  bool crash = false;
  Volume volume = Volume::kNothing;
  std::uint8_t seed = 0;

  /// Nothing that the table rests on was changed: the superblock in force says what it said. Then
  /// all items but the touched ones have to be found, whole.
  bool table_intact = false;
  /// Keys of the items of which a slot or the cell was changed, and those that changed slots hold
  /// now.
  std::unordered_set<std::string> touched;
};

Damage ReadDamage(std::span<const std::uint8_t> input);

}  // namespace gpm::fuzz

#endif  // GPM_TESTS_FUZZ_DAMAGE_H_

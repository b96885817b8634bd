#ifndef GPM_CLI_STRESS_ROUND_END_H_
#define GPM_CLI_STRESS_ROUND_END_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/stress/contents.h"
#include "cli/stress/lane.h"
#include "cli/stress/round_state.h"
#include "gpmstore/store.h"

namespace gpm::stress {

/// What must hold when all batches of a round are done: what finds, a visit, the figures and the
/// offline check say of the store agrees with each other, with what the lanes know of their keys
/// and with the histories of watched ones, now and when the pool was closed and opened again.
///
/// @param path of the pool; the store is closed @return empty, or what is wrong @throws Error
std::string CheckRoundEnd(RoundState& round, const std::vector<std::unique_ptr<Lane>>& lanes,
                          const std::string& path);

/// The same for a store that could not finish a resize: it is opened with more room, which goes on
/// with it, and holds whole items.
std::string CheckUnusable(RoundState& round, const std::string& path);

// Parts of these.

/// Whether a store's figures are those of so many items, and no cell is lost.
std::string CheckFigures(const StoreStats& stats, std::uint64_t items, std::uint32_t value_size);
/// Whether a pool that was closed is opened again as it was.
/// @param contents what finds of `ids` said before
std::string CheckOpenedAgain(RoundState& round, std::span<const std::uint64_t> ids,
                             const Contents& contents, const std::string& path);
/// Whether a pool was closed in order and holds so many items, and nothing else.
std::string CheckFile(const std::string& path, std::uint64_t items, std::uint32_t value_size);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ROUND_END_H_

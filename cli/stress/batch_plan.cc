#include "cli/stress/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "table/operation.h"

namespace gpm::stress {
namespace {

/// Of 256 operations, so many of each kind.
using Kinds = std::array<std::uint32_t, kOpKinds>;
/// Kinds that a DeviceView has.
constexpr std::uint64_t kScopeKinds = 6;

Kinds DrawKinds(Random& random) {
  switch (random.Below(8)) {
    case 0:
    case 1:
      return {256, 0, 0, 0, 0};
    case 2:
      return {128, 0, 64, 0, 0, 0, 64};
    case 3:
    case 4:
      return {80, 40, 24, 24, 32, 32, 24};
    case 5:
      return {32, 112, 16, 96, 0};
    case 6:
      return {32, 0, 32, 0, 192};
    default: {
      Kinds one{};
      one[random.Below(kOpKinds)] = 256;
      return one;
    }
  }
}

/// Any element that values of this size consist of; kNone: there is none.
Element DrawElement(std::uint32_t value_size, Random& random) {
  const Element element =
      random.Choose({Element::kFloat32, Element::kFloat16, Element::kBFloat16, Element::kUInt64});
  if (value_size % ElementBytes(element) == 0) return element;
  return value_size % 2 == 0 ? Element::kBFloat16 : Element::kNone;
}

/// Which key of how many: any, small ones more often, or one of the first 16.
enum class Spread { kUniform, kSkewed, kHot };

std::uint64_t DrawNumber(Spread spread, std::uint64_t keys, std::uint64_t drawn) {
  switch (spread) {
    case Spread::kUniform:
      break;
    case Spread::kSkewed: {
      const auto bits = static_cast<std::uint64_t>(std::bit_width(keys));
      return (drawn >> 6 & ((std::uint64_t{1} << (drawn % 64 % bits + 1)) - 1)) % keys;
    }
    case Spread::kHot:
      return drawn % std::min<std::uint64_t>(keys, 16);
  }
  return drawn % keys;
}

std::uint32_t DrawCount(const RoundPlan& round, Random& random) {
  for (;;) {
    const std::uint32_t n = round.batch_sizes[random.Below(round.batch_sizes.size())];
    if (round.even_sizes || n <= 4096 || random.OneIn(n / 2048)) return n;
  }
}

void DrawPlaces(const RoundPlan& round, Random& random, BatchPlan* batch) {
  const auto any = [&] {
    return random.Choose({Place::kDevice, Place::kPinned, Place::kPageable});
  };
  // What is not in GPU memory is copied, and made by the host: only small ones.
  const std::uint64_t bytes =
      std::uint64_t{batch->n} * (round.shape.key_size + round.shape.value_size);
  const std::uint64_t choice = bytes > (1 << 22) ? 16 : random.Below(20);
  const Place all = choice == 0 ? Place::kPinned : choice == 1 ? Place::kPageable : Place::kDevice;
  batch->keys = choice == 2 ? any() : all;
  batch->values = choice == 2 ? any() : all;
  batch->ops = choice == 2 ? any() : all;
  batch->answers = choice == 2 ? any() : all;
}

/// What is done with keys that are not the lane's: their values must be whole.
Op OfOthers(Op op) { return op == Op::kAccumulate ? Op::kUpdate : op; }

/// Insert of keys that follow each other: a bulk load takes each key once.
void DrawLoad(const Drawer& drawer, Random& random, std::uint64_t* operations, BatchPlan* batch) {
  const std::uint64_t first = random.Below(drawer.round.private_keys);
  for (std::uint32_t i = 0; i < batch->n; ++i) {
    operations[i] = Planned(
        Op::kInsert, IdIn(kFirstLane + drawer.lane, (first + i) % drawer.round.private_keys));
  }
  batch->op = Op::kInsert;
  batch->has_values = true;
}

/// Each group of operations is on a key of its own, since tiles have no order among each other.
void DrawScope(const Drawer& drawer, Random& random, std::uint64_t* operations, BatchPlan* batch) {
  const std::uint64_t first = random.Below(drawer.round.private_keys);
  for (std::uint32_t i = 0; i < batch->n; ++i) {
    const auto op = static_cast<Op>(random.Below(kScopeKinds));
    const std::uint64_t number = (first + i / batch->group) % drawer.round.private_keys;
    operations[i] = Planned(op, IdIn(kFirstLane + drawer.lane, number));
    batch->writes += Writes(op) ? 1 : 0;
    batch->erases += op == Op::kErase ? 1 : 0;
  }
  batch->has_values = true;
  batch->has_found = true;
}

}  // namespace

std::string KeyName(std::uint64_t id) {
  const std::uint64_t owner = OwnerOf(id);
  if (owner == kShared) return fmt::format("shared key {}", NumberOf(id));
  if (owner == kWatched) return fmt::format("watched key {}", NumberOf(id));
  return fmt::format("key {} of lane {}", NumberOf(id), owner - kFirstLane);
}

std::string Describe(const BatchPlan& batch) {
  const auto call = [&]() -> std::string {
    switch (batch.call) {
      case Call::kApplyAsync:
        return "ApplyAsync";
      case Call::kApply:
        return "Apply";
      case Call::kBulkLoad:
        return "BulkLoad";
      case Call::kScope:
        break;
    }
    return fmt::format("a DeviceScope, {} operations a key", batch.group);
  };
  return fmt::format(
      "{} operations by {}, {}{}{}; elements {}; keys {}, values {}, kinds {}, answers {} memory",
      batch.n, call(),
      batch.mixed || batch.call == Call::kScope ? "mixed" : std::string(OpName(batch.op)),
      batch.has_values ? "" : ", without values", batch.has_found ? "" : ", without found",
      ElementName(batch.element), PlaceName(batch.keys), PlaceName(batch.values),
      PlaceName(batch.ops), PlaceName(batch.answers));
}

BatchPlan DrawBatch(const Drawer& drawer, Random& random, bool scope_allowed, bool loads) {
  const RoundPlan& round = drawer.round;
  const bool gpu = round.open.executor == ExecutorKind::kCuda;
  BatchPlan batch;
  batch.n = loads ? round.private_keys : DrawCount(round, random);
  const std::uint64_t choice = loads ? 0 : random.Below(64);
  batch.call = choice < 2                           ? Call::kBulkLoad
               : gpu && scope_allowed && choice < 6 ? Call::kScope
               : choice < 24                        ? Call::kApply
                                                    : Call::kApplyAsync;
  if (batch.call == Call::kBulkLoad) batch.n = std::min(batch.n, round.private_keys);
  if (batch.call == Call::kScope) {
    batch.group = random.Choose({1u, 2u, 5u, 8u});
    const std::uint32_t keys =
        std::clamp(batch.n / batch.group, 1u, std::min(round.private_keys, 20'000u));
    batch.n = std::min(keys, std::max(1u, round.max_batch / batch.group)) * batch.group;
  }
  if (gpu) DrawPlaces(round, random, &batch);
  if (batch.call == Call::kScope) {
    batch.keys = batch.values = batch.answers = Place::kDevice;
  }
  return batch;
}

void DrawOperations(const Drawer& drawer, Random& random, std::uint64_t* operations,
                    BatchPlan* batch) {
  batch->operations = operations;
  if (batch->call == Call::kBulkLoad) return DrawLoad(drawer, random, operations, batch);
  if (batch->call == Call::kScope) return DrawScope(drawer, random, operations, batch);

  const RoundPlan& round = drawer.round;
  const Kinds kinds = DrawKinds(random);
  std::array<Op, 256> op_of{};
  std::size_t filled = 0;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    for (std::uint32_t i = 0; i < kinds[kind]; ++i) op_of[filled++] = static_cast<Op>(kind);
  }
  const bool one_kind = op_of.front() == op_of.back();
  const bool writes = kinds[0] + kinds[4] < op_of.size();
  batch->op = op_of.front();
  batch->finds_only = one_kind && batch->op == Op::kFind;
  batch->mixed = !one_kind || random.OneIn(4);
  batch->has_values = writes ? !batch->mixed || !random.OneIn(64) : random.OneIn(2);
  batch->element = DrawElement(round.shape.value_size, random);
  batch->has_found = kinds[0] + kinds[5] > 0 ? !random.OneIn(16) : random.OneIn(4);

  // Of 8 operations, so many on the lane's own keys.
  const bool accumulates = one_kind && batch->op == Op::kAccumulate;
  if (accumulates && batch->element == Element::kNone) batch->mixed = true;  // else it is refused
  const std::uint64_t own = accumulates ? 8 : random.Choose<std::uint64_t>({0, 4, 4, 8});
  const auto spread = random.Choose({Spread::kUniform, Spread::kSkewed, Spread::kHot});
  for (std::uint32_t i = 0; i < batch->n; ++i) {
    const std::uint64_t drawn = random();
    const bool is_own = (drawn >> 8) % 8 < own;
    const std::uint64_t number =
        DrawNumber(spread, is_own ? round.private_keys : round.shared_keys, drawn >> 11);
    operations[i] = is_own ? Planned(op_of[drawn % 256], IdIn(kFirstLane + drawer.lane, number))
                           : Planned(OfOthers(op_of[drawn % 256]), IdIn(kShared, number));
  }
  if (!batch->has_found || accumulates || random.OneIn(2)) return;
  const std::uint64_t watched = random.Below(std::min<std::uint64_t>(batch->n, 8)) + 1;
  for (std::uint64_t i = 0; i < watched; ++i) {
    const std::uint64_t key = drawer.watched.Take(drawer.thread, random());
    if (key == WatchedKeys::kNone) break;
    std::uint64_t& planned = operations[random.Below(batch->n)];
    planned = Planned(OfOthers(OpOf(planned)), IdIn(kWatched, key));
  }
}

}  // namespace gpm::stress

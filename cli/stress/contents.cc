#include "cli/stress/contents.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/stress/batch_plan.h"

namespace gpm::stress {
namespace {

/// The id that a key stands for; false: it is no key of a round's.
bool IdOfKey(const Shape& shape, const std::byte* key, std::uint64_t* id) {
  const std::uint64_t number = GetWord(key + shape.id_at(), shape.id_bytes(), 0);
  *id = number == KeyNumber(shape, 1) ? 1 : IdIn(number / shape.numbers, number % shape.numbers);
  for (std::uint32_t word = 0; word < Words(shape.key_size); ++word) {
    const std::uint64_t right = Cut(KeyWord(shape, *id, word), WordBytes(shape.key_size, word));
    if (GetWord(key, shape.key_size, word) != right) return false;
  }
  return true;
}

void Add(const Shape& shape, std::uint64_t id, const std::byte* value, Contents* contents) {
  const std::uint64_t token = JudgeRow(value, shape.value_size, id);
  if (token == kWrongRow || token == kPoisonRow) {
    if (contents->defect.empty()) {
      contents->defect =
          fmt::format("{} holds what is not a whole value of it{}", KeyName(id),
                      token == kPoisonRow ? ": a find is ok and did not write its row" : "");
    }
    return;
  }
  contents->items.emplace_back(id, token);
}

}  // namespace

Contents FindAll(Store& store, const Shape& shape, std::span<const std::uint64_t> ids) {
  const std::size_t part = std::clamp<std::size_t>((32u << 20) / shape.value_size, 1, 1 << 16);
  std::vector<std::uint64_t> plan(part);
  std::vector<std::byte> keys(part * shape.key_size), found(part * shape.value_size), results(part);
  Contents contents;
  for (std::size_t first = 0; first < ids.size(); first += part) {
    const std::size_t n = std::min(part, ids.size() - first);
    for (std::size_t i = 0; i < n; ++i) plan[i] = Planned(Op::kFind, ids[first + i]);
    Rows rows;
    rows.shape = shape;
    rows.n = static_cast<std::uint32_t>(n);
    rows.plan = plan.data();
    rows.keys = keys.data();
    rows.found = found.data();
    rows.results = results.data();
    FillRows(rows);
    store.Find(std::span(keys).first(n * shape.key_size),
               std::span(found).first(n * shape.value_size),
               std::span(reinterpret_cast<Result*>(results.data()), n));
    for (std::size_t i = 0; i < n; ++i) {
      const auto result = static_cast<Result>(results[i]);
      if (result == Result::kOk) {
        Add(shape, ids[first + i], found.data() + i * shape.value_size, &contents);
      } else if (result != Result::kNotFound && contents.defect.empty()) {
        contents.defect = fmt::format("a find of {} gives {:#x}", KeyName(ids[first + i]),
                                      static_cast<unsigned>(results[i]));
      }
    }
  }
  std::sort(contents.items.begin(), contents.items.end());
  return contents;
}

Contents VisitAll(Store& store, const Shape& shape) {
  return Visited(shape, [&](const Store::Visitor& visit) { store.ForEach(visit); });
}

Contents Visited(const Shape& shape, const std::function<void(const Store::Visitor&)>& for_each) {
  Contents contents;
  for_each([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    std::uint64_t id = 0;
    if (IdOfKey(shape, key.data(), &id)) {
      Add(shape, id, value.data(), &contents);
    } else if (contents.defect.empty()) {
      contents.defect = fmt::format("a visit meets a key that nobody inserted: {:#x} ...",
                                    GetWord(key.data(), shape.key_size, 0));
    }
  });
  std::sort(contents.items.begin(), contents.items.end());
  const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(contents.items.begin(), contents.items.end(), same_key);
  if (twice != contents.items.end() && contents.defect.empty()) {
    contents.defect = fmt::format("a visit meets {} twice", KeyName(twice->first));
  }
  return contents;
}

std::string Difference(const Contents& expected, const Contents& contents) {
  for (const Contents* side : {&expected, &contents}) {
    if (!side->defect.empty()) return side->defect;
  }
  const auto [left, right] = std::mismatch(expected.items.begin(), expected.items.end(),
                                           contents.items.begin(), contents.items.end());
  if (left == expected.items.end() && right == contents.items.end()) return {};
  const auto name = [](const auto& at, const auto& end) {
    return at == end ? std::string("nothing more")
                     : fmt::format("{} with {:#x}", KeyName(at->first), at->second);
  };
  return fmt::format("{} items, and not {}; first difference: {}, and not {}",
                     contents.items.size(), expected.items.size(),
                     name(right, contents.items.end()), name(left, expected.items.end()));
}

}  // namespace gpm::stress

#ifndef GPM_TYPED_STORE_H_
#define GPM_TYPED_STORE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpmstore/store.h"

namespace gpm {

namespace detail {
/// Whether a type is an address, as far as can be seen: not of the members of a class.
template <class T>
inline constexpr bool kIsAddress = std::is_pointer_v<T> || std::is_member_pointer_v<T> ||
                                   std::is_null_pointer_v<T> || std::ranges::view<T>;

/// The element that values of a type consist of, where it is one or an array of some.
template <class T>
inline constexpr Element kElementOf = Element::kNone;
template <>
inline constexpr Element kElementOf<float> = Element::kFloat32;
template <>
inline constexpr Element kElementOf<std::uint64_t> = Element::kUInt64;
template <class T, std::size_t n>
inline constexpr Element kElementOf<std::array<T, n>> = kElementOf<T>;
}  // namespace detail

inline constexpr std::size_t kMaxTypedBytes = 64 * 1024;

/// A Store of keys and values of C++ types: the same calls, with spans of keys and values, and the
/// same promises. What is not here, such as mixed batches, is called on store().
///
/// @tparam Key trivially copyable, of 1 to 255 bytes, all of which tell keys apart: so without
///         padding, and no floating point number
/// @tparam Value trivially copyable, of 1 byte to 64 KiB (larger ones: Store); no pointers inside
template <class Key, class Value>
class TypedStore {
  static_assert(std::is_trivially_copyable_v<Key> && std::is_trivially_copyable_v<Value>,
                "keys and values are stored as their bytes");
  static_assert(sizeof(Key) <= 255, "a key has 1 to 255 bytes");
  static_assert(std::has_unique_object_representations_v<Key>,
                "keys that are equal must have equal bytes: no padding, no floating point numbers");
  static_assert(sizeof(Value) <= kMaxTypedBytes,
                "a value of a typed store has at most 64 KiB, since it is copied on the stack");
  static_assert(!detail::kIsAddress<Key> && !detail::kIsAddress<Value>,
                "an address means nothing when the pool is opened again");

 public:
  using Keys = std::span<const Key>;
  using Values = std::span<const Value>;

  TypedStore() = default;  ///< empty

  /// As Store's. The types say the sizes, whatever `create` does.
  static TypedStore Create(const std::string& path, const CreateOptions& create = {},
                           const OpenOptions& open = {}) {
    return TypedStore(Store::Create(path, Sized(create), open));
  }
  static TypedStore OpenOrCreate(const std::string& path, const CreateOptions& create = {},
                                 const OpenOptions& open = {}) {
    return TypedStore(Store::OpenOrCreate(path, Sized(create), open));
  }
  /// @throws as Store::Open; Error(kInvalidArgument) for a pool of other sizes
  static TypedStore Open(const std::string& path, const OpenOptions& open = {}) {
    Store store = Store::Open(path, open);
    const std::uint32_t key_size = store.key_size();
    const std::uint32_t value_size = store.value_size();
    if (key_size != sizeof(Key) || value_size != sizeof(Value)) {
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": the pool has keys of " + std::to_string(key_size) +
                      " bytes and values of " + std::to_string(value_size) + ", not of " +
                      std::to_string(sizeof(Key)) + " and " + std::to_string(sizeof(Value)));
    }
    return TypedStore(std::move(store));
  }

  explicit operator bool() const { return static_cast<bool>(store_); }
  Store& store() { return store_; }
  StoreStats Stats() const { return store_.Stats(); }
  void Close() { store_.Close(); }

  /// Batches of one kind: n keys, n values, n results; host or device memory.
  /// @return how many operations were not kOk; kNotCounted with results in device memory
  std::uint64_t Find(Keys keys, std::span<Value> found, std::span<Result> results) {
    return store_.Find(std::as_bytes(keys), std::as_writable_bytes(found), results);
  }
  std::uint64_t Insert(Keys keys, Values values, std::span<Result> results) {
    return store_.Insert(std::as_bytes(keys), std::as_bytes(values), results);
  }
  std::uint64_t Update(Keys keys, Values values, std::span<Result> results) {
    return store_.Update(std::as_bytes(keys), std::as_bytes(values), results);
  }
  std::uint64_t Upsert(Keys keys, Values values, std::span<Result> results) {
    return store_.Upsert(std::as_bytes(keys), std::as_bytes(values), results);
  }
  std::uint64_t Erase(Keys keys, std::span<Result> results) {
    return store_.Erase(std::as_bytes(keys), results);
  }
  /// New items get `initial`. @param found the values that there are afterwards, or empty
  std::uint64_t FindOrInsert(Keys keys, const Value& initial, std::span<Value> found,
                             std::span<Result> results) {
    const auto row = std::as_bytes(std::span(&initial, 1));
    return store_.FindOrInsert(std::as_bytes(keys), InitialValue::Constant(row), Element::kNone, {},
                               std::as_writable_bytes(found), results);
  }
  /// @tparam element that values consist of; of float, std::uint64_t and arrays of these it is
  /// known
  template <Element element = detail::kElementOf<Value>>
  std::uint64_t Accumulate(Keys keys, Values rows, std::span<Result> results) {
    static_assert(element != Element::kNone, "name the element: Accumulate<Element::kFloat32>");
    static_assert(sizeof(Value) % ElementBytes(element) == 0, "a value consists of elements");
    return store_.Accumulate(std::as_bytes(keys), element, std::as_bytes(rows), results);
  }
  std::uint64_t BulkLoad(Keys keys, Values values, std::span<Result> results) {
    return store_.BulkLoad(std::as_bytes(keys), std::as_bytes(values), results);
  }

  /// The same for who asks for no more than how many operations were not kOk.
  [[nodiscard]] std::uint64_t Find(Keys keys, std::span<Value> found) {
    return Find(keys, found, Results(keys));
  }
  [[nodiscard]] std::uint64_t Insert(Keys keys, Values values) {
    return Insert(keys, values, Results(keys));
  }
  [[nodiscard]] std::uint64_t Update(Keys keys, Values values) {
    return Update(keys, values, Results(keys));
  }
  [[nodiscard]] std::uint64_t Upsert(Keys keys, Values values) {
    return Upsert(keys, values, Results(keys));
  }
  [[nodiscard]] std::uint64_t Erase(Keys keys) { return Erase(keys, Results(keys)); }
  [[nodiscard]] std::uint64_t BulkLoad(Keys keys, Values values) {
    return BulkLoad(keys, values, Results(keys));
  }

  /// Batches of one operation, for convenience.
  [[nodiscard]] std::optional<Value> Get(const Key& key) {
    std::array<std::byte, sizeof(Value)> bytes;
    if (!store_.Get(std::as_bytes(std::span(&key, 1)), bytes)) return std::nullopt;
    return std::bit_cast<Value>(bytes);
  }
  /// Upsert. @return kOk or kNoSpace
  [[nodiscard]] Result Put(const Key& key, const Value& value) {
    return store_.Put(std::as_bytes(std::span(&key, 1)), std::as_bytes(std::span(&value, 1)));
  }
  /// @return whether there was such an item
  bool Delete(const Key& key) { return store_.Delete(std::as_bytes(std::span(&key, 1))); }

  /// Calls `visit(const Key&, const Value&)` for every item, as Store::ForEach does; when it
  /// returns bool, until it returns false. @return whether it saw all items
  template <class Visit>
  bool ForEach(Visit&& visit) {
    return store_.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      const auto key_object = Object<Key>(key);
      const auto value_object = Object<Value>(value);
      if constexpr (std::is_same_v<std::invoke_result_t<Visit&, const Key&, const Value&>, bool>) {
        return visit(key_object, value_object);
      } else {
        visit(key_object, value_object);
        return true;
      }
    });
  }

 private:
  explicit TypedStore(Store store) : store_(std::move(store)) {}
  static CreateOptions Sized(CreateOptions create) {
    create.key_size = sizeof(Key);
    create.value_size = sizeof(Value);
    return create;
  }
  template <class T>
  static T Object(std::span<const std::byte> bytes) {
    std::array<std::byte, sizeof(T)> copy;
    std::memcpy(copy.data(), bytes.data(), sizeof(T));
    return std::bit_cast<T>(copy);
  }

  /// Valid during the call that it is an argument of.
  class Results {
   public:
    explicit Results(Keys keys) : results_(keys.size()) {}
    operator std::span<Result>() { return results_; }

   private:
    std::vector<Result> results_;
  };

  Store store_;
};

}  // namespace gpm

#endif  // GPM_TYPED_STORE_H_

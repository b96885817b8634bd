#ifndef GPM_ENGINE_AS_CREATED_H_
#define GPM_ENGINE_AS_CREATED_H_

#include <fmt/format.h>

#include <string>

#include "gpmstore/error.h"
#include "gpmstore/options.h"

namespace gpm {

/// @param what it is, for the message
/// @throws Error(kInvalidArgument) when what was opened is not as the caller would create it
template <class AnyStore>
void RequireAsCreated(const std::string& path, const char* what, const AnyStore& store,
                      const CreateOptions& create) {
  if (store.key_size() != create.key_size || store.value_size() != create.value_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the {} has keys of {} bytes and values of {}, not of {} and {}",
                            path, what, store.key_size(), store.value_size(), create.key_size,
                            create.value_size));
  }
  if (!create.attributes.empty() && store.attributes() != create.attributes) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: the {} has other attributes, which stay as it was created", path, what));
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_AS_CREATED_H_

#ifndef GPM_PM_FILE_ACCESS_H_
#define GPM_PM_FILE_ACCESS_H_

#include <string>

namespace gpm {

/// Gives a file that takes the place of another its owner and permissions.
/// @throws Error(kIo)
void CopyAccess(const std::string& from, const std::string& to);

}  // namespace gpm

#endif  // GPM_PM_FILE_ACCESS_H_

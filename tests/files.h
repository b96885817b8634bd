#ifndef GPM_TESTS_FILES_H_
#define GPM_TESTS_FILES_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace gpm::test {

/// All bytes of a file; none if there is no file.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Gives a file these bytes and no others.
inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Names of the files in a folder.
inline std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace gpm::test

#endif  // GPM_TESTS_FILES_H_

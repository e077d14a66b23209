#pragma once

namespace weft {

// The commit that this program was built from, ", changed" behind it when the sources were not those of the commit, or
// "unknown" outside of a repository. The build writes its definition (cmake/commit.cmake).
extern const char* const kBuildCommit;

inline constexpr const char* kVersion = "0.1.0";

}  // namespace weft

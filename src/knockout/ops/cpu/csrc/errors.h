// Errors that say which argument is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace knockout {

using Sizes = std::vector<int64_t>;

inline std::ostream& operator<<(std::ostream& out, const Sizes& sizes) {
  out << "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) out << (i ? ", " : "") << sizes[i];
  return out << ")";
}

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  text << "knockout: ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// Raise an error with a text made of the parts, unless the condition holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    refuse(parts...);
}

}  // namespace knockout

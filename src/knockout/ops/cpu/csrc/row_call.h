// The arguments of a call that all its rows have in common.
#pragma once

#include <bit>
#include <cstdint>

#include "active_candidates.h"
#include "boost.h"

namespace knockout {

template <class T>
struct RowCall {
  RowShape shape;
  Boost<T> boost;
  bool by_position;  // whether slots are in the order of their leaders' indices, instead of their scores
  int32_t hash;      // of all that determines what saved rounds mean, so that those of another call are recognized

  RowCall(const RowShape& shape_, const Boost<T>& boost_, bool by_position_)
      : shape(shape_), boost(boost_), by_position(by_position_), hash(hash_of_arguments()) {}

  // The call as it is for a row that wants so many slots.
  RowCall wanting(int64_t slots) const {
    RowCall own = *this;
    own.shape.wanted = slots;
    own.hash = static_cast<int32_t>((static_cast<uint32_t>(hash) ^ static_cast<uint32_t>(slots)) * 0x01000193);
    return own;
  }

 private:
  int32_t hash_of_arguments() const {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, with 64 bits at a time
    const double c = double(boost.c), unit = double(boost.unit);
    for (const uint64_t part :
         {uint64_t(sizeof(T)), uint64_t(shape.n), uint64_t(shape.k), uint64_t(shape.numerator), uint64_t(shape.least),
          uint64_t(boost.kind), uint64_t(boost.adaptive), uint64_t(boost.alpha), std::bit_cast<uint64_t>(c),
          std::bit_cast<uint64_t>(unit), uint64_t(by_position)}) {
      hash = (hash ^ part) * 0x100000001b3;
      hash ^= hash >> 32;
    }
    return static_cast<int32_t>(hash);
  }
};

}  // namespace knockout

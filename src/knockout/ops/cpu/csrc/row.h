// One row of scores, from what came in to what goes out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "express.h"
#include "tournament.h"

namespace knockout {

// As Quota in knockout/quota.py: k slots, of which a row fills its share of `parts` in 2^30, or all if that is 0.
struct Shape {
  int64_t n, k, parts;
  int rounds = 0;
  Shape(int64_t n_, int64_t k_, int64_t parts_ = 0) : n(n_), k(k_), parts(parts_) {
    while (parts ? (parts << rounds) < kWhole && places() < n : (k << rounds) < n) ++rounds;
  }
  int64_t places() const { return int64_t{1} << rounds; }  // for the members of a slot
  int64_t slots(int64_t count) const {                     // of a row with so many candidates
    return parts ? (count * parts + kWhole - 1) / kWhole : k;
  }

  static constexpr int64_t kWhole = int64_t{1} << 30;
};

// A row of scores of type S as it lies in memory, and who takes part.
template <class S>
struct Scores {
  const S* score;
  int64_t stride;
  const bool* mask;  // or null
  int64_t mask_stride;

  bool alive(int64_t i) const {
    return (!mask || mask[i * mask_stride]) &&
           static_cast<float>(score[i * stride]) != -std::numeric_limits<float>::infinity();
  }
};
template <>
inline bool Scores<double>::alive(int64_t i) const {
  return (!mask || mask[i * mask_stride]) && score[i * stride] != -std::numeric_limits<double>::infinity();
}

// The head of a row's ledger.
struct Head {
  int32_t rounds;  // or -1: a spoiled row, and nothing follows
  int32_t hasty;   // rounds without a full field
  int32_t filled;  // slots
  int32_t nodes, ordered, unused;
};

// How long the parts of a ledger are.
struct Room {
  int64_t k, ordered, nodes;
  static Room for_all(const Shape& shape) { return {shape.k, shape.n, shape.n - shape.k}; }

  int64_t integers() const { return (6 + 6 * kMostRounds + k + ordered + 2 * nodes + 1) / 2 * 2; }
  template <class T>
  int64_t length() const {
    return integers() + (kMostRounds + 3 * nodes) * static_cast<int64_t>(sizeof(T) / sizeof(int32_t));
  }
};

// What a row's backward pass needs, in one flat array: of integers, with the numbers of type T at its end.
template <class T>
struct Ledger {
  Head* head;
  int32_t* roots;  // of the slots, in their order
  Record<T> record;

  Ledger(int32_t* data, const Room& room) : head(reinterpret_cast<Head*>(data)) {
    static_assert(sizeof(Round) == 6 * sizeof(int32_t) && sizeof(Head) == 6 * sizeof(int32_t));
    record.round = reinterpret_cast<Round*>(data + 6);
    roots = data + 6 + 6 * kMostRounds;
    record.order = roots + room.k;
    record.better = record.order + room.ordered;
    record.worse = record.better + room.nodes;
    record.leader = nullptr;
    record.scale = reinterpret_cast<T*>(data + room.integers());
    record.share = record.scale + kMostRounds;
    record.score = record.share + room.nodes;
    record.gap = record.score + room.nodes;
  }

  // As it was written.
  static Ledger read(int32_t* data, int64_t k) {
    const Head* head = reinterpret_cast<const Head*>(data);
    return Ledger(data, {k, head->ordered, head->nodes});
  }
};

// Working memory, for one row after the other.
template <class T>
struct Workspace {
  Buffer<Entry<T>> entries;
  Buffer<T> score;
  Buffer<int32_t> index, leader, ledger;

  explicit Workspace(const Shape& shape)
      : entries(shape.n), leader(shape.n - shape.k), ledger(Room::for_all(shape).length<T>()) {}

  T* scores(int64_t n) {
    if (!score.get()) score = Buffer<T>(n);
    return score.get();
  }
  int32_t* indices(int64_t n) {
    if (!index.get()) index = Buffer<int32_t>(n);
    return index.get();
  }
};

// Where the results of a row go, a number a slot.
template <class T>
struct Slots {
  T* score;
  int64_t* leader;
  bool* filled;
};

// The members of the slots of a row, and what its backward pass needs: as much as there is.
template <class T>
struct Outcome {
  std::vector<int32_t> member, end;  // `end`: of each slot
  std::vector<T> weight;
  std::vector<int32_t> ledger;
  bool sound = true;

  int64_t begin(int64_t slot) const { return slot ? end[slot - 1] : 0; }
  int64_t most() const {
    int64_t most = 1;
    for (size_t slot = 0; slot < end.size(); ++slot) most = std::max<int64_t>(most, end[slot] - begin(slot));
    return most;
  }
};

template <class T, class Team>
Limits<T> limits_of_row(const T* score, int64_t n, const Team& team) {
  constexpr int64_t part = 1 << 16;
  if (n <= part) return limits(score, n);
  std::vector<Limits<T>> parts((n + part - 1) / part);
  team(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) parts[i] = limits(score + i * part, std::min(part, n - i * part));
  });
  Limits<T> all = parts[0];
  for (const Limits<T>& each : parts) {
    all = {std::min(all.low, each.low), std::max(all.high, each.high), all.finite && each.finite};
  }
  return all;
}

template <class T, class S, class Team>
Entrants<T> enter(const Scores<S>& row, const Shape& shape, Workspace<T>& work, const Team& team) {
  const int64_t n = shape.n;
  const T* score = nullptr;
  if constexpr (std::is_same_v<T, S>) {
    if (row.stride == 1) score = row.score;
  }
  if (!score) {
    T* copy = work.scores(n);
    team(n, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) copy[i] = static_cast<T>(row.score[i * row.stride]);
    });
    score = copy;
  }
  if (!row.mask) {
    const Limits<T> limits = limits_of_row(score, n, team);
    if (limits.finite) return {score, nullptr, n, limits.low, limits.high, true};
  }
  // Somebody is missing, or something is wrong: keep those who take part.
  T* kept = work.scores(n);
  int32_t* index = work.indices(n);
  int64_t count = 0;
  bool sound = true;
  for (int64_t i = 0; i < n; ++i) {
    if (!row.alive(i)) continue;
    sound = sound && std::isfinite(score[i]);
    kept[count] = score[i];
    index[count++] = static_cast<int32_t>(i);
  }
  if (count == 0 || !sound) return {kept, index, count, T(0), T(0), sound};
  const Limits<T> limits = limits_of_row<T>(kept, count, team);
  return {kept, index, count, limits.low, limits.high, true};
}

// A row with a NaN or +inf score: all NaN, led by the first that take part.
template <class T>
void spoil(const Entrants<T>& entrants, const Shape& shape, const Slots<T>& out, Outcome<T>& outcome) {
  outcome.sound = false;
  outcome.ledger = {-1, 0, 0, 0, 0, 0};
  std::fill_n(out.score, shape.k, std::numeric_limits<T>::quiet_NaN());
  const int64_t filled = std::min(entrants.count, shape.slots(entrants.count));
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    out.filled[slot] = slot < filled;
    out.leader[slot] = out.filled[slot] ? entrants.index[slot] : -1;
    if (out.filled[slot]) outcome.member.push_back(entrants.index[slot]);
    outcome.end.push_back(static_cast<int32_t>(outcome.member.size()));
  }
  outcome.weight.assign(outcome.member.size(), std::numeric_limits<T>::quiet_NaN());
}

// Who is in which slot.
template <class T, class Team>
void collect(const Entry<T>* slots, int64_t filled, const Shape& shape, const Record<T>& record, Outcome<T>& outcome,
             const Team& team) {
  // One list for all, or, with many threads, one a slot.
  struct List {
    std::vector<int32_t> member;
    std::vector<T> weight;
  };
  std::vector<List> lists(team.width() == 1 ? 0 : shape.k);
  outcome.end.resize(shape.k);
  outcome.member.reserve(4 * shape.k), outcome.weight.reserve(4 * shape.k);
  team(filled, std::max<int64_t>(1, (1 << 15) / shape.places()), [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      auto& member = lists.empty() ? outcome.member : lists[slot].member;
      auto& weight = lists.empty() ? outcome.weight : lists[slot].weight;
      members_of(slots[slot].ref, shape.n, record, [&](int32_t who, T share) {
        member.push_back(who);
        weight.push_back(share);
      });
      outcome.end[slot] = static_cast<int32_t>(member.size());
    }
  });
  for (size_t slot = 0; slot < lists.size(); ++slot) {
    outcome.member.insert(outcome.member.end(), lists[slot].member.begin(), lists[slot].member.end());
    outcome.weight.insert(outcome.weight.end(), lists[slot].weight.begin(), lists[slot].weight.end());
    outcome.end[slot] = static_cast<int32_t>(outcome.member.size());
  }
  std::fill(outcome.end.begin() + filled, outcome.end.end(), static_cast<int32_t>(outcome.member.size()));
}

// Copy what was used of one ledger into another with less room.
template <class T>
void copy_ledger(const Ledger<T>& from, const Ledger<T>& to, int64_t k) {
  const int64_t ordered = from.head->ordered, nodes = from.head->nodes;
  const Record<T>&source = from.record, &target = to.record;
  *to.head = *from.head;
  std::copy(source.round, source.round + kMostRounds, target.round);
  std::copy(from.roots, from.roots + k, to.roots);
  std::copy(source.order, source.order + ordered, target.order);
  std::copy(source.better, source.better + nodes, target.better);
  std::copy(source.worse, source.worse + nodes, target.worse);
  std::copy(source.scale, source.scale + kMostRounds, target.scale);
  std::copy(source.share, source.share + nodes, target.share);
  std::copy(source.score, source.score + nodes, target.score);
  std::copy(source.gap, source.gap + nodes, target.gap);
}

// The candidates, sorted; or, of a long row, what is left of them after some rounds.
template <class T, class Team>
void line_up(const Entrants<T>& entrants, int64_t k, const Boost<T>& boost, const Leaders& leaders,
             const Record<T>& record, Entry<T>* entries, Game& game, const Team& team) {
  const Candidates<T> candidates{entrants.score, entrants.index};
  if (entrants.count <= kSmall || entrants.low == entrants.high) {
    for (int64_t i = 0; i < entrants.count; ++i) entries[i] = candidates[i];
    if (entrants.low < entrants.high) sort_few(entries, entrants.count, leaders);
    return;
  }
  const Field<T> field(entries, candidates, entrants.count, entrants.low, entrants.high, leaders, team);
  if (Express<T>::rounds_of(game, k, boost) &&
      Express<T>(field, entrants, game, k, boost, leaders)(record, entries, game, team)) {
    return;
  }
  field.sort(team);
}

template <class T, class S, class Team>
void select_row(const Scores<S>& row, const Shape& shape, const Boost<T>& boost, bool by_position, bool save,
                Workspace<T>& work, const Slots<T>& out, Outcome<T>& outcome, const Team& team) {
  const Entrants<T> entrants = enter<T>(row, shape, work, team);
  if (!entrants.sound) return spoil(entrants, shape, out, outcome);
  Ledger<T> ledger(work.ledger.get(), Room::for_all(shape));
  ledger.record.leader = work.leader.get();
  if (!save) ledger.record.score = nullptr;
  const Record<T>& record = ledger.record;
  const Leaders leaders{static_cast<int32_t>(shape.n), work.leader.get()};
  Entry<T>* const slots = work.entries.get();
  const int64_t k = shape.slots(entrants.count);
  Game game(entrants.count, k);
  line_up(entrants, k, boost, leaders, record, slots, game, team);
  const int64_t ordered = game.size;
  play(slots, game, k, boost, leaders, record, team);

  const int64_t filled = std::min(entrants.count, k);
  if (save) {
    team(ordered, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) record.order[i] = slots[i].ref;
    });
  }
  if (by_position) {
    std::sort(slots, slots + filled,
              [&](const Entry<T>& one, const Entry<T>& other) { return leaders(one.ref) < leaders(other.ref); });
  }
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    const bool taken = slot < filled;
    out.filled[slot] = taken;
    out.score[slot] = taken ? slots[slot].score : T(0);
    out.leader[slot] = taken ? leaders(slots[slot].ref) : -1;
  }
  collect(slots, filled, shape, record, outcome, team);
  if (!save) return;
  *ledger.head = {game.rounds,
                  game.hasty,
                  static_cast<int32_t>(filled),
                  static_cast<int32_t>(game.nodes),
                  static_cast<int32_t>(ordered),
                  0};
  for (int64_t slot = 0; slot < shape.k; ++slot) ledger.roots[slot] = slot < filled ? slots[slot].ref : 0;
  std::fill(record.round + game.rounds, record.round + kMostRounds, Round{});
  std::fill(record.scale + game.rounds, record.scale + kMostRounds, T(0));
  const Room room{shape.k, ordered, game.nodes};
  outcome.ledger.resize(room.length<T>());
  copy_ledger(ledger, Ledger<T>(outcome.ledger.data(), room), shape.k);
}

// What a row's outputs got back: derivatives of the weights (k, members) and of the blended scores, either may be null.
template <class T>
struct Back {
  const T* weight;
  const T* score;
};

template <class T, class S, class Team>
void select_row_backward(const Scores<S>& row, const Shape& shape, const Boost<T>& boost, const int32_t* member,
                         int64_t places, const Back<T>& back, Ledger<T> ledger, S* out, const Team& team) {
  const int64_t n = shape.n, nodes = ledger.head->nodes, ordered = ledger.head->ordered;
  if (ledger.head->rounds < 0) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<S>(row.alive(i) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    return;
  }
  Buffer<T> score(n + nodes), weight(nodes), share(n + nodes);
  const Gradient<T> gradient{score.get(), share.get(), weight.get()};
  team(n + nodes, 1 << 16, [&](int64_t begin, int64_t end) {
    std::fill(gradient.score + begin, gradient.score + end, T(0));
    std::fill(gradient.member + begin, gradient.member + end, T(0));
    if (begin < nodes) std::fill(gradient.weight + begin, gradient.weight + std::min(end, nodes), T(0));
  });
  team(ledger.head->filled, std::max<int64_t>(1, (1 << 15) / places), [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int32_t root = ledger.roots[slot];
      if (back.score) gradient.score[root] = back.score[slot];
      if (!back.weight) continue;
      for (int64_t i = slot * places; i < (slot + 1) * places && member[i] < n; ++i) {
        gradient.member[member[i]] = back.weight[i];
      }
      weigh(root, n, ledger.record, gradient);
    }
  });
  Game game(0, 1);
  game.rounds = ledger.head->rounds, game.nodes = nodes, game.hasty = ledger.head->hasty;
  // The order of the field is changed on the way back; it is not ours to change.
  Buffer<int32_t> order(ordered);
  std::copy(ledger.record.order, ledger.record.order + ordered, order.get());
  ledger.record.order = order.get();
  play_back(game, n, boost, ledger.record, gradient, team);
  team(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<S>(gradient.score[i]);
  });
}

}  // namespace knockout

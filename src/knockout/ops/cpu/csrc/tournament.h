// The tournament over the scores of one row: forward, and its derivative.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "exact.h"
#include "field.h"

namespace knockout {

constexpr int kMostRounds = 31;

inline int rounds_of(int64_t n, int64_t k) {
  int rounds = 0;
  while ((k << rounds) < n) ++rounds;
  return rounds;
}

// Where the scale of a round comes from, for its derivative.
enum class Source : int32_t { floor = 0, mean = 1, both = 2, none = 3 };

// One round. Ranks [0, byes) had no opponent, the next `pairs` met the last `pairs`; of those, the first `decided` won
// outright and the others became the nodes from `node` on.
struct Round {
  int32_t size, byes, pairs, decided, node;
  Source source;
};

// How the field came about. A node is a pair that was blended: its better and worse one, and the better one's share.
template <class T>
struct Record {
  Round* round;
  T* scale;        // of each round
  int32_t* order;  // refs, in the order of the field when all was over
  int32_t *better, *worse, *leader;
  T *share, *score, *gap;  // score: of the better one
};

// The candidates of a row, those who take part: their scores and indices (null where nobody is missing), and between
// what they lie.
template <class T>
struct Entrants {
  const T* score;
  const int32_t* index;
  int64_t count;
  T low, high;
  bool sound;
};

// How far a row has come.
struct Game {
  int32_t rounds, played = 0;
  int32_t hasty = 0;  // rounds without a full field, see express.h
  int64_t size, nodes = 0;
  Game(int64_t alive, int64_t k) : rounds(rounds_of(alive, k)), size(alive) {}
};

// --- one round's arithmetic, many pairs at a time ---

constexpr int64_t kPairs = 256;  // at a time
constexpr int32_t kFew = 48;     // not worth a search

template <class T>
struct Meeting {
  T better[kPairs], worse[kPairs], gap[kPairs], share[kPairs], blend[kPairs];
};

template <Kind kind, Alpha alpha, class T>
KNOCKOUT_INLINE void meet_as(Meeting<T>& m, int64_t count, T c, T scale) {
  for (int64_t i = 0; i < count; ++i) {
    const T gap = m.better[i] - m.worse[i];
    const T clamped = clamp_gap(gap);
    const T share = share_of<alpha>(logit<kind>(m.better[i], clamped, c, scale));
    m.gap[i] = gap;
    m.share[i] = share;
    m.blend[i] = m.better[i] - (T(1) - share) * clamped;
  }
}

template <Kind kind, class T>
KNOCKOUT_INLINE void meet_by_alpha(Meeting<T>& m, int64_t count, const Boost<T>& boost, T scale) {
  if (boost.alpha == Alpha::softmax) return meet_as<kind, Alpha::softmax>(m, count, boost.c, scale);
  if (boost.alpha == Alpha::entmax) return meet_as<kind, Alpha::entmax>(m, count, boost.c, scale);
  meet_as<kind, Alpha::sparsemax>(m, count, boost.c, scale);
}

template <class T>
KNOCKOUT_INLINE void meet_by_kind(Meeting<T>& m, int64_t count, const Boost<T>& boost, T scale) {
  if (boost.kind == Kind::relative) return meet_by_alpha<Kind::relative>(m, count, boost, scale);
  if (boost.kind == Kind::fixed) return meet_by_alpha<Kind::fixed>(m, count, boost, scale);
  meet_by_alpha<Kind::power>(m, count, boost, scale);
}

KNOCKOUT_WIDE void meet(Meeting<float>& m, int64_t count, const Boost<float>& boost, float scale) {
  meet_by_kind(m, count, boost, scale);
}
KNOCKOUT_WIDE void meet(Meeting<double>& m, int64_t count, const Boost<double>& boost, double scale) {
  meet_by_kind(m, count, boost, scale);
}

// --- forward ---

template <class T>
KNOCKOUT_INLINE Total distances_of(const Entry<T>* entry, int64_t count, const Grid& grid) {
  const Grid mine = grid;
  if (count < 2 * kLanes) {
    Total few;
    for (int64_t i = 0; i < count; ++i) mine.add(double(entry[i].score), few.coarse, few.fine);
    return few;
  }
  double coarse[kLanes] = {}, fine[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) mine.add(double(entry[i + lane].score), coarse[lane], fine[lane]);
  }
  for (; i < count; ++i) mine.add(double(entry[i].score), coarse[0], fine[0]);
  Total total;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += {coarse[lane], fine[lane]};
  return total;
}
KNOCKOUT_WIDE Total distances(const Entry<float>* entry, int64_t count, const Grid& grid) {
  return distances_of(entry, count, grid);
}
KNOCKOUT_WIDE Total distances(const Entry<double>* entry, int64_t count, const Grid& grid) {
  return distances_of(entry, count, grid);
}

// The field of a row before a round, best first: in order up to `sorted`, and those behind are worse than these, in any
// order. Most of them lose outright, and then nobody asks who was the worst.
template <class T>
struct Lineup {
  Entry<T>* entry;
  int64_t size, sorted;
  Leaders leaders;

  template <class Team>
  void sort(const Team& team) {
    sort_entries(entry + sorted, size - sorted, leaders, team);
    sorted = size;
  }

  // Cut off at `end`; from `begin` on there are blends now, never better than those before. They come nearly in order
  // as long as their pairs are far apart, so the first are sorted by moving them a little.
  void close(int64_t begin, int64_t end) {
    constexpr int64_t near = 8;
    size = end;
    if (begin == end) {
      sorted = end;
      return;
    }
    int64_t at = begin + 1;
    for (; at < end; ++at) {
      const Entry<T> moving = entry[at];
      if (entry[at - 1].score > moving.score) continue;
      int64_t to = at;
      while (to > begin && at - to <= near && is_better(moving, entry[to - 1], leaders)) --to;
      if (at - to > near) break;
      std::copy_backward(entry + to, entry + at, entry + at + 1);
      entry[to] = moving;
    }
    if (at < end) {
      T best = entry[at].score;
      for (int64_t i = at; i < end; ++i) best = std::max(best, entry[i].score);
      while (at > begin && entry[at - 1].score <= best) --at;
    }
    sorted = at;
  }

  T worst() const {
    T worst = entry[size - 1].score;
    for (int64_t i = sorted; i < size; ++i) worst = std::min(worst, entry[i].score);
    return worst;
  }
};

// The mean gap, or the floor where it cannot be above it.
template <class T, class Team>
T narrow(const Lineup<T>& field, const Round& round, T floor, Source& source, const Team& team) {
  const T best = field.entry[round.byes].score, worst = field.worst();
  const T middle = field.entry[round.byes + round.pairs - 1].score;
  source = Source::floor;
  if (best - worst < floor) return floor;
  const int64_t count = 2 * int64_t{round.pairs}, part = 1 << 16;
  const double center = double(middle) * kDown;
  const Grid grid(center, std::max(double(best) * kDown - center, center - double(worst) * kDown), count);
  const Entry<T>* entries = field.entry + round.byes;
  Total total;
  if (count <= part) {
    total = distances(entries, count, grid);
  } else {
    std::vector<Total> parts((count + part - 1) / part);
    team(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        parts[i] = distances(entries + i * part, std::min(part, count - i * part), grid);
    });
    for (const Total& each : parts) total += each;
  }
  const T mean = mean_of<T>(total, round.pairs);
  if (mean < floor) return floor;
  source = mean > floor ? Source::mean : Source::both;
  if (mean == std::numeric_limits<T>::max()) source = Source::none;
  return mean;
}

// The first pair that is not decided beyond doubt: logits fall from the best pair to the last.
template <class T>
int32_t first_undecided(const Lineup<T>& field, const Round& round, const Boost<T>& boost, T scale) {
  if (round.pairs <= kFew) return 0;  // quicker to blend them all
  int32_t low = 0, high = round.pairs;
  while (low < high) {
    const int32_t pair = low + (high - low) / 2;
    // Of those who are not sorted, the best that they could be.
    const int64_t other = std::min<int64_t>(round.size - 1 - pair, field.sorted - 1);
    const T better = field.entry[round.byes + pair].score, worse = field.entry[other].score;
    if (logit(boost, better, clamp_gap(better - worse), scale) >= boost.decided()) {
      low = pair + 1;
    } else {
      high = pair;
    }
  }
  return low;
}

// Write down `count` pairs as nodes; `better` and `worse` tell who met.
template <class T, class Better, class Worse>
void note(const Meeting<T>& m, int64_t count, const Better& better, const Worse& worse, const Leaders& leaders,
          const Record<T>& record, int64_t node) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t ref = better(i);
    record.better[node + i] = ref;
    record.worse[node + i] = worse(i);
    record.leader[node + i] = leaders(ref);
  }
  std::copy(m.share, m.share + count, record.share + node);
  if (record.score) {
    std::copy(m.better, m.better + count, record.score + node);
    std::copy(m.gap, m.gap + count, record.gap + node);
  }
}

// The pairs that are not decided: blends take the places of their winners.
template <class T, class Team>
void blend_pairs(const Lineup<T>& field, const Round& round, const Boost<T>& boost, T scale, const Record<T>& record,
                 const Team& team) {
  const int32_t n = field.leaders.n;
  team(round.pairs - round.decided, 16 * kPairs, [&](int64_t begin, int64_t end) {
    Meeting<T> m;
    for (int64_t at = begin; at < end; at += kPairs) {
      const int64_t count = std::min(kPairs, end - at), node = round.node + at;
      Entry<T>* const better = field.entry + round.byes + round.decided + at;
      const Entry<T>* const worse = field.entry + round.size - 1 - round.decided - at;
      for (int64_t i = 0; i < count; ++i) m.better[i] = better[i].score;
      for (int64_t i = 0; i < count; ++i) m.worse[i] = worse[-i].score;
      meet(m, count, boost, scale);
      note(
          m, count, [=](int64_t i) { return better[i].ref; }, [=](int64_t i) { return worse[-i].ref; }, field.leaders,
          record, node);
      for (int64_t i = 0; i < count; ++i) better[i] = {m.blend[i], static_cast<int32_t>(n + node + i)};
    }
  });
}

// Play all rounds that are left, from a sorted field. Afterwards the first of it are the slots, in order.
template <class T, class Team>
void play(Entry<T>* entries, Game& game, int64_t k, const Boost<T>& boost, const Leaders& leaders,
          const Record<T>& record, const Team& team) {
  Lineup<T> field{entries, game.size, game.size, leaders};
  T scale = game.played ? record.scale[game.played - 1] : boost.start;
  for (int r = game.played; r < game.rounds; ++r) {
    const int64_t half = k << (game.rounds - r - 1);
    Round round{};
    round.size = static_cast<int32_t>(field.size);
    round.pairs = static_cast<int32_t>(field.size - half);
    round.byes = static_cast<int32_t>(half - round.pairs);
    round.node = static_cast<int32_t>(game.nodes);
    if (field.sorted < half) field.sort(team);
    if (boost.kind == Kind::relative) {
      const T floor = std::max(scale / 2, std::numeric_limits<T>::min());
      scale = narrow(field, round, floor, round.source, team);
    }
    round.decided = first_undecided(field, round, boost, scale);
    if (field.sorted < field.size - round.decided) {
      field.sort(team);
      round.decided = first_undecided(field, round, boost, scale);
    }
    blend_pairs(field, round, boost, scale, record, team);
    if (r < game.rounds - 1)
      field.close(round.byes + round.decided, half);  // the last round's order is that of its pairs
    field.size = half;
    game.nodes += round.pairs - round.decided;
    record.round[r] = round;
    record.scale[r] = scale;
  }
  game.played = game.rounds;
  game.size = field.size;
}

// use(member, weight) for the members of a slot that carry weight, the leader first.
template <class T, class Use>
void members_of(int32_t ref, int64_t n, const Record<T>& record, const Use& use) {
  struct Branch {
    int32_t ref;
    T weight;
  };
  std::array<Branch, kMostRounds + 1> branch;
  int depth = 0;
  branch[depth++] = {ref, T(1)};
  while (depth > 0) {
    auto [here, mine] = branch[--depth];
    while (here >= n) {
      const int64_t node = here - n;
      const T share = record.share[node], theirs = mine * (T(1) - share);
      if (theirs != T(0)) branch[depth++] = {record.worse[node], theirs};
      here = record.better[node];
      mine *= share;
    }
    if (mine != T(0)) use(here, mine);
  }
}

// --- backward ---

// With w the share of a node, s its score, W its weight in its slot, and bars for derivatives of the loss:
//
//   s = a - (1 - w) gap      gap = a - b      w = share(t)      t = logit(a, gap, scale)
//   weights of the better and the worse one: W w, W (1 - w)
//
//   wbar   = W (G(a) - G(b)) + sbar gap       G(x): the sum over the members of x of their share of x times wbar of the
//   gapbar = wbar w'(t) t'(gap) - (1 - w) sbar    member's weight, given
//   abar  += sbar + gapbar + wbar w'(t) t'(a)
//   bbar  -= gapbar
//   scalebar -= wbar w'(t) t / scale          (relative: t = c gap / scale)
//
// and from the scale to the mean gap, which is a sum over the whole field: + 1/pairs for who won, - 1/pairs for who
// lost, or to half the scale of the round before.
template <class T>
struct Gradient {
  T* score;   // of candidates and nodes: n + nodes, 0 to start with, but for the slots' own
  T* member;  // G, likewise; given for the members of slots, 0 to start with
  T* weight;  // W of the nodes, 0 to start with
};

// Fill in G and W of the nodes of one slot.
template <class T>
void weigh(int32_t root, int64_t n, const Record<T>& record, const Gradient<T>& gradient) {
  struct Visit {
    int32_t ref;
    bool done;
  };
  std::array<Visit, 2 * kMostRounds + 2> visit;
  int depth = 0;
  if (root >= n) gradient.weight[root - n] = T(1), visit[depth++] = {root, false};
  while (depth > 0) {
    auto [ref, done] = visit[--depth];
    const int64_t node = ref - n;
    const int32_t better = record.better[node], worse = record.worse[node];
    const T share = record.share[node], rest = T(1) - share;
    if (done) {
      gradient.member[ref] = share * gradient.member[better] + (rest != T(0) ? rest * gradient.member[worse] : T(0));
      continue;
    }
    visit[depth++] = {ref, true};
    const T weight = gradient.weight[node];
    if (better >= n) gradient.weight[better - n] = weight * share, visit[depth++] = {better, false};
    if (rest != T(0) && worse >= n) gradient.weight[worse - n] = weight * rest, visit[depth++] = {worse, false};
  }
}

// Nodes [begin, end) of a round; returns the derivative of its scale.
template <class T>
double part_backward(int64_t begin, int64_t end, int64_t n, const Boost<T>& boost, T scale, const Record<T>& record,
                     const Gradient<T>& gradient) {
  double d_scale = 0;
  for (int64_t node = begin; node < end; ++node) {
    const T d_score = gradient.score[n + node], weight = gradient.weight[node];
    if (d_score == T(0) && weight == T(0)) continue;
    const int32_t better = record.better[node], worse = record.worse[node];
    const T share = record.share[node];
    if (share >= T(1)) {
      gradient.score[better] += d_score;
      continue;
    }
    const T gap = clamp_gap(record.gap[node]), top = record.score[node];
    T d_share = d_score * gap;
    if (weight != T(0)) d_share += weight * (gradient.member[better] - gradient.member[worse]);
    const T t = logit(boost, top, gap, scale);
    const T d_t = d_share * share_slope(boost.alpha, t, share);
    T d_gap = -(T(1) - share) * d_score, d_top = d_score;
    if (boost.kind == Kind::relative) {
      d_gap += d_t * boost.c / scale;
      d_scale -= double(d_t) * double(t) / double(scale);
    } else if (boost.kind == Kind::fixed) {
      d_gap += d_t * boost.c;
    } else {
      const T height = exact_exp(std::min(boost.c * top, T(40)));
      d_gap += d_t * height * boost.c * exact_exp(-boost.c * gap);
      if (boost.c * top <= T(40)) d_top += d_t * boost.c * t;
    }
    if (!(record.gap[node] <= std::numeric_limits<T>::max())) d_gap = T(0);
    gradient.score[better] += d_top + d_gap;
    gradient.score[worse] -= d_gap;
  }
  return d_scale;
}

template <class T, class Team>
void play_back(const Game& game, int64_t n, const Boost<T>& boost, const Record<T>& record, const Gradient<T>& gradient,
               const Team& team) {
  constexpr int64_t part = 4096;  // fixed, so that the sum does not depend on the number of threads
  std::vector<double> sums;
  double carried = 0;  // derivative of this round's scale by way of the next one's floor
  int64_t end = game.nodes;
  for (int r = game.rounds - 1; r >= 0; --r) {
    const Round round = record.round[r];
    const int64_t count = end - round.node;
    sums.assign((count + part - 1) / part, 0.0);
    team(static_cast<int64_t>(sums.size()), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        sums[i] = part_backward(round.node + i * part, std::min(round.node + (i + 1) * part, end), n, boost,
                                record.scale[r], record, gradient);
      }
    });
    end = round.node;
    if (boost.kind != Kind::relative) continue;
    double d_scale = carried;
    for (const double each : sums) d_scale += each;
    const double to_mean = round.source == Source::mean ? 1.0 : round.source == Source::both ? 0.5 : 0.0;
    const double to_floor = round.source == Source::floor ? 0.5 : round.source == Source::both ? 0.25 : 0.0;
    carried = to_floor * d_scale;
    if (r < game.hasty) continue;  // at the floor, all of them
    // The field as this round found it: the winners of its blended pairs back in their places.
    int32_t* field = record.order + round.byes;
    std::copy(record.better + round.node, record.better + round.node + count, field + round.decided);
    const T each = T(to_mean * d_scale / round.pairs);
    if (each == T(0)) continue;
    team(round.pairs, 1 << 15, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) gradient.score[field[i]] += each;
      for (int64_t i = from; i < to; ++i) gradient.score[field[round.pairs + i]] -= each;
    });
  }
}

}  // namespace knockout

"use strict";
// The tournament over one row of scores: docs/semantics.md of the library, in float64.
//
// tournament({ scores, mask, k, boost, order, hard }) gives what a Selection has: `weights` (k x n), `scores`, `leaders`,
// `filled`, `mass`, `perplexity`; and `rounds`, the field after each round, for the bracket. mask may be null.

function activeCandidates({ scores, mask }) {
  return scores.map((_, i) => i).filter((i) => (!mask || mask[i]) && scores[i] !== -Infinity);
}

function tournament(settings) {
  const { scores, k, boost, order, hard } = settings;
  const active = activeCandidates(settings);
  if (!active.every((i) => Number.isFinite(scores[i]))) return invalidSelection(settings, active);
  const variables = scores.map((score) => number(score));
  const rounds = play(active.map((i) => ({ score: variables[i], leader: i })), k, boost);
  const slots = [...rounds.at(-1)];
  if (order === "position") slots.sort((a, b) => a.leader - b.leader);
  const soft = slots.map((slot) => expand(slot, 1, new Map()));
  const acting = slots.map((slot, s) => (hard ? new Map([[slot.leader, 1]]) : soft[s]));
  const empty = Array(k - slots.length).fill(0);
  return {
    valid: true,
    active,
    rounds,
    slots,
    leaders: [...slots.map((slot) => slot.leader), ...empty.map(() => -1)],
    filled: [...slots.map(() => true), ...empty.map(() => false)],
    scores: [...slots.map((slot) => (hard ? scores[slot.leader] : slot.score.value)), ...empty],
    weights: [...acting, ...empty.map(() => new Map())].map((slot) => scores.map((_, i) => valueOf(slot.get(i) ?? 0))),
    mass: scores.map((_, i) => acting.reduce((sum, slot) => sum + valueOf(slot.get(i) ?? 0), 0)),
    perplexity: [...soft.map(perplexityOf), ...empty],
    // With hard these are the gradients of the soft selection, as in the library: straight-through.
    gradientOfScore: (slot) => gradient(slots[slot]?.score ?? 0, variables),
    gradientOfWeight: (slot, candidate) => gradient(soft[slot]?.get(candidate) ?? 0, variables),
  };
}

// The field before the first round and after each, best first; an entry has the pair that it comes from.
function play(entries, k, boost) {
  let field = entries.sort(byScore);
  const rounds = [field];
  let left = 0;
  while (k * 2 ** left < field.length) left++;
  let start = left ? startOf(boost, field.map((entry) => entry.score), left) : {};
  for (; left > 0; left--) {
    const half = k * 2 ** (left - 1);
    const byes = 2 * half - field.length;
    const pairs = field.slice(byes, half).map((better, i) => {
      const worse = field[field.length - 1 - i];
      return { entries: [better, worse], better: better.score, worse: worse.score, gap: minus(better.score, worse.score) };
    });
    const { shares, next } = sharesOf(boost, pairs, start);
    const winners = pairs.map(({ entries: [better, worse], gap }, i) => ({
      score: minus(better.score, times(minus(1, shares[i]), gap)),
      leader: better.leader,
      better,
      worse,
      share: shares[i],
    }));
    field = [...field.slice(0, byes).map((better) => ({ ...better, better, worse: null, share: 1 })), ...winners];
    if (left > 1) field.sort(byScore); // after the last round the slots stay in the order of its pairs
    start = next;
    rounds.push(field);
  }
  return rounds;
}

function byScore(a, b) {
  return b.score.value - a.score.value || a.leader - b.leader;
}

// The weights of the candidates in a slot: a Map, the leader first.
function expand(entry, weight, members) {
  if (valueOf(weight) === 0) return members;
  if (!entry.better) return members.set(entry.leader, weight);
  expand(entry.better, entry.worse ? times(weight, entry.share) : weight, members);
  return entry.worse ? expand(entry.worse, times(weight, minus(1, entry.share)), members) : members;
}

// The effective number of candidates in a slot: exp of the entropy of its weights.
function perplexityOf(members) {
  return Math.exp([...members.values()].map(valueOf).reduce((sum, weight) => sum - weight * Math.log(weight), 0));
}

// With a NaN or +inf among its scores, all results of a row are NaN.
function invalidSelection({ scores, k }, active) {
  const slots = Array.from({ length: k }, (_, slot) => slot);
  const all = scores.map(() => NaN);
  return {
    valid: false,
    active,
    rounds: [],
    slots: [],
    leaders: slots.map((slot) => active[slot] ?? -1),
    filled: slots.map((slot) => slot < active.length),
    scores: slots.map(() => NaN),
    weights: slots.map(() => all),
    mass: all,
    perplexity: slots.map(() => NaN),
    gradientOfScore: () => all,
    gradientOfWeight: () => all,
  };
}

"use strict";
// How decisively the better of a pair wins: boost.py of the library, for one row.
//
// A boost is { kind, c or b, unit, alpha }. A pair is { better, worse, gap }, and the pairs of a round come best first,
// without byes. Scores are up to 1e300: the library's guards against overflow beyond that are left out.

const SMALLEST = 2 ** -1022; // the smallest normal number
const FAR = 2 ** 40;

// What the first round starts from: the scores, best first, and how many rounds there are.
function startOf(boost, scores, rounds) {
  if (boost.kind === "relative") return { before: 2 * Math.max(boost.unit, SMALLEST) };
  if (boost.kind !== "adaptive") return {};
  const spread = spreadOf(scores);
  const unit = Math.max(boost.unit, SMALLEST);
  const x = atMost(over(spread, unit), FAR);
  const softer = over(plus(3, x), plus(1, times(3, x)));
  const width = larger(times(larger(times(spread, softer), unit / 10), rounds), SMALLEST);
  return { before: times(2, width), width, spread };
}

// The share of the better one of each pair, and what the next round starts from.
function sharesOf(boost, pairs, start) {
  const { logits, next } = logitsOf(boost, pairs, start);
  return { shares: logits.map((logit) => shareOf(logit, boost.alpha)), next };
}

function logitsOf(boost, pairs, start) {
  if (boost.kind === "relative" || boost.kind === "adaptive") {
    const floor = larger(over(start.before, 2), SMALLEST);
    const scale = larger(boost.kind === "relative" ? meanGap(pairs) : adaptiveMean(pairs, start), floor);
    return { logits: pairs.map(({ gap }) => times(boost.c, over(gap, scale))), next: { ...start, before: scale } };
  }
  if (boost.kind === "fixed") return { logits: pairs.map(({ gap }) => times(boost.c, gap)), next: start };
  const log = Math.log(boost.b);
  if (boost.kind === "base") return { logits: pairs.map(({ gap }) => times(log, gap)), next: start };
  // b^x - b^y as b^x (1 - b^-(x - y)), with b^x at most e^40, where any gap decides.
  const logits = pairs.map(({ better, gap }) => {
    const height = exponential(atMost(times(log, better), 40));
    return times(height, times(-1, exponentialMinusOne(times(-log, gap))));
  });
  return { logits, next: start };
}

// Decided pairs have a share of exactly 1, a constant: no gradient flows through them.
function shareOf(logit, alpha) {
  let share;
  if (alpha === 1) {
    share = over(1, plus(1, exponential(times(-1, logit))));
  } else if (alpha === 1.5) {
    const t = atMost(logit, 2);
    share = plus(0.5, times(over(t, 4), squareRoot(minus(2, over(times(t, t), 4)))));
  } else {
    share = plus(0.5, over(logit, 2));
  }
  return share.value >= 1 ? 1 : share;
}

// The scale of an adaptive round: its mean gap without the widest eighth, in proportion to the spread of the row.
function adaptiveMean(pairs, { width, spread }) {
  if (!(spread.value >= SMALLEST)) return 0;
  return times(width, over(meanGap(pairs.slice(pairs.length >> 3)), spread));
}

// Summed as distances from the middle of the field, as the library sums them.
function meanGap(pairs) {
  const middle = pairs.at(-1).better.value;
  return over(sumOfDistances(middle, pairs.map((pair) => pair.better), pairs.map((pair) => pair.worse)), pairs.length);
}

// The mean gap if all candidates were paired at once, without the widest eighth of the pairs.
function spreadOf(scores) {
  const pairs = scores.length >> 1;
  const widest = pairs >> 3;
  const middle = scores[(scores.length - 1) >> 1].value;
  const above = scores.slice(widest, pairs);
  const below = scores.slice(scores.length - pairs, scores.length - widest);
  return over(sumOfDistances(middle, above, below), Math.max(1, pairs - widest));
}

function sumOfDistances(middle, above, below) {
  const terms = [...above.map((x) => x.value - middle), ...below.map((x) => middle - x.value)];
  return number(exactSum(terms, terms.length), ...above.map((x) => [x, 1]), ...below.map((x) => [x, -1]));
}

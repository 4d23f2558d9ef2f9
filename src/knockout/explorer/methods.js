"use strict";
// The masks over the candidates that other methods make of the same scores: knockout.methods of the library.
//
// Each takes { scores, mask, k } and gives how much of each candidate is passed on.

const METHODS = {
  iterative: (settings) => iterativeMass(settings, false),
  "iterative, peaked": (settings) => iterativeMass(settings, true),
  lapsum: (settings) => lapsumMass(settings, settings.temperature ?? 0.1),
  hard: hardMass,
};

// The active candidates, best first; null if the row is invalid.
function ranked(settings) {
  const active = activeCandidates(settings);
  if (!active.every((i) => Number.isFinite(settings.scores[i]))) return null;
  return active.sort((a, b) => settings.scores[b] - settings.scores[a] || a - b);
}

function massOf({ scores }, entries) {
  const mass = scores.map(() => (entries ? 0 : NaN));
  for (const [candidate, weight] of entries ?? []) mass[candidate] += weight;
  return mass;
}

function hardMass(settings) {
  return massOf(settings, ranked(settings)?.slice(0, settings.k).map((i) => [i, 1]));
}

// k softmaxes over -(distance from the best one left)^2, each without the best ones before it. The peaked form, as the
// paper prints it, leaves the best one out of the denominator: its weights do not sum to 1.
function iterativeMass(settings, peaked) {
  const { scores, k } = settings;
  const order = ranked(settings);
  return massOf(settings, order?.slice(0, k).flatMap((best, step) => {
    const left = order.slice(step);
    const peaks = left.map((i) => Math.exp(-((scores[best] - scores[i]) ** 2)));
    const others = peaks.slice(peaked ? 1 : 0).reduce((a, b) => a + b, 0);
    const total = left.length === 1 ? 1 : Math.max(others, SMALLEST);
    return left.map((i, place) => [i, peaks[place] / total]);
  }));
}

// The Laplace distribution function of each score's distance from the threshold at which the mask sums to k.
function lapsumMass(settings, temperature) {
  const { scores, k } = settings;
  const order = ranked(settings);
  if (!order || order.length <= k) return massOf(settings, order?.map((i) => [i, 1]));
  const last = scores[order[k - 1]];
  const distances = order.map((i) => Math.min(Math.max((scores[i] - last) / temperature, -60), 60));
  const weights = (threshold) => distances.map((z) => laplace(z - threshold));
  // The sum falls as the threshold rises: halve the interval until nothing lies between its ends.
  let [low, high] = [-100, 100];
  for (let middle = 0; low < middle && middle < high; middle = (low + high) / 2) {
    if (weights(middle).reduce((a, b) => a + b, 0) > k) low = middle;
    else high = middle;
  }
  const found = weights(high);
  return massOf(settings, order.map((i, place) => [i, found[place]]));
}

function laplace(x) {
  return x > 0 ? 1 - 0.5 * Math.exp(-x) : 0.5 * Math.exp(x);
}

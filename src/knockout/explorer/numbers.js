"use strict";
// Numbers with derivatives, and the functions of the tournament with the same bits as in the library.
//
// A number remembers what it was computed from: `slopes` holds pairs of such a number and the derivative with respect
// to it. `gradient` walks back along them. Plain JavaScript numbers are constants.

let made = 0;

function number(value, ...slopes) {
  return { value, slopes: slopes.filter(([from]) => typeof from !== "number"), place: made++ };
}

function valueOf(x) {
  return typeof x === "number" ? x : x.value;
}

// The derivatives of a number with respect to each of the variables.
function gradient(of, variables) {
  const slope = new Map([[of, 1]]);
  const reached = new Set(typeof of === "number" ? [] : [of]);
  for (const each of reached) for (const [from] of each.slopes) reached.add(from); // grows while it is walked
  // What was made later is computed from what was made before: backwards, each number is complete when it is passed on.
  for (const each of [...reached].sort((a, b) => b.place - a.place)) {
    for (const [from, factor] of each.slopes) slope.set(from, (slope.get(from) ?? 0) + slope.get(each) * factor);
  }
  return variables.map((variable) => slope.get(variable) ?? 0);
}

const plus = (a, b) => number(valueOf(a) + valueOf(b), [a, 1], [b, 1]);
const minus = (a, b) => number(valueOf(a) - valueOf(b), [a, 1], [b, -1]);
const times = (a, b) => number(valueOf(a) * valueOf(b), [a, valueOf(b)], [b, valueOf(a)]);

function over(a, b) {
  const ratio = valueOf(a) / valueOf(b);
  return number(ratio, [a, 1 / valueOf(b)], [b, -ratio / valueOf(b)]);
}

// The larger of two; equal ones share the derivative, as in torch.maximum.
function larger(a, b) {
  const [x, y] = [valueOf(a), valueOf(b)];
  return number(Math.max(x, y), [a, x > y ? 1 : x < y ? 0 : 0.5], [b, x < y ? 1 : x > y ? 0 : 0.5]);
}

const atMost = (a, most) => number(Math.min(valueOf(a), most), [a, valueOf(a) <= most ? 1 : 0]);

// Sums, roots and exponentials by the steps of ops/reference/exact.py. The scores of a round decide the pairs of the
// next, so a difference in the last bit could show another bracket than the library's.

// The sum of terms of which `count` at most are not 0, with the same bits in every order of addition.
function exactSum(terms, count) {
  const room = 4 * count;
  let shift = Math.max(0, ...terms.map(Math.abs)) * room;
  let rest = terms;
  let total = 0;
  for (let pass = 0; pass < 2; pass++) {
    const onGrid = rest.map((x) => x + shift - shift);
    rest = rest.map((x, i) => x - onGrid[i]);
    total += onGrid.reduce((a, b) => a + b, 0);
    shift *= room * 2 ** -52;
  }
  return total;
}

// The square root of a number from 1 to 2.
function squareRoot(a) {
  const x = valueOf(a);
  let root = x * 0.4142135623730951 + 0.5897;
  for (let step = 0; step < 3; step++) root = (root + x / root) * 0.5;
  return number(root, [a, 0.5 / root]);
}

function exponential(a) {
  const { power, rest } = splitExponential(valueOf(a));
  const value = power * rest + power;
  return number(value, [a, value]);
}

// e^a - 1, exact for small a too.
function exponentialMinusOne(a) {
  const { power, rest } = splitExponential(valueOf(a));
  return number(power * rest + (power - 1), [a, power * rest + power]);
}

// e^x as power * (1 + rest), where power is a power of two.
function splitExponential(x) {
  x = Math.min(Math.max(x, -1022 * Math.LN2), 1023 * Math.LN2);
  const m = Math.round(x * (1 / Math.LN2));
  const r = x - m * 6.93145751953125e-1 - m * 1.42860682030941723e-6;
  let factorial = 6227020800; // of 13
  let series = 1 / factorial;
  for (let i = 12; i > 1; i--) {
    factorial /= i + 1;
    series = series * r + 1 / factorial;
  }
  return { power: 2 ** m, rest: r + r * r * series };
}

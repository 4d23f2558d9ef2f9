"use strict";
// Making and changing elements. Texts are set as texts, never as HTML: names may come from an address.

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Exactly so many children, old ones where they were: what has the focus keeps it.
function children(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
  return [...parent.children];
}

// A weight in few characters: 0 and 1 only for exactly these, ~0 and ~1 for what rounding would make of others.
function short(weight) {
  if (Number.isNaN(weight)) return "NaN";
  if (weight === 0 || weight === 1) return String(weight);
  if (weight >= 100) return weight.toExponential(0).replace("+", "");
  if (weight > 1) return weight.toFixed(weight < 10 ? 2 : 1);
  if (weight < 0.005) return "~0";
  if (weight >= 0.995) return "~1";
  return weight.toFixed(2).slice(1);
}

// A score, without more digits than it has.
function digits(x, count = 3) {
  if (!Number.isFinite(x)) return x < 0 ? "−inf" : String(x);
  return String(Number(x.toPrecision(count))).replace("-", "−").replace("e+", "e");
}

function signed(x) {
  if (Number.isNaN(x)) return "NaN";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 0.0005) return "~0";
  const shown = size >= 1000 ? size.toExponential(0).replace("+", "") : size.toFixed(size < 1 ? 3 : 2);
  return (x > 0 ? "+" : "−") + shown.replace(/^0\./, ".");
}

'use strict';
// text.js: formats numbers for people, and makes elements. Text from the node is only ever set as text: there is no
// innerHTML here, and the page's policy forbids it.

const decimals = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const NONE = '–';

/** Three digits, without trailing zeros: 1.25, 12.5, 125, 1,250. */
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 10) return value.toFixed(2).replace(/\.?0+$/, '');
  if (size < 100) return value.toFixed(1).replace(/\.0$/, '');
  return decimals.format(value);
}

function bytes(value) {
  if (value == null) return NONE;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (Math.abs(value) >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${digits(value)} ${units[unit]}`;
}

/** Exact up to a million; then 1.25 M. */
function count(value) {
  if (value == null) return NONE;
  if (Math.abs(value) < 1e6) return decimals.format(value);
  if (Math.abs(value) < 1e9) return `${digits(value / 1e6)} M`;
  return `${digits(value / 1e9)} G`;
}

function rate(value) {
  return value == null ? NONE : value >= 1e6 ? `${count(value)}/s` : `${digits(value)}/s`;
}

function byteRate(value) {
  return value == null ? NONE : `${bytes(value)}/s`;
}

function percent(value) {
  if (value == null) return NONE;
  return `${value >= 0.1 || value === 0 ? Math.round(value * 100) : (value * 100).toFixed(1)} %`;
}

function duration(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 90) return `${digits(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${digits(seconds / 3600)} h`;
  return `${digits(seconds / 86400)} days`;
}

function ago(seconds) {
  return seconds < 1 ? 'just now' : `${duration(Math.round(seconds))} ago`;
}

function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** An element with attributes and children; strings become text nodes. A `null` attribute or child is left out. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value != null && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** Replaces the text only if it changes, so that a screen reader does not repeat it. */
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Makes a group of buttons of which one is pressed; calls `chosen` with the pressed one's data-`name`. */
function choice(name, chosen) {
  const buttons = [...document.querySelectorAll(`[data-${name}]`)];
  for (const button of buttons) {
    button.addEventListener('click', () => {
      for (const each of buttons) each.setAttribute('aria-pressed', String(each === button));
      chosen(button.dataset[name]);
    });
  }
}

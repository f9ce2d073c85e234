// Times in the reader's zone, and buttons that copy a command. Everything else works without this file.
"use strict";

function showTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const text = moment.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "long"});
    if (each.classList.contains("full")) each.textContent = text;
    else each.title = text;
  }
}

function showCopies(root) {
  if (!navigator.clipboard) return;
  for (const button of root.querySelectorAll("button.copy")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

function show(root) {
  showTimes(root);
  showCopies(root);
}

// A part that refreshes itself keeps the focus where the reader has it, and details as the reader has opened them.
let before = null;

function stops(root) {
  return [...root.querySelectorAll("a[href], button, summary, input, select, [tabindex='0']")];
}

function nameOf(stop) {
  return `${stop.tagName} ${stop.getAttribute("href") || stop.name || ""} ${stop.textContent}`;
}

function alike(root, name) {
  return stops(root).filter((stop) => nameOf(stop) === name);
}

document.addEventListener("htmx:beforeSwap", (event) => {
  const live = event.detail.target, active = document.activeElement;
  before = {open: [...live.querySelectorAll("details")].map((each) => each.open)};
  if (!live.contains(active)) return;
  before.name = nameOf(active);
  before.index = alike(live, before.name).indexOf(active);
});

document.addEventListener("htmx:load", (event) => {
  const live = event.detail.elt;
  show(live);
  if (!before) return;
  live.querySelectorAll("details").forEach((each, n) => { if (n < before.open.length) each.open = before.open[n]; });
  const stop = before.name && alike(live, before.name)[before.index];
  if (stop) stop.focus({preventScroll: true});
  before = null;
});
show(document);

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

document.addEventListener("htmx:load", (event) => show(event.detail.elt));
show(document);

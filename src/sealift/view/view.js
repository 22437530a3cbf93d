"use strict";
// Replaces what the page shows, fragment by fragment, as the server draws it anew.
const lost = document.getElementById("lost");
// What the page was loaded with does not come again.
const source = new EventSource("events?since=" + document.body.dataset.number);

const unfolded = (root) =>
  new Set([...root.querySelectorAll("details[open] > summary")].map((each) => each.textContent));

source.addEventListener("fragment", (event) => {
  const {name, html} = JSON.parse(event.data);
  const old = document.getElementById(name);
  if (old === null) return;
  const open = unfolded(old);
  const focused = old.contains(document.activeElement) ? document.activeElement.textContent : null;
  const box = document.createElement("template");
  box.innerHTML = html;
  const fresh = box.content.firstElementChild;
  old.replaceWith(fresh);
  for (const summary of fresh.querySelectorAll("details > summary")) {
    summary.parentElement.open = open.has(summary.textContent);
    if (summary.textContent === focused) summary.focus();
  }
});
source.addEventListener("open", () => { lost.hidden = true; });
source.addEventListener("error", () => { lost.hidden = false; });

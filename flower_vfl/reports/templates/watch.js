// Fetches the part of the page that changes; without this script the page reloads by itself.
"use strict";
const live = document.getElementById("live");
async function look() {
  try {
    const answer = await fetch("part", { cache: "no-store" });
    if (!answer.ok) throw new Error();
    live.innerHTML = await answer.text();
    if (live.querySelector("[data-ended]")) return;
    setTimeout(look, 2000);
  } catch {
    const note = document.createElement("p");
    note.className = "banner warn";
    note.textContent = "flower-vfl watch has ended: this page no longer changes.";
    live.prepend(note);
  }
}
if (!live.querySelector("[data-ended]")) setTimeout(look, 2000);

// Fetches the part of the page that changes; without this script the page reloads by itself.
"use strict";
const live = document.getElementById("live");
let unanswered = 0;
async function look() {
  try {
    const answer = await fetch("part", { cache: "no-store" });
    if (!answer.ok) throw new Error();
    live.innerHTML = await answer.text();
    unanswered = 0;
    if (live.querySelector("[data-ended]")) return;
    setTimeout(look, 2000);
  } catch {
    unanswered += 1;
    if (unanswered < 5) {
      setTimeout(look, 2000);
      return;
    }
    const note = document.createElement("p");
    note.className = "banner warn";
    note.textContent = "No answer from flower-vfl watch: this page no longer changes. Reload it to try again.";
    live.prepend(note);
  }
}
if (!live.querySelector("[data-ended]")) setTimeout(look, 2000);

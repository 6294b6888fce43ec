// Shows each completion once per mask; texts are put in as text, never as markup.
"use strict";
const { masks, completions } = JSON.parse(document.getElementById("data").textContent);
const place = document.getElementById("completions");

function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// Ids where there is no text; line ends and tabs that would not be seen when they are struck out.
function visible([text, id], someText) {
  if (text === null) return someText ? `⟨${id}⟩` : `${id} `;
  return text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
}

function line(completion, mask, figure) {
  const row = element("div", "", figure);
  row.className = "mask";
  element("b", `${mask + 1} ${masks[mask]}`, row);
  const text = element("div", "", row);
  const someText = completion.tokens.some(([text]) => text !== null);
  const out = new Set();
  for (const [start, length] of completion.rejected[mask]) {
    for (let at = start; at < start + length; at++) out.add(at);
  }
  completion.tokens.forEach((token, at) => {
    const [, id, advantage, logp] = token;
    const shown = element(out.has(at) ? "s" : "i", visible(token, someText), text);
    shown.title = `token ${at}, id ${id}: advantage ${advantage}, log-probability ${logp}`;
    shown.dataset.at = at;
  });
}

function draw(figure, completion) {
  const some = masks.map((_, mask) => mask).filter((mask) => completion.rejected[mask].length > 0);
  some.forEach((mask) => line(completion, mask, figure));
  const none = masks.map((_, mask) => mask).filter((mask) => completion.rejected[mask].length === 0);
  if (none.length > 0) {
    const names = none.map((mask) => `${mask + 1} ${masks[mask]}`).join(", ");
    const note = element("p", `Nothing rejected: ${names}.`, figure);
    note.className = "note";
  }
}

// Drawn when it comes near, since there may be many tokens.
const near = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    target.style.minHeight = "";
    draw(target, completions[target.dataset.index]);
  }
}, { rootMargin: "600px" });

completions.forEach((completion, index) => {
  const figure = element("figure", "", place);
  const { batch, completion: number, reward, truncated, tokens } = completion;
  const cut = truncated ? ", cut off by the length limit" : "";
  element("figcaption", `${batch}, completion ${number}: ${tokens.length} tokens, reward ${reward}${cut}`, figure);
  figure.dataset.index = index;
  figure.style.minHeight = "6rem";
  near.observe(figure);
});
if (completions.length === 0) element("p", "No mask rejected a token.", place);

// The same token in every line.
function mark(event, on) {
  const { at } = event.target.dataset ?? {};
  if (at === undefined) return;
  const figure = event.target.closest("figure");
  figure.querySelectorAll(`[data-at="${at}"]`).forEach((same) => same.classList.toggle("same", on));
}
place.addEventListener("mouseover", (event) => mark(event, true));
place.addEventListener("mouseout", (event) => mark(event, false));

// Completions, token by token: coloured by a number, rejected ones struck out, with all numbers of the one that is pointed at.
"use strict";

// Least contrast between the largest values and the middle one from which on colours go by rank.
const SKEWED = 50;

// How strongly each value is coloured, from -1 to 1: linear in it, or by rank where few values are far larger than the others. `least` and
// `most` are the values with the strongest colours, 0 where no value has that sign.
function scale(lists) {
  const values = lists.flat().filter((value) => value !== null && value !== 0);
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  if (sizes.length === 0) return { strength: () => 0, least: 0, most: 0, byRank: false };
  const at = (share) => sizes[Math.min(Math.floor(share * sizes.length), sizes.length - 1)];
  const rank = (size) => {
    let [low, high] = [0, sizes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sizes[middle] <= size) low = middle + 1; else high = middle;
    }
    return low / sizes.length;
  };
  const linear = (size) => Math.min(size / at(0.99), 1);
  const byRank = at(0.99) > SKEWED * at(0.5);
  const strength = byRank ? rank : linear;
  const bound = byRank ? sizes.at(-1) : at(0.99);
  return {
    strength: (value) => (value === null ? 0 : Math.sign(value) * strength(Math.abs(value))),
    least: values.some((value) => value < 0) ? -bound : 0,
    most: values.some((value) => value > 0) ? bound : 0,
    byRank,
  };
}

// The colour of a strength.
function shade(strength) {
  const color = strength > 0 ? "var(--color-0)" : "var(--color-1)";
  return `color-mix(in srgb, ${color} ${Math.round(Math.abs(strength) * 60)}%, transparent)`;
}

// True if some tokens have another colour than others.
function tells(lists) {
  const values = lists.flat().filter((value) => value !== null);
  return values.some((value) => value !== values[0]);
}

// Ids where there is no text, but for the one that ends a completion; line ends and tabs that would not be seen when they are struck out.
function visible(text, id, ends) {
  if (text === null) return ends ? "⟨end⟩" : `⟨${id}⟩`;
  return text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
}

class TokenView {
  constructor(place, data, completions) {
    this.data = data;
    this.completions = completions;
    element("h2", "Completions", place);
    if (completions.length === 0) {
      element("p", "No run wrote completions down. With logging.log_completions and logging.log_tokens they are shown here.", place, { class: "note" });
      return;
    }
    const form = element("form", "", place, { class: "tokens-form" });
    form.addEventListener("submit", (event) => event.preventDefault());
    const runs = [...new Set(completions.map(({ run }) => run))].map((run) => [run, data.runs[run].name]);
    this.run = this.select(form, "run ", runs, () => this.choose());
    this.step = this.select(form, "step ", [], () => this.draw());
    this.by = this.select(form, "coloured by ", [], () => this.draw());
    this.legend = element("div", "", place, { class: "token-legend" });
    this.place = element("div", "", place, { class: "completions" });
    this.detail = element("div", "", place, { class: "detail", role: "status", hidden: "" });
    for (const type of ["mouseover", "focusin"]) this.place.addEventListener(type, (event) => this.show(event.target));
    this.place.addEventListener("mouseleave", () => { this.detail.hidden = true; });
    this.place.addEventListener("keydown", (event) => this.move(event));
    this.choose();
  }

  select(form, text, options, change) {
    const select = element("select", "", element("label", text, form));
    this.fill(select, options);
    select.addEventListener("change", change);
    return select;
  }

  fill(select, options) {
    // A list without options has the value "", which is also that of `nothing`.
    const before = select.options.length > 0 ? select.value : null;
    select.replaceChildren();
    for (const [value, text] of options) element("option", text, select, { value });
    if (options.some(([value]) => String(value) === before)) select.value = before;
  }

  // Steps and numbers that the run has.
  choose() {
    const own = this.completions.filter(({ run }) => String(run) === this.run.value);
    this.fill(this.step, [...new Set(own.map(({ step }) => step))].map((step) => [step, step]));
    const names = [...new Set(own.flatMap(({ numbers }) => Object.keys(numbers)))];
    const first = ["weight", ...names.filter((name) => /\/m_[fh]$/.test(name)), "entropy", "advantage", "logp"];
    const sorted = [...first.filter((name) => names.includes(name)), ...names.filter((name) => !first.includes(name))];
    // The first choice is one that shows something at the first step.
    const shown = own.filter(({ step }) => step === own[0].step);
    const alive = (name) => tells(shown.map(({ numbers }) => numbers[name] ?? []));
    const ordered = [...sorted.filter(alive), ...sorted.filter((name) => !alive(name))];
    this.fill(this.by, [...ordered.map((name) => [name, name]), ["", "nothing"]]);
    this.draw();
  }

  draw() {
    const near = ({ run, step }) => String(run) === this.run.value && String(step) === this.step.value;
    this.shown = this.completions.filter(near);
    const by = this.by.value;
    const colors = scale(this.shown.map(({ numbers }) => numbers[by] ?? []));
    this.drawLegend(by, colors);
    this.detail.hidden = true;
    this.place.replaceChildren();
    this.shown.forEach((completion, at) => {
      // Completions of one prompt stand together.
      if (this.shown[at - 1]?.prompt !== completion.prompt) element("div", completion.prompt, this.place, { class: "prompt" });
      this.place.append(this.figure(completion, at, colors.strength, by));
    });
  }

  // What the colours and lines mean.
  drawLegend(by, { least, most, byRank }) {
    this.legend.replaceChildren();
    const entry = (mark, text) => {
      const one = element("span", "", this.legend);
      one.append(mark, text);
    };
    if (least !== 0 || most !== 0) {
      const bar = element("i", "", null, { class: "bar" });
      const ends = [least, most].map((end) => (end === 0 ? "transparent" : shade(Math.sign(end))));
      bar.style.background = `linear-gradient(to right, ${least && most ? `${ends[0]}, transparent, ${ends[1]}` : ends.join(", ")})`;
      const one = element("span", "", this.legend);
      one.append(`${by} ${brief(least)} `, bar, ` ${brief(most)}`);
      if (byRank) element("small", " by rank, since few values are far larger than the others", one);
    } else if (this.shown.some(({ ids }) => ids.length > 0)) {
      entry("", by ? `${by} is 0 in every token of this step` : "not coloured");
    } else {
      entry("", "Only texts were written: with logging.log_tokens each token is coloured.");
    }
    const some = (what) => this.shown.some(what);
    if (some(({ token_mask, observed }) => token_mask.some((kept, at) => kept === 0 && !observed[at]))) {
      entry(element("s", "struck out", null), " rejected by a mask");
    }
    if (some(({ observed }) => observed.some((one) => one))) entry(element("u", "green", null), " written by the environment");
    if (some(({ ids }) => ids.length > 0)) element("small", "Point at a token for its numbers.", this.legend);
  }

  figure(completion, number, strength, by) {
    const figure = element("figure", "", null);
    const { answer, reward, parts, truncated, ids, texts, token_mask, observed } = completion;
    const caption = element("figcaption", "", figure);
    const names = Object.keys(parts);
    const of = names.length > 1 ? ` (${names.map((name) => `${name} ${brief(parts[name])}`).join(", ")})` : "";
    const drawn = token_mask.filter((_, at) => !observed[at]);
    const out = drawn.filter((kept) => kept === 0).length;
    const facts = [`reward ${brief(reward)}${of}`, answer && `answer ${answer}`, out && `${out} of ${drawn.length} tokens rejected`, truncated && "cut off by the length limit"];
    element("span", facts.filter(Boolean).join(" · "), caption);
    const text = element("div", "", figure, { class: "text" });
    if (ids.length === 0) text.append(completion.completion);
    // A turn of the model with the observation after it; all but the last are folded.
    const begins = ids.map((_, at) => at).filter((at) => at === 0 || (observed[at - 1] && !observed[at]));
    let turn = text;
    ids.forEach((id, at) => {
      const count = begins.indexOf(at);
      if (count >= 0 && begins.length > 1) {
        turn = count === begins.length - 1 ? text : element("details", "", text);
        if (turn !== text) element("summary", `turn ${count + 1}`, turn);
      }
      const kind = observed[at] ? "u" : token_mask[at] === 0 ? "s" : "i";
      const token = element(kind, visible(texts[at], id, !truncated && at === ids.length - 1), turn);
      [token.dataset.completion, token.dataset.at] = [number, at];
      token.tabIndex = number === 0 && at === 0 ? 0 : -1;
      const value = strength(completion.numbers[by]?.[at] ?? null);
      if (value !== 0) token.style.background = shade(value);
    });
    return figure;
  }

  // All that is known of a token.
  show(token) {
    const { completion, at } = token.dataset ?? {};
    if (at === undefined) return;
    const { ids, numbers, rejectedBy } = this.shown[completion];
    this.detail.replaceChildren();
    element("b", `token ${at}, id ${ids[at]}${rejectedBy[at] ? `, rejected by ${rejectedBy[at]}` : ""}`, this.detail);
    for (const [name, values] of Object.entries(numbers)) {
      const entry = element("span", "", this.detail);
      element("small", `${name} `, entry);
      entry.append(brief(values[at]));
    }
    this.detail.hidden = false;
  }

  // Arrow keys go from token to token.
  move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const tokens = [...this.place.querySelectorAll("[data-at]")];
    const next = tokens[tokens.indexOf(document.activeElement) + by];
    if (by === undefined || !next) return;
    event.preventDefault();
    document.activeElement.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

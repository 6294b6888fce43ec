// The page: its charts under their headings, and the switches that all charts share.
"use strict";

const AXES = { step: "steps", tokens: "tokens", completions: "completions", seconds: "time" };

function bySection(charts) {
  const sections = new Map();
  for (const chart of charts) sections.set(chart.section, [...(sections.get(chart.section) ?? []), chart]);
  return sections;
}

class Page {
  constructor(data) {
    this.data = data;
    const several = data.groups.some((group) => group.runs.length > 1);
    const steps = data.runs.flatMap(({ grids }) => grids.map(({ step }) => step.at(-1) ?? 0));
    const weight = usualWeight(steps.reduce((a, b) => Math.max(a, b), 0));
    this.state = { axis: "step", weight, seeds: several, hidden: new Set() };
    this.charts = [];
    this.drawControls(document.getElementById("controls"), several);
    this.drawCharts(document.getElementById("charts"));
    this.watch();
  }

  // What is drawn: groups of seeds, or runs.
  names() {
    return (this.state.seeds ? this.data.groups : this.data.runs).map(({ name }) => name);
  }

  // Changes the state and draws what is near anew.
  set(change) {
    Object.assign(this.state, change);
    if ("seeds" in change) this.state.hidden = new Set();
    this.drawLegend();
    this.redraw();
  }

  redraw() {
    for (const chart of this.charts) {
      chart.stale = true;
      if (chart.near) this.drawOne(chart);
    }
  }

  drawOne(chart) {
    if (!chart.stale) return;
    chart.stale = false;
    chart.draw();
  }

  // Axes that no run has numbers for are not offered.
  axes() {
    const known = (axis) => this.data.runs.some(({ grids }) => grids.some((grid) => grid[axis].some((x) => x !== null)));
    return Object.entries(AXES).filter(([axis]) => known(axis));
  }

  drawControls(form, several) {
    form.addEventListener("submit", (event) => event.preventDefault());
    const axis = element("select", "", element("label", "against ", form));
    for (const [value, text] of this.axes()) element("option", text, axis, { value });
    axis.addEventListener("change", () => this.set({ axis: axis.value }));
    const smoothing = element("label", "smoothing ", form);
    const slider = element("input", "", smoothing, { type: "range", min: 0, max: 0.99, step: 0.01, value: this.state.weight });
    const shown = (weight) => (weight === 0 ? "off" : String(weight));
    const weight = element("output", shown(this.state.weight), smoothing);
    slider.addEventListener("input", () => {
      weight.textContent = shown(Number(slider.value));
      this.set({ weight: Number(slider.value) });
    });
    if (several) {
      const seeds = element("label", "", form);
      const box = element("input", "", seeds, { type: "checkbox", checked: "" });
      seeds.append(" mean over seeds ± standard error");
      box.addEventListener("change", () => this.set({ seeds: box.checked }));
    }
    this.legend = element("div", "", form, { class: "legend" });
    this.drawLegend();
  }

  // A button per run or group, which switches it on and off in all charts.
  drawLegend() {
    const focused = [...this.legend.children].indexOf(document.activeElement);
    this.legend.replaceChildren();
    this.names().forEach((name, of) => {
      const button = element("button", "", this.legend, { type: "button", "aria-pressed": !this.state.hidden.has(of) });
      element("i", "", button).style.background = `var(--color-${of % COLORS})`;
      const count = this.state.seeds ? this.data.groups[of].runs.length : 1;
      button.append(count > 1 ? `${name} (${count} seeds)` : name);
      button.addEventListener("click", () => {
        if (!this.state.hidden.delete(of)) this.state.hidden.add(of);
        this.set({});
      });
    });
    this.legend.children[focused]?.focus();
  }

  // The charts that answer, then all others under folded headings.
  drawCharts(main) {
    const place = element("div", "", main, { class: "charts main" });
    const large = this.data.main.map((of) => [of, this.data.charts.find(({ title }) => title === of.title)]);
    for (const [of, chart] of large) this.charts.push(new Chart(this, chart, place, of));
    const others = this.data.charts.filter((chart) => !large.some(([, one]) => one === chart));
    const sections = bySection(others);
    for (const [title, charts] of sections) {
      const details = element("details", "", main, { class: "part" });
      const summary = element("summary", `${title} `, details);
      element("small", charts.map((chart) => chart.title).join(", "), summary);
      const inside = element("div", "", details, { class: "charts" });
      for (const chart of charts) this.charts.push(new Chart(this, chart, inside));
    }
    if (this.charts.length === 0) element("p", "No run has written a number yet.", main);
    if (this.data.constant.length) {
      const told = this.data.constant.map(({ title, value }) => `${title} ${brief(value)}`).join(", ");
      element("p", `The same in every step, and so without a chart: ${told}.`, main, { class: "note" });
    }
    if (this.data.bucket) {
      const note = `Long series are drawn as means of ${this.data.bucket} steps, with the smallest and largest values around them.`;
      element("p", note, main, { class: "note" });
    }
  }

  // Charts are drawn when they come near, since there may be many.
  watch() {
    const near = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) {
        const chart = this.charts.find(({ figure }) => figure === target);
        chart.near = isIntersecting;
        if (isIntersecting) this.drawOne(chart);
      }
    }, { rootMargin: "400px" });
    const size = new ResizeObserver((seen) => {
      for (const { target } of seen) this.charts.find(({ figure }) => figure === target).resize();
    });
    for (const chart of this.charts) {
      chart.stale = true;
      near.observe(chart.figure);
      size.observe(chart.figure);
    }
  }

  // What every chart draws, as numbers: for whoever looks at the page by a program.
  drawn() {
    return this.charts.map((chart) => {
      this.drawOne(chart);
      const [x] = chart.uplot.data;
      const column = (at, kind) => chart.uplot.data[OF_A_LINE * at + kind];
      const lines = chart.lines.map((line, at) => ({
        label: chart.label(line), raw: column(at, RAW), y: column(at, Y), low: column(at, LOW), high: column(at, HIGH),
      }));
      return { title: chart.chart.title, x, lines };
    });
  }
}

// The button that shows the page light or dark.
function watchTheme(page) {
  const button = document.getElementById("theme");
  const { dataset } = document.documentElement;
  const other = () => (dataset.theme === "dark" ? "light" : "dark");
  button.textContent = other();
  button.addEventListener("click", () => {
    dataset.theme = other();
    button.textContent = other();
    page.redraw();
  });
}

// A table that is wider than its place says so: what is cut would not be missed.
function markTables() {
  for (const place of document.querySelectorAll(".wide")) {
    place.classList.toggle("cut", place.scrollWidth - place.clientWidth - place.scrollLeft > 4);
  }
}

function watchTables() {
  const size = new ResizeObserver(markTables);
  for (const place of document.querySelectorAll(".wide")) {
    size.observe(place);
    place.addEventListener("scroll", markTables, { passive: true });
  }
}

const read = (id) => JSON.parse(document.getElementById(id).textContent);
window.capo = new Page(read("data"));
window.capo.tokens = new TokenView(document.getElementById("tokens"), window.capo.data, read("completions"));
watchTheme(window.capo);
watchTables();

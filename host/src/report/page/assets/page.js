// The page: its charts under their headings, and the switches that all charts share.
"use strict";

const AXES = { step: "steps", tokens: "tokens", completions: "completions", seconds: "time" };

class Page {
  constructor(data) {
    this.data = data;
    const several = data.groups.some((group) => group.runs.length > 1);
    this.state = { axis: "step", weight: 0, seeds: several, hidden: new Set() };
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
    const slider = element("input", "", smoothing, { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
    const weight = element("output", "off", smoothing);
    slider.addEventListener("input", () => {
      weight.textContent = Number(slider.value) === 0 ? "off" : slider.value;
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

  drawCharts(main) {
    let section = null;
    for (const chart of this.data.charts) {
      if (section?.title !== chart.section) {
        element("h2", chart.section, main);
        section = { title: chart.section, place: element("div", "", main, { class: "charts" }) };
      }
      this.charts.push(new Chart(this, chart, section.place));
    }
    if (this.charts.length === 0) element("p", "No run has written a number yet.", main);
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
      const [x, ...columns] = chart.uplot.data;
      const lines = chart.lines.map((line, at) => ({
        label: chart.label(line), y: columns[3 * at], low: columns[3 * at + 1], high: columns[3 * at + 2],
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

const read = (id) => JSON.parse(document.getElementById(id).textContent);
window.capo = new Page(read("data"));
window.capo.tokens = new TokenView(document.getElementById("tokens"), window.capo.data, read("completions"));
watchTheme(window.capo);

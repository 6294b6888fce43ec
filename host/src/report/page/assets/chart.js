// One chart on the page: drawn by uPlot, with what it shows at the cursor and a picture to keep.
"use strict";

const HEIGHT = 220;
const LARGE = 300;
// Most lines that are drawn before smoothing too.
const RAW_LINES = 8;
const DASHES = [[], [6, 4], [2, 3]];
const COLORS = 10;
// Most lines whose values are shown at the cursor.
const AT_CURSOR = 12;

// Texts are put in as text, never as markup.
function element(name, text, parent, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function color(number) {
  return css(`--color-${number % COLORS}`);
}

// Places of values between gaps; what is undefined is no place of this line.
function lonely(values) {
  const places = values.flatMap((y, at) => (y === undefined ? [] : [at]));
  const gap = (at) => at === undefined || values[at] === null;
  return places.filter((at, i) => !gap(at) && gap(places[i - 1]) && gap(places[i + 1]));
}

// From where to where a linear axis goes; one value alone has room on both sides.
function span(_uplot, least, most) {
  if (least !== most || least === null) return uPlot.rangeNum(least ?? 0, most ?? 1, 0.1, true);
  return least === 0 ? [0, 1] : [Math.min(0, 2 * least), Math.max(0, 2 * least)];
}

// The same of shares: it ends at 0 and at 1.
function spanOfShares(uplot, least, most) {
  const [low, high] = span(uplot, least, most);
  return [least >= 0 ? Math.max(low, 0) : low, most <= 1 ? Math.min(high, 1) : high];
}

// At most seven powers of ten between two values.
function decades(_uplot, _axis, least, most) {
  const [first, last] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const by = Math.ceil((last - first + 1) / 7);
  return Array.from({ length: Math.floor((last - first) / by) + 1 }, (_, at) => Number(`1e${first + at * by}`));
}

// From power of ten to power of ten, so that the lowest label is on the axis.
function magnitudes(_uplot, least, most) {
  return uPlot.rangeLog(least ?? 1, most ?? 10, 10, true);
}

class Chart {
  // `page` has the data, the state that all charts share, and the names of what is drawn. A `large` chart has words that help to read it.
  constructor(page, chart, parent, large = null) {
    this.page = page;
    this.chart = chart;
    this.log = chart.log;
    this.isShare = chart.unit.startsWith("%");
    this.height = large ? LARGE : HEIGHT;
    this.figure = element("figure", "", parent, { class: large ? "chart large" : "chart" });
    const caption = element("figcaption", "", this.figure);
    element("b", chart.title, caption);
    element("small", chart.unit, caption);
    const buttons = element("span", "", caption);
    this.logButton = this.button(buttons, "log", "logarithmic axis", () => this.setLog(!this.log));
    this.button(buttons, "PNG", "keep as a picture", () => this.keep());
    if (large?.hint) element("small", large.hint, caption, { class: "hint" });
    this.words = element("div", "", this.figure, { class: "words" });
    this.plot = element("div", "", this.figure, { class: "plot", tabindex: "0", role: "img" });
    this.plot.setAttribute("aria-label", `${chart.title}: arrow keys move through the values`);
    this.plot.addEventListener("keydown", (event) => this.step(event));
    this.tip = element("div", "", this.figure, { class: "tip", hidden: "" });
    this.figure.style.minHeight = `${this.height + 40}px`;
    this.near = false;
  }

  // A value as the axis has it.
  show(value) {
    return this.isShare ? percent(value) : brief(value);
  }

  button(parent, text, title, press) {
    const made = element("button", text, parent, { type: "button", title: `${this.chart.title}: ${title}` });
    made.addEventListener("click", press);
    return made;
  }

  setLog(log) {
    this.log = log;
    this.draw();
  }

  // The lines of runs or groups that are switched on.
  visible() {
    const { data, state } = this.page;
    const lines = linesOf(data, this.chart, state).filter((line) => !state.hidden.has(line.of));
    if (lines.length > RAW_LINES) lines.forEach(({ columns }) => { columns.raw = null; });
    const some = lines.some(({ columns }) => columns.y.some((y) => y > 0));
    return this.log && some ? { lines: positive(lines), log: true } : { lines, log: false };
  }

  draw() {
    const { state } = this.page;
    const { lines, log } = this.visible();
    this.lines = lines;
    this.isLog = log;
    this.logButton.setAttribute("aria-pressed", this.log);
    this.uplot?.destroy();
    this.tip.hidden = true;
    this.drawWords();
    const options = {
      width: Math.max(this.plot.clientWidth, 200),
      height: this.height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { x: { time: false }, y: log ? { distr: 3, range: magnitudes } : { range: this.isShare ? spanOfShares : span } },
      axes: this.axes(state.axis),
      series: [{}, ...lines.flatMap((line) => this.seriesOf(line))],
      bands: lines.map((line, at) => ({ series: [OF_A_LINE * at + HIGH, OF_A_LINE * at + LOW], fill: `${color(line.of)}26` })),
      hooks: { setCursor: [(uplot) => this.point(uplot)] },
    };
    this.uplot = new uPlot(options, table(lines), this.plot);
  }

  seriesOf(line) {
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    // Points are drawn where there are few, or one stands alone.
    const points = { size: 4, space: 12, filter: (uplot, number, all) => (all ? null : lonely(uplot.data[number])) };
    const own = { stroke: color(line.of), width: 2, dash: DASHES[line.style % DASHES.length], points };
    const raw = { stroke: `${color(line.of)}48`, width: 1, points: { show: false } };
    return [raw, own, edge, edge];
  }

  axes(axis) {
    const look = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const some = (values, show) => values.map((value) => (value === null ? null : show(value)));
    return [
      { ...look, space: 70, size: 32, values: (_, values) => some(values, (value) => place(axis, value)) },
      { ...look, size: 62, values: (_, values) => some(values, (value) => this.show(value)), ...(this.isLog ? { splits: decades, filter: (_, splits) => splits } : {}) },
    ];
  }

  // Which dash is which metric, where there are several.
  drawWords() {
    const words = new Map(this.lines.filter((line) => line.name).map((line) => [line.name, line.style]));
    this.words.replaceChildren();
    for (const [word, style] of words) {
      const entry = element("span", "", this.words);
      element("i", "", entry, { class: `dash-${style % DASHES.length}` });
      entry.append(word);
    }
  }

  label(line) {
    return [this.page.names()[line.of], line.name].filter(Boolean).join(", ");
  }

  // What each line says at the cursor: its last value up to there.
  point(uplot) {
    const { idx, left } = uplot.cursor;
    this.tip.hidden = idx === null || idx === undefined || left < 0;
    if (this.tip.hidden) return;
    const { axis } = this.page.state;
    const found = this.lines.map((line, at) => [line, uplot.data[OF_A_LINE * at + Y][idx], uplot.data[OF_A_LINE * at + RAW][idx]]);
    const shown = found.filter(([, y]) => y !== null && y !== undefined).sort(([, a], [, b]) => b - a);
    this.tip.replaceChildren();
    element("b", `${axis === "seconds" ? "" : `${axis} `}${place(axis, uplot.data[0][idx])}`, this.tip);
    for (const [line, y, raw] of shown.slice(0, AT_CURSOR)) {
      const row = element("div", "", this.tip);
      element("i", "", row).style.background = color(line.of);
      const before = raw === null || raw === undefined ? "" : ` (${this.show(raw)})`;
      row.append(`${this.show(y)}${before}  ${this.label(line)}`);
    }
    if (shown.length > AT_CURSOR) element("div", `and ${shown.length - AT_CURSOR} more`, this.tip);
    const right = left > uplot.over.clientWidth / 2;
    this.tip.style.left = right ? "70px" : "auto";
    this.tip.style.right = right ? "auto" : "12px";
  }

  // Arrow keys move the cursor.
  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || !this.uplot) return;
    event.preventDefault();
    const { data, cursor } = this.uplot;
    const at = Math.min(Math.max((cursor.idx ?? -1) + by, 0), data[0].length - 1);
    if (at >= 0) this.uplot.setCursor({ left: this.uplot.valToPos(data[0][at], "x"), top: 10 });
  }

  resize() {
    const width = Math.max(this.plot.clientWidth, 200);
    if (this.uplot && this.uplot.width !== width) this.uplot.setSize({ width, height: this.height });
  }

  // Title, legend and plot as one picture.
  picture() {
    const plot = this.uplot.ctx.canvas;
    const scale = plot.width / this.uplot.width;
    const row = 18 * scale;
    const rows = this.lines.length;
    const canvas = element("canvas", "");
    [canvas.width, canvas.height] = [plot.width, plot.height + row * (rows + 2)];
    const draw = canvas.getContext("2d");
    draw.fillStyle = css("--page");
    draw.fillRect(0, 0, canvas.width, canvas.height);
    draw.fillStyle = css("--text");
    draw.font = `600 ${14 * scale}px system-ui`;
    draw.fillText(`${this.chart.title}${this.chart.unit ? ` (${this.chart.unit})` : ""}`, 10 * scale, row);
    draw.drawImage(plot, 0, 1.4 * row);
    draw.font = `${12 * scale}px system-ui`;
    this.lines.forEach((line, at) => {
      const y = plot.height + row * (at + 2);
      draw.strokeStyle = color(line.of);
      draw.lineWidth = 2 * scale;
      draw.setLineDash(DASHES[line.style % DASHES.length].map((length) => length * scale));
      draw.beginPath();
      draw.moveTo(10 * scale, y - 4 * scale);
      draw.lineTo(40 * scale, y - 4 * scale);
      draw.stroke();
      draw.fillText(this.label(line), 48 * scale, y);
    });
    return canvas;
  }

  keep() {
    const name = this.chart.title.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();
    element("a", "", null, { href: this.picture().toDataURL("image/png"), download: `${name}.png` }).click();
  }
}

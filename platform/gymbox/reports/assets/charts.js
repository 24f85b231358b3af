// Charts: a frame with axes, and what is drawn in it. SVG as wide as its place, drawn anew when that changes.

const HEIGHT = 220;
const EDGE = { left: 46, right: 14, top: 14, bottom: 36 };

/** Round values between two ends, about so many. */
function ticksBetween(from, to, count = 5) {
  const span = to - from || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let at = Math.ceil(from / step - 1e-9) * step; at <= to + span * 1e-9; at += step)
    ticks.push(Number(at.toPrecision(12)));
  return ticks;
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** The same of seconds, in steps as clocks have them. */
function timesBetween(to, count) {
  const step = TIMES.find((size) => to / size <= count);
  if (step === undefined || to < 5) return ticksBetween(0, to, count);
  return Array.from({ length: Math.floor(to / step) + 1 }, (_, at) => at * step);
}

/** Axes: `x` and `y` are {from, to, label, format, ticks}. Returns the element, and what places a value. */
function frame(width, label, x, y) {
  const right = width - EDGE.right;
  const bottom = HEIGHT - EDGE.bottom;
  const placeX = (value) => EDGE.left + ((value - x.from) / (x.to - x.from || 1)) * (right - EDGE.left);
  const placeY = (value) => bottom - ((value - y.from) / (y.to - y.from || 1)) * (bottom - EDGE.top);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    role: "img",
    "aria-label": label,
  });
  for (const tick of y.ticks ?? ticksBetween(y.from, y.to, 4)) {
    root.append(
      svg("line", { class: "rule", x1: EDGE.left, x2: right, y1: placeY(tick), y2: placeY(tick) }),
      svg(
        "text",
        { class: "tick", x: EDGE.left - 7, y: placeY(tick) + 4, "text-anchor": "end" },
        (y.format ?? short)(tick),
      ),
    );
  }
  for (const tick of x.ticks ?? ticksBetween(x.from, x.to, Math.max(2, Math.floor(width / 90)))) {
    root.append(
      svg(
        "text",
        { class: "tick", x: placeX(tick), y: bottom + 16, "text-anchor": "middle" },
        (x.format ?? short)(tick),
      ),
    );
  }
  root.append(
    svg("line", { class: "axis", x1: EDGE.left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { class: "axis-name", x: (EDGE.left + right) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, x.label),
  );
  return { root, x: placeX, y: placeY, bottom };
}

/** A line through points [x, y], with a dot at each that tells what it is. */
function lineOf(chart, points, kind, told) {
  const places = points.map(([x, y]) => `${chart.x(x).toFixed(1)},${chart.y(y).toFixed(1)}`);
  chart.root.append(svg("polyline", { class: `line ${kind}`, points: places.join(" ") }));
  points.forEach(([x, y], at) =>
    chart.root.append(
      svg("circle", { class: `dot ${kind}`, cx: chart.x(x), cy: chart.y(y), r: 4 }, svg("title", {}, told[at])),
    ),
  );
}

/** Something in a chart that can be chosen, by key too; it says what it is. */
function choosable(element, told, choose) {
  element.append(svg("title", {}, told));
  if (choose === null) return element;
  element.setAttribute("tabindex", "0");
  element.setAttribute("role", "button");
  element.setAttribute("aria-label", told);
  element.classList.add("choosable");
  element.addEventListener("click", choose);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  });
  return element;
}

/** Numbers as a table, which may scroll in its place; the first cell of a row names it. */
function tableOf(label, columns, cells) {
  const heading = (scope) => (name) => el("th", { scope }, name);
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el(
      "table",
      { class: "numbers" },
      el("thead", {}, el("tr", {}, columns.map(heading("col")))),
      el(
        "tbody",
        {},
        cells.map(([name, ...values]) =>
          el(
            "tr",
            {},
            heading("row")(name),
            values.map((cell) => el("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}

/** A card: a title, a drawing, its legend, and the same numbers as a table. */
function card({ title, note = "", legend = [], draw, columns, cells, wide = false }) {
  const place = el("div", { class: "drawing" });
  const drawn = () => {
    const width = Math.floor(place.clientWidth);
    if (width > 0) fill(place, draw(Math.max(width, 220)));
  };
  new ResizeObserver(drawn).observe(place);
  return el(
    "figure",
    { class: wide ? "card plot wide" : "card plot" },
    el("figcaption", {}, el("h3", {}, title), note ? el("p", {}, note) : null),
    place,
    legend.length > 0
      ? el(
          "ul",
          { class: "legend" },
          legend.map(([kind, name]) => el("li", {}, el("span", { class: `key ${kind}` }), name)),
        )
      : null,
    el("details", {}, el("summary", {}, "As a table"), tableOf(`${title}, as a table`, columns, cells)),
  );
}

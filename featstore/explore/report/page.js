"use strict";
// Draws the page from the JSON of the element `data`. Whatever comes from there is set as text or as
// a number, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("slots");
  const found = document.getElementById("found");

  /** A new HTML element with properties, attributes in `attributes`, and children. */
  function element(name, properties = {}, ...children) {
    const { attributes = {}, ...others } = properties;
    const made = Object.assign(document.createElement(name), others);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  /** A new SVG element. */
  function svg(name, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  /** A picture that fills its box, in units of its own. */
  function picture(width, height, attributes, ...children) {
    const box = { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" };
    return svg("svg", { ...box, ...attributes }, ...children);
  }

  /** A text that may be broken after underscores and the like, so that it is not inside words. */
  const breakable = (text) => text.split(/(?<=[_/])/).flatMap((part) => [element("wbr"), part]).slice(1);

  /** A text that is broken at spaces if its words fit: browsers break a day such as 2026-11-02. */
  const unbroken = (text) =>
    text.split(" ").flatMap((word) => [" ", element("span", { textContent: word })]).slice(1);

  const count = (number) => number.toLocaleString("en-US");

  function figureText(value, unit) {
    if (value === null) return "none";
    if (unit !== "share") return count(value);
    const text = (100 * value).toFixed(2);
    if (value > 0 && text === "0.00") return "<0.01%";
    return value < 1 && text === "100.00" ? ">99.99%" : `${+text}%`;
  }

  // Charts.

  function key(compared) {
    if (!compared) return [];
    const now = element("span", { className: "key-now", textContent: "■ after" });
    const before = element("span", { className: "key-before", textContent: "■ before" });
    return [element("p", {}, before, " ", now)];
  }

  function framed(chart, compared, ...children) {
    const note = element("p", { className: "quiet", textContent: chart.note });
    const title = element("h2", { textContent: chart.title });
    return element("figure", {}, title, ...(chart.note ? [note] : []), ...key(compared), ...children);
  }

  function largest(values) {
    return values.reduce((most, value) => Math.max(most, value ?? 0), 0) || 1;
  }

  function rowBars(row, most, compared, baseline, least) {
    const width = (value) => Math.max(0, (100 * ((value ?? 0) - least)) / (most - least));
    const [y, height] = compared ? [4, 5] : [1, 8];
    const bars = [svg("rect", { class: "now", width: width(row.value), y, height })];
    if (compared) bars.push(svg("rect", { class: "before", width: width(row.before), y: 1, height: 3 }));
    if (row.low !== undefined && row.low !== null) {
      bars.push(svg("path", { class: "interval", d: `M${width(row.low)} 5H${width(row.high)}` }));
    }
    if (baseline !== undefined) {
      bars.push(svg("path", { class: "baseline", d: `M${width(baseline)} 0V10` }));
    }
    return picture(100, 10, { class: "bar", "aria-hidden": "true" }, ...bars);
  }

  function drawRows(chart) {
    const ends = chart.rows.flatMap((row) => [row.value, row.before, row.high]);
    const most = largest([...ends, chart.baseline]);
    const rows = chart.rows.map((row) => {
      const bar = element("td", {}, rowBars(row, most, chart.compared, chart.baseline, chart.least));
      const name = element("th", { scope: "row" }, ...breakable(row.text));
      return element("tr", {}, name, bar, element("td", { textContent: row.figure }));
    });
    return framed(chart, chart.compared, element("table", {}, element("tbody", {}, ...rows)));
  }

  function drawColumns(chart) {
    const names = chart.names ?? data.partitions;
    const most = chart.most ?? largest([...chart.values, ...(chart.before ?? [])]);
    const bars = chart.values.flatMap((value, i) => {
      const height = (of) => Math.max(0, Math.min(100, (100 * ((of ?? 0) - chart.least)) / (most - chart.least)));
      const old = chart.before?.[i];
      const texts = [figureText(value, chart.unit)];
      if (chart.before) texts.unshift(`before ${figureText(old, chart.unit)}`);
      const title = svg("title", {}, `${names[i]}: ${texts.join(", after ")}`);
      const wide = chart.before ? 0.5 : 0.9;
      // A box of the whole height shows the text also where the bar is low.
      const box = svg("rect", { class: "none", "pointer-events": "all", x: i, width: 1, height: 100 }, title);
      const bar = (of, name, x) =>
        svg("rect", { class: name, x, width: wide, y: 100 - height(of), height: height(of) });
      if (!chart.before) return [bar(value, "now", i), box];
      const left = bar(old, "before", i);
      left.setAttribute("width", 0.4);
      return [left, bar(value, "now", i + 0.4), box];
    });
    const ends = `from ${chart.first} to ${chart.last}, highest ${figureText(most, chart.unit)}`;
    const label = { class: "columns", role: "img", "aria-label": `${chart.title}, ${ends}` };
    const [first, last] = [chart.first, chart.last].map((text) => element("span", { textContent: text }));
    const from = chart.least ? `scale from ${figureText(chart.least, chart.unit)}, not 0, to` : "top of the scale:";
    const top = `${from} ${figureText(most, chart.unit)}`;
    return framed(
      chart,
      Boolean(chart.before),
      element("p", { className: "quiet", textContent: top }),
      picture(Math.max(1, chart.values.length), 100, label, ...bars),
      element("div", { className: "ends" }, first, last),
    );
  }

  const draw = (chart) => (chart.kind === "rows" ? drawRows(chart) : drawColumns(chart));

  /** The small picture in a row of the table: one path, since there are thousands of bars. */
  function sparks(heights) {
    const path = heights.map((height, i) => `M${i} 100V${100 - height}H${i + 0.85}V100Z`).join("");
    return picture(Math.max(10, heights.length), 100, { "aria-hidden": "true" }, svg("path", { class: "now", d: path }));
  }

  function pairs(list, entries) {
    for (const [name, text] of entries) {
      list.append(element("dt", { textContent: name }), element("dd", {}, ...breakable(text)));
    }
    return list;
  }

  // The table of slots: a body for each slot, with its row and, once it is asked for, its detail.

  const classes = (column) => `${column.number ? "number " : ""}${column.wide ? "wide" : ""}`;
  const last = data.columns.length - 1;

  /** The columns that the width of the window leaves: more would get a width of their own. */
  const numShown = () => [...table.tHead.rows[0].cells].filter((cell) => cell.offsetWidth).length;

  addEventListener("resize", () => {
    const columns = numShown();
    for (const cell of table.querySelectorAll(".detail > td")) cell.colSpan = columns;
  });

  function detail(slot) {
    const charts = element("div", { className: "charts" }, ...slot.charts.map(draw));
    const entries = slot.facts.map((fact) => pairs(element("div"), [fact]));
    const facts = element("dl", { className: "facts" }, ...entries);
    const cell = element("td", { colSpan: numShown() }, facts, charts);
    return element("tr", { className: "detail" }, cell);
  }

  function toggle(body, button, slot) {
    if (body.rows.length < 2) body.append(detail(slot));
    else body.rows[1].hidden = !body.rows[1].hidden;
    button.setAttribute("aria-expanded", String(!body.rows[1].hidden));
  }

  function bodyOf(slot) {
    const [[name], ...others] = slot.cells;
    const said = { type: "button", title: name, attributes: { "aria-expanded": "false" } };
    const button = element("button", said, ...breakable(name));
    const cells = others.map(([text], i) => {
      const about = { title: text, className: classes(data.columns[i + 1]) };
      return element("td", about, ...(/\S-\S/.test(text) ? unbroken(text) : [text]));
    });
    cells.splice(last - 1, 0, element("td", { className: "picture" }, sparks(slot.sparks)));
    const row = element("tr", {}, element("th", { scope: "row" }, button), ...cells);
    const body = element("tbody", {}, row);
    button.addEventListener("click", () => toggle(body, button, slot));
    return body;
  }

  const texts = (slot) => [
    ...slot.cells.map(([text]) => text),
    ...slot.facts.map(([, text]) => text),
    ...slot.charts.flatMap((chart) => (chart.rows ?? []).map((row) => row.text)),
  ];
  const rows = data.slots.map((slot) => ({
    slot, body: bodyOf(slot), searched: texts(slot).join("\n").toLowerCase(),
  }));

  // Sorting.

  const byText = new Intl.Collator("en", { numeric: true });
  const headers = data.columns.map((column, i) => {
    const button = element("button", { type: "button", textContent: column.title, title: column.help });
    const header = element("th", { scope: "col", className: classes(column) }, button);
    button.addEventListener("click", () => sort(i, next(header, column)));
    return header;
  });

  function next(header, column) {
    const now = header.getAttribute("aria-sort");
    if (now === null) return column.number ? "descending" : "ascending";
    return now === "ascending" ? "descending" : "ascending";
  }

  function sort(i, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    const compare = (a, b) => {
      const [[left, x], [right, y]] = [a.slot.cells[i], b.slot.cells[i]];
      if (!data.columns[i].number) return sign * byText.compare(left, right);
      // What has no number comes last in both directions.
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    };
    headers.forEach((header) => header.removeAttribute("aria-sort"));
    headers[i].setAttribute("aria-sort", direction);
    rows.sort(compare);
    show();
  }

  function show() {
    const all = document.createDocumentFragment();
    for (const { body } of rows) all.append(body);
    table.append(all);
  }

  // Searching: every word must occur somewhere in what is said of a slot.

  function search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { body, searched } of rows) {
      body.hidden = !words.every((word) => searched.includes(word));
      shown += body.hidden ? 0 : 1;
    }
    found.textContent = words.length ? `${count(shown)} of ${count(rows.length)} slots` : `${count(rows.length)} slots`;
  }

  // The theme is that of the system until the button is pressed.

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");
  const theme = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const nameTheme = () => { themeButton.textContent = theme() === "dark" ? "light" : "dark"; };
  themeButton.addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    nameTheme();
  });
  dark.addEventListener("change", nameTheme);
  nameTheme();

  headers[last].classList.add("values");
  const pictured = element("th", { scope: "col", className: "picture", textContent: "distribution" });
  table.append(element("thead", {}, element("tr", {}, ...headers.slice(0, last), pictured, headers[last])));
  pairs(document.getElementById("about"), data.about);
  document.getElementById("charts").append(...data.charts.map(draw));
  const input = document.getElementById("search");
  input.addEventListener("input", () => search(input.value));
  search(input.value);
  if (data.order === null) show();
  else sort(data.order, "descending");
})();

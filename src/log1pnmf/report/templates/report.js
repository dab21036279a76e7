"use strict";
(function () {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("structure-data").textContent);
  const count = data.names.length;
  const plots = [];

  function element(parent, tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  }

  function html(parent, tag, text, name) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    parent.appendChild(node);
    return node;
  }

  // ---------------------------------------------------------------- where samples are

  // Left edge and width of every sample; groups too narrow to be seen get a least width.
  function places(left, width) {
    const gap = data.spans.length > 1 ? Math.min(5, width / (6 * data.spans.length)) : 0;
    const room = width - gap * (data.spans.length - 1);
    const least = data.spans.length > 1 ? Math.min(7, room / (2 * data.spans.length)) : 0;
    const sizes = data.spans.map((span) => span[2] - span[1]);
    const narrow = new Set();
    let unit = room / count;
    for (let again = true; again; ) {
      again = false;
      let free = room, rest = 0;
      sizes.forEach((size, g) => { if (narrow.has(g)) free -= least; else rest += size; });
      unit = rest ? free / rest : 0;
      sizes.forEach((size, g) => { if (!narrow.has(g) && size * unit < least) { narrow.add(g); again = true; } });
    }
    let x = left;
    return data.spans.map((span, g) => {
      const wide = narrow.has(g) ? least : sizes[g] * unit;
      const place = { name: span[0], start: span[1], stop: span[2], x: x, width: wide, step: wide / sizes[g] };
      x += wide + gap;
      return place;
    });
  }

  function sampleAt(groups, x) {
    let best = groups[0];
    for (const group of groups) if (x >= group.x - 2) best = group;
    const inside = Math.floor((x - best.x) / best.step);
    return best.start + Math.max(0, Math.min(best.stop - best.start - 1, inside));
  }

  function centre(groups, index) {
    const group = groups.find((one) => index < one.stop);
    return group.x + (index - group.start + 0.5) * group.step;
  }

  // Labels keep their order and a least distance, and stay inside.
  function spread(wanted, distance, low, high) {
    const at = wanted.slice();
    for (let i = 0; i < at.length; i++) at[i] = Math.max(at[i], i ? at[i - 1] + distance : low);
    for (let i = at.length - 1; i >= 0; i--) at[i] = Math.min(at[i], i < at.length - 1 ? at[i + 1] - distance : high);
    return at;
  }

  // ---------------------------------------------------------------- one plot

  function Plot(figure) {
    this.model = data.models[Number(figure.dataset.model)];
    this.k = this.model.factors.length;
    this.figure = figure;
    this.canvas = figure.querySelector(".canvas");
    this.canvas.setAttribute("aria-valuemax", String(count - 1));
    this.only = new Set();
    this.tip = html(figure, "div", undefined, "tip");
    figure.querySelectorAll(".legend button").forEach((button) => {
      button.addEventListener("click", () => {
        const factor = Number(button.dataset.factor), pressed = !this.only.has(factor);
        if (pressed) this.only.add(factor); else this.only.delete(factor);
        button.setAttribute("aria-pressed", String(pressed));
        this.draw();
      });
    });
    this.canvas.addEventListener("pointermove", (event) => choose(this, this.under(event)));
    this.canvas.addEventListener("pointerdown", (event) => choose(this, this.under(event)));
    this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) clear(); });
    this.canvas.addEventListener("blur", clear);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  Plot.prototype.under = function (event) {
    const box = this.canvas.getBoundingClientRect();
    return sampleAt(this.groups, ((event.clientX - box.left) * this.width) / box.width);
  };

  Plot.prototype.loading = function (index, factor) {
    return this.model.loadings[index * this.k + factor] / 1000;
  };

  Plot.prototype.key = function (event) {
    const now = current === null ? -1 : current;
    const span = data.spans.findIndex((one) => now < one[2]);
    const moves = {
      ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: count - 1,
      PageDown: data.spans[Math.min(span + 1, data.spans.length - 1)][1], PageUp: data.spans[Math.max(span - 1, 0)][1],
    };
    if (event.key === "Escape") { clear(); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(this, Math.max(0, Math.min(count - 1, moves[event.key])));
  };

  Plot.prototype.heights = function (shares) {
    const shown = [];
    for (let f = 0; f < this.k; f++) if (!this.only.size || this.only.has(f)) shown.push(f);
    const levels = shown.map(() => new Float64Array(count));
    let top = 0;
    for (let i = 0; i < count; i++) {
      const height = (f) => this.loading(i, f) * (shares ? this.model.weights[f] : 1);
      let all = 0, sum = 0;
      for (let f = 0; f < this.k; f++) all += height(f);
      const scale = shares ? (all > 0 ? 1 / all : 0) : 1;
      shown.forEach((f, level) => { sum += height(f) * scale; levels[level][i] = sum; });
      top = Math.max(top, sum);
    }
    return { shown: shown, levels: levels, top: shares ? 1 : top || 1 };
  };

  Plot.prototype.draw = function () {
    const width = Math.max(240, Math.round(this.canvas.clientWidth));
    const small = width < 640, tall = small ? 150 : 190, top = 8, left = 34;
    const longest = Math.max(0, ...data.spans.map((span) => span[0].length));
    const label = Math.min(longest, 22) * 6.4;
    this.width = width;
    this.groups = places(left, width - left - 4);
    const flat = this.groups.every((group) => group.name.length * 6.8 < group.width);
    // Slanted labels reach to the left; upright where the first ones would leave the plot.
    const upright = small || this.groups.some((group) => Math.min(group.name.length, 22) * 4.9 > group.x + group.width / 2);
    const below = longest === 0 ? 6 : flat ? 24 : upright ? label + 22 : label * 0.72 + 30;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${Math.ceil(top + tall + below)}`);
    svg.setAttribute("aria-hidden", "true");
    const shares = document.querySelector("input[name=heights]:checked").value === "shares";
    const stack = this.heights(shares), base = top + tall;
    const y = (value) => base - (value / stack.top) * tall;
    this.axis(svg, stack.top, y, width, shares);
    // The highest level first: lower ones cover it, so no background shows between two colours.
    for (let level = stack.shown.length - 1; level >= 0; level--) {
      const attributes = { d: this.path(stack.levels[level], y, base), fill: this.model.colors[stack.shown[level]] };
      element(svg, "path", attributes);
    }
    if (longest) this.labels(svg, base, flat, upright, width);
    this.cursor = element(svg, "line", { class: "cursor", y1: top, y2: base + 4 });
    this.canvas.replaceChildren(svg);
    if (current !== null) this.mark(current);
  };

  Plot.prototype.path = function (level, y, base) {
    const parts = [];
    for (const group of this.groups) {
      parts.push(`M${group.x.toFixed(2)},${base}`);
      for (let i = group.start; i < group.stop; i++) {
        parts.push(`V${y(level[i]).toFixed(1)}H${(group.x + (i - group.start + 1) * group.step).toFixed(2)}`);
      }
      parts.push(`V${base}Z`);
    }
    return parts.join("");
  };

  Plot.prototype.axis = function (svg, top, y, width, shares) {
    const step = shares ? 0.5 : [0.1, 0.2, 0.5, 1, 2, 5, 10].find((one) => top / one <= 4) || top;
    for (let value = 0; value <= top + 1e-9; value += step) {
      element(svg, "line", { class: "tick", x1: 30, x2: width, y1: y(value), y2: y(value) });
      const text = shares ? `${Math.round(100 * value)}%` : String(Number(value.toFixed(1)));
      element(svg, "text", { x: 26, y: y(value) + 4, "text-anchor": "end" }, text);
    }
  };

  Plot.prototype.labels = function (svg, base, flat, upright, width) {
    const middles = this.groups.map((group) => group.x + group.width / 2);
    const short = (name) => (name.length > 22 ? name.slice(0, 21) + "…" : name);
    if (flat) {
      this.groups.forEach((group, g) => element(svg, "text", { x: middles[g], y: base + 17, "text-anchor": "middle" }, group.name));
      return;
    }
    const distance = upright ? 12.5 : 17, room = Math.max(1, Math.floor((width - 40) / distance));
    // Where not all labels have room the largest groups are named; pointing at the others names them.
    const largest = this.groups.map((_, g) => g).sort((a, b) => this.groups[b].stop - this.groups[b].start - this.groups[a].stop + this.groups[a].start);
    const named = largest.slice(0, room).sort((a, b) => a - b);
    const at = spread(named.map((g) => middles[g]), distance, upright ? 30 : 44, width - 6);
    named.forEach((g, i) => {
      element(svg, "path", { class: "leader", d: `M${middles[g]},${base + 2}V${base + 5}L${at[i]},${base + 13}` });
      const turn = `translate(${at[i] + (upright ? 4 : 3)} ${base + (upright ? 17 : 20)}) rotate(${upright ? -90 : -42})`;
      element(svg, "text", { transform: turn, "text-anchor": "end" }, short(this.groups[g].name));
    });
  };

  Plot.prototype.mark = function (index) {
    const x = centre(this.groups, index);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.style.visibility = "visible";
    this.canvas.setAttribute("aria-valuenow", String(index));
    this.canvas.setAttribute("aria-valuetext", this.words(index));
  };

  Plot.prototype.values = function (index) {
    return this.model.factors
      .map((name, f) => ({ name: name, color: this.model.colors[f], value: this.loading(index, f) }))
      .filter((one) => one.value > 0)
      .sort((a, b) => b.value - a.value);
  };

  Plot.prototype.words = function (index) {
    const group = data.spans.find((span) => index < span[2])[0];
    const values = this.values(index).map((one) => `${one.name} ${one.value.toFixed(3)}`);
    return [data.names[index], group, ...values].filter(Boolean).join(", ");
  };

  Plot.prototype.show = function (index) {
    const tip = this.tip, group = data.spans.find((span) => index < span[2])[0];
    tip.replaceChildren();
    html(tip, "b", data.names[index]);
    html(tip, "span", [group, this.model.label].filter(Boolean).join(" · "), "of");
    const body = html(html(tip, "table"), "tbody"), values = this.values(index);
    values.slice(0, 10).forEach((one) => {
      const row = html(body, "tr"), name = html(row, "td");
      html(name, "span", undefined, "chip").style.background = one.color;
      name.append(one.name);
      html(row, "td", one.value.toFixed(3));
    });
    if (values.length > 10) html(tip, "span", `and ${values.length - 10} smaller`, "of");
    const scale = this.canvas.clientWidth / this.width, x = centre(this.groups, index) * scale;
    const right = x + 14 + 208 < this.canvas.clientWidth;
    tip.style.left = `${Math.max(0, right ? x + 14 : x - 14 - 208)}px`;
    tip.style.top = `${this.canvas.offsetTop + 12}px`;
    tip.style.visibility = "visible";
  };

  // ---------------------------------------------------------------- the chosen sample, in all plots

  let current = null;

  function choose(plot, index) {
    current = index;
    for (const one of plots) {
      one.mark(index);
      if (one === plot) one.show(index); else one.tip.style.visibility = "hidden";
    }
  }

  function clear() {
    current = null;
    for (const one of plots) {
      one.tip.style.visibility = "hidden";
      one.cursor.style.visibility = "hidden";
    }
  }

  document.querySelectorAll(".structure").forEach((figure) => plots.push(new Plot(figure)));
  const drawAll = () => plots.forEach((plot) => plot.draw());
  document.querySelectorAll("input[name=heights]").forEach((input) => input.addEventListener("change", drawAll));
  let width = 0;
  new ResizeObserver(() => {
    const now = plots[0].canvas.clientWidth;
    if (now && Math.abs(now - width) > 1 && !window.matchMedia("print").matches) { width = now; drawAll(); }
  }).observe(plots[0].canvas);
  drawAll();

  // ---------------------------------------------------------------- tables

  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  // Numbers by size, texts by alphabet; cells without a number come last in both directions.
  function compare(a, b, sign) {
    const numbers = [a, b].map((cell) => (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value)));
    if (a.classList.contains("number") || a.dataset.value !== undefined || b.dataset.value !== undefined) {
      if (Number.isNaN(numbers[0]) || Number.isNaN(numbers[1])) return Number.isNaN(numbers[0]) - Number.isNaN(numbers[1]);
      return sign * (numbers[0] - numbers[1]);
    }
    return sign * collator.compare(a.textContent.trim(), b.textContent.trim());
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const first = head.classList.contains("number") ? "descending" : "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        const next = head.getAttribute("aria-sort") === first ? second : first;
        heads.forEach((one) => one.setAttribute("aria-sort", one === head ? next : "none"));
        const sign = next === "ascending" ? 1 : -1;
        const rows = Array.from(table.tBodies[0].rows);
        rows.sort((a, b) => compare(a.cells[column], b.cells[column], sign));
        table.tBodies[0].append(...rows);
      });
    });
  });

  document.querySelectorAll("input[data-filters]").forEach((input) => {
    const table = document.getElementById(input.dataset.filters);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  });
})();

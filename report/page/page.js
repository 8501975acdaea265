"use strict";
// The page's script. It draws what the element "data" holds. The names in it are those of report/bin.go.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = id => document.getElementById(id);
  const make = (name, text, attributes) => {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    Object.assign(e, attributes || {});
    return e;
  };

  // ---- numbers: show writes a value in its unit
  const digits = v => v === 0 ? "0" : Math.abs(v) >= 1e15 ? v.toExponential(2) : Number.isInteger(v) && Math.abs(v) < 1e6 ? String(v) : String(+v.toPrecision(Math.abs(v) >= 1000 ? 4 : 3));
  const scaled = (v, steps) => {
    for (const [size, unit] of steps) if (Math.abs(v) >= size) return digits(v / size) + " " + unit;
    const [size, unit] = steps[steps.length - 1];
    return digits(v / size) + " " + unit;
  };
  const bytes = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
  const times = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const show = (v, unit) => {
    if (v === null || v === undefined || Number.isNaN(v)) return "not known";
    if (unit === "B") return scaled(v, bytes);
    if (unit === "ns") return scaled(v, times);
    return digits(v) + (unit ? " " + unit : "");
  };

  // ---- the page's head: title, facts, verdict, remarks
  $("title").textContent = data.title;
  const facts = (list, all) => {
    for (const f of all) {
      const div = make("div");
      div.append(make("dt", f.name), make("dd", f.value));
      if (f.about) div.title = f.about;
      list.append(div);
    }
  };
  facts($("context"), data.context);
  facts($("facts"), data.facts);
  for (const sentence of data.verdict) $("verdict").append(make("p", sentence));
  const remarks = (title, all) => {
    if (!all.length) return;
    const list = make("ul");
    for (const text of all) list.append(make("li", text));
    $("remarks").append(make("h2", title), list);
  };
  remarks("What is not in this capture", data.notes);
  remarks("What was put together to fit a page", data.binned);

  // ---- colours
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const cividis = [[254, 232, 56], [225, 204, 85], [195, 179, 105], [165, 156, 116], [138, 134, 120], [112, 113, 115], [87, 93, 109], [59, 73, 108], [18, 53, 112], [0, 34, 78]];
  const isDark = () => document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  // More is darker on white paper, and lighter on dark.
  const color = share => {
    const x = (isDark() ? 1 - share : share) * (cividis.length - 1), i = Math.min(Math.floor(x), cividis.length - 2), f = x - i;
    return cividis[i].map((c, k) => Math.round(c + f * (cividis[i + 1][k] - c)));
  };
  // The colours of kinds of points, by Okabe and Ito: the colour-blind can tell them apart.
  const kinds = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

  // ---- the steps in view, which are the same in all charts: look sets them
  let view = { from: 0, to: Math.max(1, data.steps) };
  const charts = []; // a function for each, which draws it
  let asked = false; // for a frame in which everything is drawn
  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      for (const draw of charts) draw();
      const one = data.steps === 1 ? "step" : "steps";
      const from = Math.round(view.from), to = Math.round(view.to);
      $("view").textContent = data.steps ? (from === 0 && to === data.steps ? `all ${data.steps} ${one}` : `steps ${from} to ${to} of ${data.steps}`) : "no steps";
    });
  };
  const look = (from, to) => {
    const all = Math.max(1, data.steps), width = Math.min(Math.max(to - from, Math.min(4, all)), all);
    from = Math.min(Math.max(from, 0), all - width);
    view = { from, to: from + width };
    redraw();
  };
  const zoom = (factor, at) => {
    const center = at === undefined ? (view.from + view.to) / 2 : at;
    look(center - (center - view.from) * factor, center + (view.to - center) * factor);
  };
  const pan = share => { const d = (view.to - view.from) * share; look(view.from + d, view.to + d); };
  const keys = { "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "ArrowLeft": () => pan(-.25), "ArrowRight": () => pan(.25), "0": () => look(0, data.steps), "Home": () => pan(-1e9), "End": () => pan(1e9) };
  for (const [id, key] of [["in", "+"], ["out", "-"], ["left", "ArrowLeft"], ["right", "ArrowRight"], ["all", "0"]]) $(id).onclick = keys[key];

  // ---- the tooltip: tell shows a text beside the pointer, or nothing
  const tip = $("tip");
  const tell = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = !text;
    if (!text) return;
    const r = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - r.width - 4)) + "px";
    tip.style.top = Math.max(4, y + 18 + r.height > innerHeight ? y - r.height - 10 : y + 18) + "px";
  };

  // ---- a chart: a canvas that zooms and moves, with a margin for its scale. draw draws it, and about says what the
  // tooltip shows at a step and a height.
  const left = 200, right = 10;
  const chart = (parent, height, label, draw, about) => {
    const canvas = make("canvas", undefined, { tabIndex: 0 });
    canvas.style.height = height + "px";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    parent.append(canvas);
    const stepAt = x => view.from + (x - left) / Math.max(1, canvas.clientWidth - left - right) * (view.to - view.from);
    canvas.addEventListener("wheel", e => {
      if (e.deltaY === 0) return;
      e.preventDefault();
      zoom(e.deltaY > 0 ? 1.25 : .8, stepAt(e.offsetX));
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", e => { drag = { x: e.clientX, from: view.from, to: view.to }; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointermove", e => {
      if (drag) {
        const d = (drag.x - e.clientX) / Math.max(1, canvas.clientWidth - left - right) * (drag.to - drag.from);
        look(drag.from + d, drag.to + d);
      }
      const step = stepAt(e.offsetX);
      tell(step >= view.from && step < view.to && data.steps ? about(step, e.offsetY) : "", e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerleave", () => tell(""));
    canvas.addEventListener("dblclick", () => look(0, data.steps));
    canvas.addEventListener("keydown", e => {
      const act = e.ctrlKey || e.metaKey || e.altKey ? undefined : keys[e.key];
      if (act) { e.preventDefault(); act(); }
    });
    charts.push(() => {
      const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
      if (!width) return;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";
      const plot = { c, width: width - left - right, height, x: step => left + (step - view.from) / (view.to - view.from) * (width - left - right) };
      draw(plot, ratio);
    });
    return canvas;
  };
  // clip shortens a text to a width.
  const clip = (text, c, width) => {
    if (c.measureText(text).width <= width) return text;
    while (text.length > 1 && c.measureText(text + "…").width > width) text = text.slice(0, -1);
    return text + "…";
  };
  // axis marks the steps below a chart.
  const axis = (p, y) => {
    const { c } = p;
    const span = view.to - view.from;
    let every = 1;
    for (const m of [1, 2, 5, 10, 20, 50, 100, 200, 500]) { every = m; if (span / m <= 12) break; }
    while (span / every > 12) every *= 10;
    c.fillStyle = css("--faint");
    c.strokeStyle = css("--line");
    c.textAlign = "center";
    for (let s = Math.ceil(view.from / every) * every; s <= view.to; s += every) {
      const x = p.x(s);
      c.beginPath(); c.moveTo(x, y); c.lineTo(x, y + 4); c.stroke();
      c.fillText(String(s), x, y + 11);
    }
    c.textAlign = "right";
    c.fillText("step", left - 8, y + 11);
  };
  const phaseAt = step => { for (const s of data.phases) if (step >= s.from && step < s.to) return s.phase; return ""; };
  // about says which step, or which bin of steps, is at a place, and in which phase.
  const about = step => {
    const i = Math.floor(step), bin = Math.floor(i / data.per_bin), label = data.labels[bin];
    const which = data.per_bin > 1 ? `steps ${bin * data.per_bin} to ${Math.min(data.steps, (bin + 1) * data.per_bin) - 1}` : `step ${i}`;
    return which + (label && data.per_bin === 1 ? ` (${label})` : "") + (phaseAt(i) ? ", " + phaseAt(i) : "");
  };

  // ---- series: bars of each bin's mean, before a shade that is as high as its greatest value
  for (const s of data.series) {
    const height = 96;
    const all = (s.max || s.mean).filter(v => v !== null);
    const canvas = chart($("series"), height, `${s.name} of each step`, p => {
      const { c } = p, per = data.per_bin, base = height - 18;
      const from = Math.max(0, Math.floor(view.from / per)), to = Math.min(s.mean.length, Math.ceil(view.to / per));
      let most = 0;
      for (let i = from; i < to; i++) most = Math.max(most, (s.max || s.mean)[i] || 0);
      const y = v => base - (most > 0 ? v / most : 0) * (base - 8);
      c.save();
      c.beginPath(); c.rect(left, 0, p.width, height); c.clip();
      for (const ph of data.phases) {
        if (ph.phase === "generation" || ph.to <= view.from || ph.from >= view.to) continue;
        c.fillStyle = css("--panel");
        c.fillRect(p.x(ph.from), 0, Math.max(1, p.x(ph.to) - p.x(ph.from)), base);
      }
      const columns = (values, fill) => {
        c.fillStyle = fill;
        for (let i = from; i < to; i++) {
          if (values[i] === null) continue;
          const x = p.x(i * per), w = Math.max(1, p.x((i + 1) * per) - x - (view.to - view.from < p.width * per / 3 ? 1 : 0));
          c.fillRect(x, y(values[i]), w, Math.max(1, base - y(values[i])));
        }
      };
      if (s.max) columns(s.max, css("--shade"));
      columns(s.mean, css("--accent"));
      c.restore();
      c.strokeStyle = css("--line");
      c.beginPath(); c.moveTo(left, base + .5); c.lineTo(left + p.width, base + .5); c.stroke();
      c.textAlign = "right";
      c.fillStyle = css("--ink");
      c.fillText(clip(s.name, c, left - 12), left - 8, base / 2);
      c.fillStyle = css("--faint");
      c.fillText(all.length ? show(most, s.unit) : "not known", left - 8, 10);
      axis(p, base);
    }, step => {
      const bin = Math.floor(Math.floor(step) / data.per_bin);
      return `${about(step)}\n${s.name}: ${show(s.mean[bin], s.unit)}` + (s.max ? `, at most ${show(s.max[bin], s.unit)}` : "");
    });
    canvas.id = "series-" + data.series.indexOf(s);
  }

  // ---- heatmaps: bytes of cells, as report/bin.go explains them at heatCells
  const unpack = text => Uint8Array.from(atob(text), ch => ch.charCodeAt(0));
  if (data.heat.length && data.steps) {
    const parent = $("heat");
    parent.append(make("h3", "Which, and when"));
    const bar = make("div", undefined, { className: "legend" });
    const which = make("select", undefined, { id: "metric", title: "what a cell shows" });
    data.heat.forEach((h, i) => which.append(make("option", h.name, { value: i })));
    const how = make("select", undefined, { id: "fold", title: "what a cell of several shows" });
    how.append(make("option", "mean", { value: "mean" }), make("option", "greatest", { value: "max" }));
    const scale = make("canvas", undefined, { width: 160, height: 12 }), least = make("span"), most = make("span");
    const unknown = make("span"), swatch = make("span", undefined, { className: "swatch" });
    swatch.style.background = "var(--unknown)";
    unknown.append(swatch, "not observed");
    bar.append(which, how, least, scale, most, make("span", "(logarithmic; nothing is the paper's colour)"), unknown);
    const text = make("p", undefined, { className: "about" });
    parent.append(bar, text);
    const cells = data.heat.map(h => ({ mean: unpack(h.mean), max: h.max ? unpack(h.max) : null }));
    let now = 0;
    const height = 560;
    const weights = data.heat.map(h => {
      // Rows are as high as their weight, but at least a sixth of the average: norms can be seen beside matrices.
      const all = h.rows.reduce((a, r) => a + r.weight, 0), n = h.rows.length;
      const w = h.rows.map(r => Math.max(all > 0 ? r.weight / all : 0, 1 / (6 * Math.max(1, n))));
      const sum = w.reduce((a, b) => a + b, 0), edges = [0];
      for (const v of w) edges.push(edges[edges.length - 1] + v / sum);
      return edges;
    });
    const base = height - 18;
    const canvas = chart(parent, height, "a heatmap of rows and steps", (p, ratio) => {
      const { c } = p, h = data.heat[now], edges = weights[now];
      const own = cells[now], values = how.value === "max" && own.max ? own.max : own.mean;
      const w = Math.max(1, Math.round(p.width * ratio)), tall = Math.max(1, Math.round(base * ratio));
      const image = c.createImageData(w, tall), pixels = new Uint32Array(image.data.buffer);
      const probe = document.createElement("canvas").getContext("2d");
      const rgb = name => { probe.fillStyle = css(name); probe.fillRect(0, 0, 1, 1); return probe.getImageData(0, 0, 1, 1).data; };
      const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
      const lut = new Uint32Array(256);
      for (let v = 2; v < 256; v++) lut[v] = pack(color((v - 2) / 253));
      lut[0] = pack(rgb("--unknown")); lut[1] = pack(rgb("--paper"));
      const columns = new Int32Array(w + 1);
      for (let x = 0; x <= w; x++) columns[x] = Math.min(h.bins - 1, Math.max(0, Math.floor((view.from + x / w * (view.to - view.from)) / h.per_bin)));
      let row = 0;
      for (let y = 0; y < tall; y++) {
        // A pixel that holds several rows or bins shows the greatest of them.
        const top = y / tall, bottom = (y + 1) / tall;
        while (row + 1 < h.rows.length && edges[row + 1] <= top) row++;
        let last = row;
        while (last + 1 < h.rows.length && edges[last + 1] < bottom) last++;
        for (let x = 0; x < w; x++) {
          let v = 0;
          for (let r = row; r <= last; r++) {
            const at = r * h.bins;
            for (let b = columns[x]; b <= Math.max(columns[x], columns[x + 1] - 1); b++) if (values[at + b] > v) v = values[at + b];
          }
          pixels[y * w + x] = lut[v];
        }
      }
      c.putImageData(image, Math.round(left * ratio), 0);
      c.textAlign = "right";
      c.fillStyle = css("--ink");
      let free = -1;
      h.rows.forEach((r, i) => {
        const y = (edges[i] + edges[i + 1]) / 2 * base;
        if (y - free < 13) return;
        free = y;
        c.fillText(clip(r.name, c, left - 12), left - 8, Math.min(Math.max(y, 7), base - 7));
      });
      axis(p, base);
      const s = scale.getContext("2d");
      for (let x = 0; x < 160; x++) { s.fillStyle = `rgb(${color(x / 159)})`; s.fillRect(x, 0, 1, 12); }
    }, (step, y) => {
      const h = data.heat[now], edges = weights[now], share = y / base;
      let row = 0;
      while (row + 1 < h.rows.length && edges[row + 1] <= share) row++;
      const r = h.rows[row];
      if (!r || share > 1) return about(step);
      const v = cells[now][how.value === "max" && cells[now].max ? "max" : "mean"][row * h.bins + Math.min(h.bins - 1, Math.floor(step / h.per_bin))];
      const value = v === 0 ? "not observed" : v === 1 ? "0" : "about " + show(h.least * Math.pow(h.most / h.least, (v - 2) / 253), h.unit);
      return `${r.name}${r.detail ? " (" + r.detail + ")" : ""}\n${about(step)}\n${h.name}: ${value}`;
    });
    canvas.id = "heat-map";
    const choose = () => {
      now = +which.value;
      const h = data.heat[now];
      text.textContent = h.about;
      how.hidden = !h.max;
      least.textContent = show(h.least, h.unit);
      most.textContent = show(h.most, h.unit);
      redraw();
    };
    which.onchange = choose;
    how.onchange = redraw;
    choose();
  }

  // ---- offsets
  if (data.offsets) {
    const o = data.offsets, raw = unpack(o.xy), xy = new Uint16Array(raw.buffer, 0, raw.length >> 1), n = xy.length / 3;
    const parent = $("offsets");
    parent.append(make("h3", "Where in the file"));
    const bar = make("div", undefined, { className: "legend" });
    o.kinds.forEach((k, i) => {
      const one = make("span"), swatch = make("span", undefined, { className: "swatch" });
      swatch.style.background = kinds[i % kinds.length];
      one.append(swatch, k);
      bar.append(one);
    });
    parent.append(bar);
    const height = 320, base = height - 18;
    const y = at => 4 + at / 65535 * (base - 8);
    const stepOf = i => xy[3 * i] / 65535 * data.steps;
    const canvas = chart(parent, height, "offsets in the file over the steps", p => {
      const { c } = p;
      c.strokeStyle = css("--line");
      c.strokeRect(left + .5, .5, p.width - 1, base);
      const size = n * (view.to - view.from) / Math.max(1, data.steps) > 5000 ? 1.5 : 3;
      for (let i = 0; i < n; i++) {
        const step = stepOf(i);
        if (step < view.from || step > view.to) continue;
        c.fillStyle = kinds[xy[3 * i + 2] % kinds.length];
        c.fillRect(p.x(step), y(xy[3 * i + 1]), size, size);
      }
      c.fillStyle = css("--faint");
      c.textAlign = "right";
      for (let i = 0; i <= 4; i++) c.fillText(show(o.size * i / 4, "B"), left - 8, Math.min(Math.max(y(65535 * i / 4), 8), base - 6));
      axis(p, base);
    }, (step, py) => {
      const at = Math.max(0, Math.min(1, (py - 4) / (base - 8))) * o.size;
      return `${about(step)}\noffset ${show(at, "B")}`;
    });
    canvas.id = "offset-map";
  }

  // ---- tables: columns sort, a text filters rows, and rows are made when they are scrolled to
  const chunk = 200;
  data.tables.forEach((t, index) => {
    const parent = $("tables");
    parent.append(make("h2", t.name));
    if (t.about) parent.append(make("p", t.about, { className: "about" }));
    const filter = make("input", undefined, { type: "search", placeholder: "filter rows", className: "filter" });
    filter.setAttribute("aria-label", "filter the rows of " + t.name);
    const count = make("span", undefined, { className: "hint" });
    const bar = make("div", undefined, { className: "legend" });
    bar.append(filter, count);
    const box = make("div", undefined, { className: "scroll" }), table = make("table", undefined, { id: "table-" + index }), head = make("thead"), body = make("tbody"), names = make("tr");
    const isNumber = t.columns.map((_, i) => t.rows.some(r => typeof r[i] === "number"));
    let order = t.rows.map((_, i) => i), sorted = -1, down = true, shown = [], drawn = 0;
    const headers = t.columns.map((col, i) => {
      const th = make("th", undefined, { className: isNumber[i] ? "number" : "", scope: "col" }), b = make("button", col.name, { type: "button" });
      b.onclick = () => {
        down = sorted === i ? !down : isNumber[i];
        sorted = i;
        const sign = down ? -1 : 1;
        order.sort((a, z) => {
          const p = t.rows[a][i], q = t.rows[z][i];
          if (p === null || q === null) return (p === null) - (q === null); // unknown values come last
          return sign * (isNumber[i] ? p - q : String(p).localeCompare(String(q), undefined, { numeric: true })) || a - z;
        });
        headers.forEach((h, k) => {
          h.setAttribute("aria-sort", k === i ? (down ? "descending" : "ascending") : "none");
          h.firstChild.textContent = t.columns[k].name + (k === i ? (down ? " ▾" : " ▴") : "");
        });
        fill();
      };
      th.append(b);
      names.append(th);
      return th;
    });
    head.append(names);
    table.append(head, body);
    box.append(table);
    parent.append(bar, box);
    const more = to => {
      for (; drawn < Math.min(to, shown.length); drawn++) {
        const tr = make("tr");
        t.rows[shown[drawn]].forEach((v, i) => tr.append(make("td", typeof v === "number" ? show(v, t.columns[i].unit) : v === null ? "–" : v, { className: isNumber[i] ? "number" : "" })));
        body.append(tr);
      }
    };
    const fill = () => {
      const text = filter.value.toLowerCase();
      shown = text ? order.filter(i => t.rows[i].some(v => v !== null && String(v).toLowerCase().includes(text))) : order;
      body.replaceChildren();
      drawn = 0;
      more(chunk);
      box.scrollTop = 0;
      count.textContent = shown.length === t.rows.length ? `${t.rows.length} rows` : `${shown.length} of ${t.rows.length} rows`;
    };
    box.onscroll = () => { if (box.scrollTop + box.clientHeight > box.scrollHeight - 400) more(drawn + chunk); };
    filter.oninput = fill;
    addEventListener("beforeprint", () => more(2000));
    fill();
  });

  // ---- light and dark: as the system says, until the button is pressed
  $("theme").onclick = () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  redraw();
})();

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
  // rgb are the parts of a colour, which may be a variable of the style.
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = text => { probe.fillStyle = text; probe.fillRect(0, 0, 1, 1); return Array.from(probe.getImageData(0, 0, 1, 1).data.slice(0, 3)); };
  const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  // legend is a line of names with their colours.
  const legend = classes => {
    const bar = make("div", undefined, { className: "legend" });
    for (const c of classes) {
      const one = make("span"), swatch = make("span", undefined, { className: "swatch" });
      swatch.style.background = c.color;
      one.append(swatch, c.name);
      bar.append(one);
    }
    return bar;
  };

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

  // ---- SVG: a context that writes down what is drawn. It knows what this page's charts use of a canvas.
  const escape = text => String(text).replace(/[&<>"]/g, ch => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[ch]);
  const recorder = (width, height) => {
    const parts = [], groups = [], measure = document.createElement("canvas").getContext("2d");
    let path = [], open = 0, clips = 0;
    const box = (x, y, w, h, paint) => parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" ${paint}/>`);
    const line = () => `stroke="${c.strokeStyle}"` + (c.dash ? ` stroke-dasharray="${c.dash}"` : "");
    const c = {
      font: "", fillStyle: "#000", strokeStyle: "#000", textAlign: "left", textBaseline: "middle", dash: "",
      measureText: text => { measure.font = c.font; return measure.measureText(text); },
      save: () => { groups.push(open); }, restore: () => { for (const was = groups.pop(); open > was; open--) parts.push("</g>"); },
      beginPath: () => { path = []; }, moveTo: (x, y) => { path.push(`M${x} ${y}`); }, lineTo: (x, y) => { path.push(`L${x} ${y}`); },
      rect: (x, y, w, h) => { path.push(`M${x} ${y}h${w}v${h}h${-w}z`); },
      clip: () => { open++; clips++; parts.push(`<clipPath id="c${clips}"><path d="${path.join("")}"/></clipPath><g clip-path="url(#c${clips})">`); },
      stroke: () => { parts.push(`<path d="${path.join("")}" fill="none" ${line()}/>`); },
      strokeRect: (x, y, w, h) => box(x, y, w, h, `fill="none" ${line()}`),
      fillRect: (x, y, w, h) => box(x, y, w, h, `fill="${c.fillStyle}"`),
      setLineDash: dash => { c.dash = dash.join(" "); },
      fillText: (text, x, y) => { parts.push(`<text x="${x}" y="${y}" dy=".35em" fill="${c.fillStyle}" text-anchor="${{ left: "start", center: "middle", right: "end" }[c.textAlign]}">${escape(text)}</text>`); },
      createImageData: (w, h) => measure.createImageData(w, h),
      putImageData: (image, x, y) => {
        const at = document.createElement("canvas");
        at.width = image.width; at.height = image.height;
        at.getContext("2d").putImageData(image, 0, 0);
        parts.push(`<image x="${x}" y="${y}" width="${image.width}" height="${image.height}" href="${at.toDataURL()}"/>`);
      },
      // The name space is in two parts, as nothing in this page may look like an address on a network.
      text: () => `<svg xmlns="${"http:" + "//www.w3.org/2000/svg"}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="${css("--paper")}"/>${parts.join("")}</svg>`,
    };
    return c;
  };

  // ---- a figure: a canvas with a margin for its scale, that can be saved as SVG. draw draws it.
  const left = 200, right = 10;
  const figure = (parent, height, id, label, draw) => {
    const around = make("div", undefined, { className: "figure" }), save = make("button", "SVG", { type: "button", className: "save", title: "save this chart as SVG" });
    const canvas = make("canvas", undefined, { tabIndex: 0, id });
    const size = { height }; // may be changed before the next drawing
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    around.append(canvas, save);
    parent.append(around);
    const paint = (c, width, ratio) => {
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";
      draw({ c, width: Math.max(1, width - left - right), height: size.height, x: step => left + (step - view.from) / (view.to - view.from) * (width - left - right) }, ratio);
    };
    save.onclick = () => {
      const width = canvas.clientWidth || 1000, c = recorder(width, size.height);
      paint(c, width, 1);
      make("a", undefined, { download: id + ".svg", href: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(c.text()) }).click();
    };
    charts.push(() => {
      const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
      if (!width) return;
      canvas.style.height = size.height + "px";
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(size.height * ratio);
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      paint(c, width, ratio);
    });
    canvas.style.height = height + "px";
    canvas.addEventListener("pointerleave", () => tell(""));
    return { canvas, size };
  };

  // ---- a chart: a figure of steps, which zooms and moves. about says what the tooltip shows at a step and a height.
  const chart = (parent, height, id, label, draw, about) => {
    const { canvas } = figure(parent, height, id, label, draw);
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
    canvas.addEventListener("dblclick", () => look(0, data.steps));
    canvas.addEventListener("keydown", e => {
      const act = e.ctrlKey || e.metaKey || e.altKey ? undefined : keys[e.key];
      if (act) { e.preventDefault(); act(); }
    });
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
  // ticks are some round numbers from 0 to an end.
  const ticks = end => {
    const size = Math.pow(10, Math.floor(Math.log10(end / 3))), all = [];
    let every = size;
    for (const m of [1, 2, 5, 10]) { every = m * size; if (end / every <= 6) break; }
    for (let i = 0; i * every <= end; i++) all.push(+(i * every).toPrecision(12));
    return all;
  };
  const phaseAt = step => { for (const s of data.phases) if (step >= s.from && step < s.to) return s.phase; return ""; };
  // about says which step, or which bin of steps, is at a place, and in which phase.
  const about = step => {
    const i = Math.floor(step), bin = Math.floor(i / data.per_bin), label = data.labels[bin];
    const which = data.per_bin > 1 ? `steps ${bin * data.per_bin} to ${Math.min(data.steps, (bin + 1) * data.per_bin) - 1}` : `step ${i}`;
    return which + (label && data.per_bin === 1 ? ` (${label})` : "") + (phaseAt(i) ? ", " + phaseAt(i) : "");
  };

  // scaleEnd is the greatest value of the bins in view that belong to the phase that the page is about. A prompt, which
  // takes as long as many tokens, would leave nothing of the scale to these. It is that of all, if there are no such bins.
  const isMain = new Uint8Array(data.labels.length);
  for (const ph of data.phases) if (ph.phase === data.main) isMain.fill(1, Math.floor(ph.from / data.per_bin), Math.ceil(ph.to / data.per_bin));
  const scaleEnd = (from, to, value) => {
    let all = 0;
    const main = [];
    for (let i = from; i < to; i++) {
      const v = value(i) || 0;
      all = Math.max(all, v);
      if (isMain[i] && v > 0) main.push(v);
    }
    return { most: main.length ? Math.max(...main) : all, exceeded: main.length > 0 && all > Math.max(...main), usual: usual(main) || all };
  };
  // usual is the end of a scale that shows most values: it leaves out few of them that are many times as great.
  const usual = values => {
    const sorted = values.slice().sort((a, b) => a - b), n = sorted.length;
    return n ? Math.min(sorted[n - 1], 3 * sorted[Math.floor(.9 * (n - 1))]) : 0;
  };
  // shadePhases marks the steps of other phases.
  const shadePhases = (p, base) => {
    for (const ph of data.phases) {
      if (ph.phase === data.main || ph.to <= view.from || ph.from >= view.to) continue;
      p.c.fillStyle = css("--panel");
      p.c.fillRect(p.x(ph.from), 0, Math.max(1, p.x(ph.to) - p.x(ph.from)), base);
    }
  };
  // within draws what lies between the edges of a chart.
  const within = (p, draw) => {
    p.c.save();
    p.c.beginPath(); p.c.rect(left, 0, p.width, p.height); p.c.clip();
    draw();
    p.c.restore();
  };
  const baseLine = (p, base) => {
    p.c.strokeStyle = css("--line");
    p.c.beginPath(); p.c.moveTo(left, base + .5); p.c.lineTo(left + p.width, base + .5); p.c.stroke();
  };
  const inView = count => [Math.max(0, Math.floor(view.from / data.per_bin)), Math.min(count, Math.ceil(view.to / data.per_bin))];

  // ---- speed: bars as high as steps are fast, in the colours of what they spent their time with
  if (data.speed && data.steps) {
    const s = data.speed, height = 260, base = height - 18, parent = $("speed");
    parent.append(make("h2", "Tokens per second, and what held them up"), make("p", s.about, { className: "about" }));
    parent.append(legend([...s.parts.filter(part => part.seconds.some(v => v > 0)), { name: "not told apart", color: "var(--unknown)" }]));
    const speed = i => s.seconds[i] > 0 ? s.tokens[i] / s.seconds[i] : 0;
    chart(parent, height, "speed-chart", "tokens per second over the steps", p => {
      const { c } = p, [from, to] = inView(s.tokens.length);
      const { most: greatest, usual: most, exceeded } = scaleEnd(from, to, speed);
      const end = 1.06 * (s.possible < 2 * most ? Math.max(most, s.possible) : most) || 1;
      const y = v => base - Math.min(v / end, 1) * (base - 8);
      within(p, () => {
        shadePhases(p, base);
        // Bins that share a pixel are summed up.
        const each = Math.max(1, Math.ceil((to - from) / p.width));
        for (let i = from - from % each; i < to; i += each) {
          const last = Math.min(i + each, s.tokens.length);
          const sum = values => { let all = 0; for (let k = i; k < last; k++) all += values[k]; return all; };
          const seconds = sum(s.seconds);
          if (!(seconds > 0)) continue;
          const v = sum(s.tokens) / seconds, x = p.x(i * data.per_bin), wide = p.x(Math.min(data.steps, last * data.per_bin)) - x;
          const w = Math.max(1, wide - (wide > 4 ? 1 : 0));
          let done = 0;
          const box = (share, paint) => {
            const top = y((done + share) * v), bottom = y(done * v);
            c.fillStyle = paint;
            if (bottom > top) c.fillRect(x, top, w, bottom - top);
            done += share;
          };
          for (const part of s.parts) box(Math.min(sum(part.seconds) / seconds, 1 - done), part.color);
          if (done < .999) box(1 - done, css("--unknown"));
        }
        if (s.possible > 0 && s.possible <= end) {
          c.strokeStyle = css("--ink");
          c.setLineDash([6, 4]);
          c.beginPath(); c.moveTo(left, y(s.possible)); c.lineTo(left + p.width, y(s.possible)); c.stroke();
          c.setLineDash([]);
        }
      });
      baseLine(p, base);
      c.textAlign = "right";
      c.fillStyle = css("--faint");
      for (const v of ticks(end)) c.fillText(digits(v) + (v === 0 ? " tok/s" : ""), left - 8, Math.min(Math.max(y(v), 8), base - 4));
      c.fillStyle = css("--ink");
      if (s.possible > 0 && s.possible <= end) c.fillText("if nothing waited ", left - 40, y(s.possible));
      if (exceeded || greatest > most) c.fillText(greatest > most ? "some are higher " : "higher: other phases ", left - 40, 20);
      if (s.possible > end) c.fillText(`if nothing waited: ${digits(s.possible)}`, left - 40, 38);
      axis(p, base);
    }, step => {
      const i = Math.floor(Math.floor(step) / data.per_bin);
      if (!(s.seconds[i] > 0)) return `${about(step)}\nspeed: not known`;
      const lines = [about(step), `speed: ${digits(speed(i))} tok/s (${show(1e9 * s.seconds[i], "ns")}, at ${show(1e9 * s.begins[i], "ns")})`];
      for (const part of s.parts) if (part.seconds[i] > 0) lines.push(`${part.name}: ${Math.round(100 * part.seconds[i] / s.seconds[i])} %`);
      return lines.join("\n");
    });
  }

  // ---- spans: what the target did when
  if (data.spans.length) {
    const all = data.spans, height = 54, base = height - 18, parent = $("spans");
    const begin = all[0].begin, end = Math.max(all[all.length - 1].end, begin + 1e-9);
    const seen = new Map(all.map(s => [s.name, s]));
    parent.append(make("h3", "What happened when"), legend(seen.values()));
    const x = (p, t) => left + (t - begin) / (end - begin) * p.width;
    const { canvas } = figure(parent, height, "span-chart", "what happened when", p => {
      const { c } = p;
      for (const s of all) {
        const from = x(p, s.begin), w = Math.max(1, x(p, s.end) - from);
        c.fillStyle = s.color;
        c.fillRect(from, 4, w, base - 8);
        c.textAlign = "left";
        c.fillStyle = "#fff";
        if (c.measureText(s.name).width < w - 12) c.fillText(s.name, from + 6, base / 2);
      }
      c.fillStyle = css("--faint");
      c.textAlign = "center";
      for (const t of ticks(end - begin)) c.fillText(digits(+(begin + t).toPrecision(6)), x(p, begin + t), base + 10);
      c.textAlign = "right";
      c.fillText("seconds", left - 16, base + 10);
    });
    canvas.addEventListener("pointermove", e => {
      const t = begin + (e.offsetX - left) / Math.max(1, canvas.clientWidth - left - right) * (end - begin);
      const s = all.find(s => t >= s.begin && t <= s.end);
      tell(s ? `${s.name}, ${show(1e9 * s.begin, "ns")} to ${show(1e9 * s.end, "ns")} (${show(1e9 * (s.end - s.begin), "ns")})\n${s.about}` : "", e.clientX, e.clientY);
    });
  }

  // ---- series: bars of each bin's mean, before a shade that is as high as its greatest value
  if (data.series.length) $("series").append(make("h2", "Over time"));
  data.series.forEach((s, index) => {
    const height = 96, base = height - 18, top = s.max || s.mean;
    const all = top.filter(v => v !== null);
    chart($("series"), height, "series-" + index, `${s.name} of each step`, p => {
      const { c } = p, per = data.per_bin, [from, to] = inView(s.mean.length);
      const { most, exceeded } = scaleEnd(from, to, i => top[i]);
      const y = v => base - (most > 0 ? Math.min(v / most, 1) : 0) * (base - 8);
      within(p, () => {
        shadePhases(p, base);
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
      });
      baseLine(p, base);
      c.textAlign = "right";
      c.fillStyle = css("--ink");
      c.fillText(clip(s.name, c, left - 12), left - 8, base / 2);
      c.fillStyle = css("--faint");
      c.fillText(all.length ? show(most, s.unit) + (exceeded ? ", other phases higher" : "") : "not known", left - 8, 10);
      axis(p, base);
    }, step => {
      const bin = Math.floor(Math.floor(step) / data.per_bin);
      return `${about(step)}\n${s.name}: ${show(s.mean[bin], s.unit)}` + (s.max ? `, at most ${show(s.max[bin], s.unit)}` : "");
    });
  });

  // label writes the names of rows. Where rows are too low for that, those of a block, such as a layer, have its name.
  const label = (p, base, rows, edges) => {
    const { c } = p, line = 13, low = rows.length * line > base;
    let free = -line, i = 0;
    while (i < rows.length) {
      let last = i;
      if (low && rows[i].block) while (last + 1 < rows.length && rows[last + 1].block === rows[i].block) last++;
      const y = Math.min(Math.max((edges[i] + edges[last + 1]) / 2 * base, 7), base - 7);
      if (y - free >= line) {
        free = y;
        c.fillText(clip(low && rows[i].block || rows[i].name, c, left - 12), left - 8, y);
        if (last > i) {
          c.strokeStyle = css("--line");
          c.beginPath(); c.moveTo(left - 3.5, edges[i] * base + 1); c.lineTo(left - 3.5, edges[last + 1] * base - 1); c.stroke();
        }
      }
      i = last + 1;
    }
  };

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
    chart(parent, height, "heat-map", "a heatmap of rows and steps", (p, ratio) => {
      const { c } = p, h = data.heat[now], edges = weights[now];
      const own = cells[now], values = how.value === "max" && own.max ? own.max : own.mean;
      const w = Math.max(1, Math.round(p.width * ratio)), tall = Math.max(1, Math.round(base * ratio));
      const image = c.createImageData(w, tall), pixels = new Uint32Array(image.data.buffer);
      const lut = new Uint32Array(256);
      for (let v = 2; v < 256; v++) lut[v] = pack(color((v - 2) / 253));
      lut[0] = pack(rgb(css("--unknown"))); lut[1] = pack(rgb(css("--paper")));
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
      label(p, base, h.rows, edges);
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

  // ---- reads: where in the files is read, and when
  if (data.reads && data.steps) {
    const r = data.reads, cells = unpack(r.cells), parent = $("reads");
    parent.append(make("h3", "Where in the file"), make("p", r.about, { className: "about" }));
    const found = new Set();
    for (const v of cells) if (v) found.add(v >> 5);
    parent.append(legend(r.classes.filter((_, i) => found.has(i))));
    const height = 320, base = height - 18, most = 31;
    chart(parent, height, "offset-map", "where in the file is read over the steps", (p, ratio) => {
      const { c } = p, w = Math.max(1, Math.round(p.width * ratio)), tall = Math.max(1, Math.round((base - 1) * ratio));
      const image = c.createImageData(w, tall), pixels = new Uint32Array(image.data.buffer);
      const paper = rgb(css("--paper")), paints = r.classes.map(k => rgb(k.color)), none = pack(paper);
      // Where a step has only a few pixels, each of them has whole steps: else some would have nothing, and steps that
      // are all alike would look hatched.
      const isWhole = r.per_column < 1 && w / (view.to - view.from) < 8;
      const stepAt = x => view.from + x / w * (view.to - view.from);
      const columnsAt = x => isWhole ? [Math.round(Math.floor(stepAt(x)) / r.per_column), Math.round(Math.ceil(stepAt(x + 1)) / r.per_column)] : [Math.floor(stepAt(x) / r.per_column), Math.ceil(stepAt(x + 1) / r.per_column)];
      const sums = new Float64Array(8);
      for (let y = 0; y < tall; y++) {
        // The beginning of the files is at the bottom. A pixel has all the cells that it touches.
        const low = Math.min(r.rows - 1, Math.floor((tall - 1 - y) / tall * r.rows)), high = Math.max(low + 1, Math.min(r.rows, Math.ceil((tall - y) / tall * r.rows)));
        for (let x = 0; x < w; x++) {
          let [from, to] = columnsAt(x);
          to = Math.min(Math.max(from + 1, to), r.columns);
          const steps = Math.max(1, (to - from) * r.per_column) * (high - low);
          let best = -1, all = 0;
          sums.fill(0);
          for (let row = low; row < high; row++) for (let k = from; k < to; k++) {
            const v = cells[row * r.columns + k];
            if (!v) continue;
            const share = (v & most) / most;
            all += share * share;
            sums[v >> 5] += share * share;
            if (best < 0 || sums[v >> 5] > sums[best]) best = v >> 5;
          }
          const part = .25 + .75 * Math.sqrt(Math.min(all / steps, 1));
          pixels[y * w + x] = best < 0 || !paints[best] ? none : pack(paints[best].map((v, k) => Math.round(paper[k] + part * (v - paper[k]))));
        }
      }
      c.putImageData(image, Math.round(left * ratio), 0);
      c.strokeStyle = css("--line");
      c.strokeRect(left + .5, .5, p.width - 1, base - 1);
      c.fillStyle = css("--faint");
      c.textAlign = "right";
      for (let i = 0; i <= 4; i++) c.fillText(show(r.size * i / 4, "B"), left - 8, Math.min(Math.max(base * (1 - i / 4), 8), base - 6));
      axis(p, base);
    }, (step, y) => {
      const place = Math.max(0, Math.min(1, 1 - y / base)), row = Math.min(r.rows - 1, Math.floor(place * r.rows));
      const v = cells[row * r.columns + Math.min(r.columns - 1, Math.floor(step / r.per_column))];
      const what = v ? `${r.classes[v >> 5].name}; about ${digits(100 * ((v & most) / most) ** 2)} % of the bytes here` : "not read";
      return `${about(step)}\noffset ${show(place * r.size, "B")}\n${what}`;
    });
  }

  // ---- maps: rows and columns that are no steps, such as layers and experts
  if (data.maps.length) {
    const parent = $("maps"), maps = data.maps.map(m => ({ ...m, cells: unpack(m.cells) }));
    parent.append(make("h2", "Experts: hot and cold, by layer"));
    const bar = make("div", undefined, { className: "legend" });
    const which = make("select", undefined, { id: "map-of", title: "whose choices" });
    maps.forEach((m, i) => which.append(make("option", m.name, { value: i })));
    const how = make("select", undefined, { id: "map-order", title: "in which order" });
    how.append(make("option", "in their order", { value: "" }), make("option", "most chosen first", { value: "sorted" }));
    const scale = make("canvas", undefined, { width: 160, height: 12 }), most = make("span"), text = make("p", undefined, { className: "about" });
    bar.append(which, how, make("span", "more than 0"), scale, most, make("span", "(square root; nothing is the paper's colour)"));
    parent.append(bar, text);
    const now = () => maps[+which.value];
    // order is which column is shown at each place of a row.
    const order = (m, row) => {
      const at = Array.from({ length: m.columns }, (_, i) => i);
      return how.value ? at.sort((a, b) => m.cells[row * m.columns + b] - m.cells[row * m.columns + a] || a - b) : at;
    };
    const { canvas, size } = figure(parent, 300, "map", "a map of layers and experts", (p, ratio) => {
      const m = now(), { c } = p, base = p.height - 18;
      const w = Math.max(1, Math.round(p.width * ratio)), tall = Math.max(1, Math.round(base * ratio));
      const image = c.createImageData(w, tall), pixels = new Uint32Array(image.data.buffer), lut = new Uint32Array(256);
      for (let v = 2; v < 256; v++) lut[v] = pack(color((v - 2) / 253));
      lut[0] = pack(rgb(css("--unknown"))); lut[1] = pack(rgb(css("--paper")));
      for (let row = 0; row < m.rows.length; row++) {
        const at = order(m, row), from = Math.round(row / m.rows.length * tall), to = Math.round((row + 1) / m.rows.length * tall);
        for (let x = 0; x < w; x++) {
          let v = 0;
          for (let k = Math.floor(x / w * m.columns); k < Math.max(Math.ceil((x + 1) / w * m.columns), Math.floor(x / w * m.columns) + 1) && k < m.columns; k++) v = Math.max(v, m.cells[row * m.columns + at[k]]);
          for (let y = from; y < to; y++) pixels[y * w + x] = lut[v];
        }
      }
      c.putImageData(image, Math.round(left * ratio), 0);
      c.strokeStyle = css("--line");
      c.strokeRect(left + .5, .5, p.width - 1, base - 1);
      c.textAlign = "right";
      c.fillStyle = css("--ink");
      label(p, base, m.rows.map(name => ({ name })), Array.from({ length: m.rows.length + 1 }, (_, i) => i / m.rows.length));
      c.fillStyle = css("--faint");
      c.textAlign = "center";
      for (const k of ticks(m.columns * m.per_column)) if (k < m.columns * m.per_column && Number.isInteger(k)) c.fillText(String(k), left + (k + .5) / (m.columns * m.per_column) * p.width, base + 10);
      c.textAlign = "right";
      c.fillText(how.value ? m.column + "s, most chosen first" : m.column, left - 16, base + 10);
      const s = scale.getContext("2d");
      for (let x = 0; x < 160; x++) { s.fillStyle = `rgb(${color(x / 159)})`; s.fillRect(x, 0, 1, 12); }
    });
    canvas.addEventListener("pointermove", e => {
      const m = now(), row = Math.floor(e.offsetY / (size.height - 18) * m.rows.length);
      const place = Math.floor((e.offsetX - left) / Math.max(1, canvas.clientWidth - left - right) * m.columns);
      if (row < 0 || row >= m.rows.length || place < 0 || place >= m.columns) { tell(""); return; }
      const k = order(m, row)[place], v = m.cells[row * m.columns + k], first = k * m.per_column;
      const value = v === 0 ? "not known" : v === 1 ? "0" : "about " + show(m.most * ((v - 2) / 253) ** 2, m.unit);
      tell(`${m.rows[row]}, ${m.column}${m.per_column > 1 ? `s ${first} to ${first + m.per_column - 1}` : " " + first}\n${value}`, e.clientX, e.clientY);
    });
    const choose = () => {
      const m = now();
      text.textContent = m.about;
      most.textContent = show(m.most, m.unit);
      size.height = Math.min(Math.max(m.rows.length * 16, 120), 720) + 18;
      redraw();
    };
    which.onchange = choose;
    how.onchange = redraw;
    choose();
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

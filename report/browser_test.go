package report

// This file opens pages in a real browser and does there what a reader does.

import (
	"strings"
	"testing"

	"tensorcast/internal/testenv"
)

// inBrowser runs JavaScript on the page of a report. It returns what the script stored in result.
func inBrowser(t *testing.T, r *Report, steps string, flags ...string) map[string]string {
	t.Helper()
	return testenv.Browse(t, write(t, r), steps, flags...)
}

func expect(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if !strings.Contains(got[name], w) {
			t.Errorf("%s: %q, want %q", name, got[name], w)
		}
	}
}

// The page loads without an error, shows what is in it, zooms, moves, sorts, filters and has tooltips.
func TestPage(t *testing.T) {
	got := inBrowser(t, planted(), `
		await drawn();
		result.title = $("title").textContent;
		result.verdict = $("verdict").textContent;
		result.notes = $("remarks").textContent;
		result.all = $("view").textContent;
		const s = $("series-0"), m = $("heat-map"), width = m.clientWidth - 210;
		const x = step => 200 + (step + .5) / 40 * width;
		await act(s, PointerEvent, "pointermove", x(12), 40);
		result.speed = $("tip").textContent;
		await act(s, PointerEvent, "pointermove", x(7), 40);
		result.unknown = $("tip").textContent;
		await act(m, PointerEvent, "pointermove", x(20), 100);
		result.hot = $("tip").textContent;
		await act(m, PointerEvent, "pointermove", x(5), 400);
		result.unseen = $("tip").textContent;
		await act($("offset-map"), PointerEvent, "pointermove", x(21), 100);
		result.offset = $("tip").textContent;
		await act($("offset-map"), PointerEvent, "pointermove", x(21), 250);
		result.unread = $("tip").textContent;
		result.classes = [pixel("offset-map", x(20), 100), pixel("offset-map", x(21), 100), pixel("offset-map", x(21), 250)].join(" ");
		const speed = $("speed-chart");
		await act(speed, PointerEvent, "pointermove", x(20), 100);
		result.rate = $("tip").textContent;
		await act(speed, PointerEvent, "pointermove", x(1), 100);
		result.prompt = $("tip").textContent;
		`+"/* 8 tok/s of 12.72: the lower half computes, the upper half waits, and of the prompt half is not known */"+`
		const up = v => 242 - v / 12.72 * 234;
		result.parts = [pixel("speed-chart", x(20), up(2)), pixel("speed-chart", x(20), up(6)), pixel("speed-chart", x(20), up(10)), pixel("speed-chart", x(1), up(2))].join(" ");
		await act($("span-chart"), PointerEvent, "pointermove", 200 + 3 / 7 * width, 20);
		result.span = $("tip").textContent;
		const map = $("map"), place = (row, column) => [200 + (column + .5) / 4 * width, (row + .5) / 2 * 120];
		await act(map, PointerEvent, "pointermove", ...place(1, 1));
		result.expert = $("tip").textContent;
		$("map-order").value = "sorted"; $("map-order").onchange(); await drawn();
		await act(map, PointerEvent, "pointermove", ...place(1, 0));
		result.hottest = $("tip").textContent;
		let saved = [];
		HTMLAnchorElement.prototype.click = function () { saved.push(this.download + " " + decodeURIComponent(this.href)); };
		for (const b of document.querySelectorAll(".save")) b.click();
		result.saved = saved.map(s => s.split(" ")[0]).join();
		for (const s of saved) {
			const doc = new DOMParser().parseFromString(s.slice(s.indexOf("<svg")), "image/svg+xml");
			if (doc.querySelector("parsererror") || doc.querySelectorAll("text").length < 2 || !doc.querySelector("rect ~ rect, image")) result.broken = s;
		}
		await act(s, PointerEvent, "pointerleave", 0, 0);
		result.hidden = String($("tip").hidden);
		result.colours = [pixel("heat-map", x(20), 100), pixel("heat-map", x(30), 100), pixel("heat-map", x(5), 400), pixel("heat-map", x(30), 400)].join(" ");
		await act(s, WheelEvent, "wheel", x(20), 40, { deltaY: -100 });
		result.wheel = $("view").textContent;
		await act(s, KeyboardEvent, "keydown", 0, 0, { key: "ArrowRight" });
		result.right = $("view").textContent;
		await act(s, PointerEvent, "pointerdown", 500, 40);
		`+"/* dragging half of the width to the right shows what is half a view earlier */"+`
		s.setPointerCapture = () => {};
		await act(s, PointerEvent, "pointermove", 500 + width / 4, 40);
		await act(s, PointerEvent, "pointerup", 500 + width / 4, 40);
		result.dragged = $("view").textContent;
		await act(s, KeyboardEvent, "keydown", 0, 0, { key: "0" });
		result.again = $("view").textContent;
		const rows = () => Array.from(document.querySelectorAll("#table-0 tbody tr")).map(r => r.firstChild.textContent).join();
		const cells = () => Array.from(document.querySelectorAll("#table-0 tbody tr")).map(r => r.lastChild.textContent).join();
		result.rows = rows();
		const bytes = document.querySelectorAll("#table-0 th button")[1];
		bytes.click(); result.down = rows(); result.cells = cells();
		bytes.click(); result.up = rows();
		const filter = document.querySelector(".filter");
		filter.value = "BLK.1"; filter.dispatchEvent(new Event("input"));
		result.filtered = rows();
		result.scripts = String(document.scripts.length);
	`)
	expect(t, got, map[string]string{
		"title": planted().Title, "verdict": "Bound by the disk.", "notes": "op+io", "all": "all 40 steps",
		"speed": "step 12 (token 12), generation\nspeed: 13 tok/s", "unknown": "speed: not known",
		"hot": "blk.0\nstep 20 (token 20), generation\nfrom disk: about 4 KiB", "unseen": "from disk: not observed",
		"offset": "step 21 (token 21), generation\noffset ", "unread": "not read",
		"rate":   "step 20 (token 20), generation\nspeed: 8 tok/s (125 ms, at 20 s)\ncomputing: 50 %\nwaiting: 50 %",
		"prompt": "step 1 (token 1), prompt\nspeed: 1000 tok/s (1 s, at 1 s)\ncomputing: 50 %",
		"span":   "generation, 3 s to 8 s (5 s)\ntokens: 37",
		"expert": "layer 1, expert 1\nabout 25", "hottest": "layer 1, expert 3\nabout 75 %",
		"saved":   "speed-chart.svg,span-chart.svg,series-0.svg,heat-map.svg,offset-map.svg,map.svg",
		"classes": "0,0,255,255 255,0,0,255 255,255,255,255",
		"parts":   "0,0,255,255 255,0,0,255 0,0,0,0 0,0,255,255",
		"hidden":  "true", "wheel": "steps 4 to 36 of 40", "right": "steps 8 to 40 of 40",
		"dragged": "steps 0 to 32 of 40", "again": "all 40 steps",
		"rows": "blk.0.a,blk.1.b,blk.2.c,output", "down": "blk.1.b,blk.0.a,output,blk.2.c",
		"cells": "1 MiB,2 KiB,5 B,–", "up": "output,blk.0.a,blk.1.b,blk.2.c", "filtered": "blk.1.b", "scripts": "4",
	})
	if got["broken"] != "" || !strings.Contains(got["offset"], "backward; about 100 %") {
		t.Errorf("a saved chart is %.300q, the tooltip %q; want SVG, and the class", got["broken"], got["offset"])
	}
	colours := strings.Fields(got["colours"])
	if len(colours) != 4 {
		t.Fatalf("colours %q", colours)
	}
	// The greatest value, nothing, not observed, and the least value.
	for i, want := range []string{"0,34,78,255", "255,255,255,255", "220,220,228,255", "254,232,56,255"} {
		if colours[i] != want {
			t.Errorf("pixel %d is %s, want %s", i, colours[i], want)
		}
	}
}

// Steps that are alike look alike from afar, though each reads in a small part of its time only. From near, one sees
// when.
func TestAlike(t *testing.T) {
	const steps, parts = 400, 8
	r := &Report{Title: "alike", Steps: make([]Step, steps), Reads: &ReadMap{
		Size: 100, Classes: []Class{{"k", "#123456"}}, Columns: steps * parts, Rows: 4, StepsPerColumn: 1. / parts,
		Cell: func(column, _ int) (int, float64) {
			if column%parts == 3 {
				return 0, 1
			}
			return 0, 0
		},
	}}
	got := inBrowser(t, r, `
		await drawn();
		const colours = () => {
			const seen = new Set();
			for (let x = 210; x < 1000; x++) seen.add(pixel("offset-map", x, 100));
			return Array.from(seen).sort().join(" ");
		};
		result.far = colours();
		for (let i = 0; i < 14; i++) await act($("offset-map"), WheelEvent, "wheel", 700, 100, { deltaY: -100 });
		result.near = colours();
	`)
	if got["far"] != "18,52,86,255" || got["near"] != "18,52,86,255 255,255,255,255" {
		t.Errorf("colours from afar %q, from near %q; want one, and that of nothing beside it", got["far"], got["near"])
	}
}

// Light and dark follow the reader's system, until the button is pressed.
func TestDark(t *testing.T) {
	const steps = `
		await drawn();
		const paper = () => getComputedStyle(document.body).backgroundColor;
		result.first = paper();
		$("theme").click(); await drawn();
		result.second = paper();
		const m = $("heat-map"), x = 200 + 20.5 / 40 * (m.clientWidth - 210);
		result.most = pixel("heat-map", x, 100);
	`
	expect(t, inBrowser(t, planted(), steps), map[string]string{
		"first": "rgb(255, 255, 255)", "second": "rgb(22, 23, 27)", "most": "254,232,56,255",
	})
	expect(t, inBrowser(t, planted(), steps, "--blink-settings=preferredColorScheme=0"),
		map[string]string{"first": "rgb(22, 23, 27)", "second": "rgb(255, 255, 255)", "most": "0,34,78,255"})
}

// The page of an empty report has no error, nor has the largest page.
func TestExtremes(t *testing.T) {
	expect(t, inBrowser(t, &Report{Title: "nothing"}, `await drawn(); result.view = $("view").textContent;`),
		map[string]string{"view": "no steps"})
	const steps, tensors = 34_000, 300
	r := &Report{
		Title: "much", Steps: make([]Step, steps), Series: []Series{{"speed", "tok/s", make([]float64, steps)}},
	}
	rows := make([]Row, tensors)
	for i := range rows {
		rows[i] = Row{Name: "t", Weight: 1}
	}
	for range maxHeatmaps {
		r.Heat = append(r.Heat,
			Heatmap{Name: "h", Rows: rows, At: func(row, step int) float64 { return float64(row * step) }})
	}
	r.Reads = &ReadMap{
		Size: steps * tensors, Classes: []Class{{"k", "#123456"}}, Columns: 2000, Rows: 256, StepsPerColumn: 17,
		Cell: func(int, int) (int, float64) { return 0, 1 },
	}
	got := inBrowser(t, r, `
		await drawn();
		for (let i = 0; i < 12; i++) await act($("heat-map"), WheelEvent, "wheel", 700, 100, { deltaY: -100 });
		await act($("heat-map"), PointerEvent, "pointermove", 700, 200);
		result.view = $("view").textContent; result.tip = $("tip").textContent;
	`)
	expect(t, got, map[string]string{"view": " of 34000", "tip": "about "})
	if strings.HasPrefix(got["view"], "all") {
		t.Errorf("the view is %q after zooming, want a part of the steps", got["view"])
	}
}

package report

// This file opens pages in a real browser, and does in them what a reader does.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/internal/testenv"
)

// browser returns a command that opens a file in a browser without a window. The test is skipped where there is none.
func browser(t *testing.T, flags ...string) []string {
	t.Helper()
	profile, err := os.MkdirTemp("", "report-test")
	if err != nil {
		t.Fatal(err)
	}
	// Its processes end a little after the first one.
	t.Cleanup(func() { testenv.WaitFor(t, "the browser to end", func() bool { return os.RemoveAll(profile) == nil }) })
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return append([]string{path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + profile, "--enable-logging=stderr", "--window-size=1280,2400"}, flags...)
		}
	}
	t.Skip("no chromium here: apt-get install chromium")
	return nil
}

// before is put in front of the page's script: it gathers what goes wrong.
const before = `<script>
const wrong = [];
addEventListener("error", e => wrong.push("error: " + e.message));
addEventListener("unhandledrejection", e => wrong.push("rejected: " + e.reason));
addEventListener("securitypolicyviolation", e => wrong.push("policy: " + e.violatedDirective));
for (const name of ["error", "warn"]) console[name] = (...all) => wrong.push(name + ": " + all.join(" "));
</script>`

// after runs the steps of a test, and says what they return in the browser's log.
const after = `<script>
const $ = id => document.getElementById(id);
const drawn = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
const act = async (target, type, name, x, y, more) => {
  const r = target.getBoundingClientRect();
  target.dispatchEvent(new type(name, Object.assign({ bubbles: true, cancelable: true, clientX: r.left + x, clientY: r.top + y, pointerId: 1 }, more)));
  await drawn();
};
const pixel = (id, x, y) => { const c = $(id), k = c.width / c.clientWidth; return Array.from(c.getContext("2d").getImageData(x * k, y * k, 1, 1).data).join(); };
(async () => {
  const result = {};
  try { await (async () => { STEPS })(); } catch (e) { wrong.push("test: " + e.stack); }
  result.wrong = wrong;
  console.log("RESULT" + encodeURIComponent(JSON.stringify(result)) + "TLUSER");
})();
</script></body>`

// inBrowser opens a report's page, runs the steps of a test in it and returns what these left in result.
func inBrowser(t *testing.T, r *Report, steps string, flags ...string) map[string]string {
	t.Helper()
	command := browser(t, flags...)
	b := write(t, r)
	b = bytes.Replace(b, []byte("<body>"), []byte("<body>"+before), 1)
	at := bytes.LastIndex(b, []byte("</body>"))
	b = append(append(bytes.Clone(b[:at]), strings.Replace(after, "STEPS", steps, 1)...), b[at+len("</body>"):]...)
	path := filepath.Join(t.TempDir(), "index.html")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], "file://"+path)...)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it has many processes
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text string
	var said bytes.Buffer
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for text == "" && lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if _, rest, ok := strings.Cut(lines.Text(), "RESULT"); ok {
			text, _, _ = strings.Cut(rest, "TLUSER")
		}
	}
	cancel()
	_ = cmd.Wait()
	if text, err = url.PathUnescape(text); err != nil || text == "" {
		t.Fatalf("the page did not end the test: %v, %s", err, said.String())
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if wrong := got["wrong"].([]any); len(wrong) > 0 {
		t.Errorf("the browser says: %v", wrong)
	}
	texts := map[string]string{}
	for name, v := range got {
		if s, ok := v.(string); ok {
			texts[name] = s
		}
	}
	return texts
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
		await act($("offset-map"), PointerEvent, "pointermove", x(20), 160);
		result.offset = $("tip").textContent;
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
		"speed": "step 12 (token 12), generation\nspeed: 13 tok/s", "unknown": "speed: not known", "hot": "blk.0\nstep 20 (token 20), generation\nfrom disk: about 4 KiB", "unseen": "from disk: not observed",
		"offset": "offset ", "hidden": "true", "wheel": "steps 4 to 36 of 40", "right": "steps 8 to 40 of 40", "dragged": "steps 0 to 32 of 40", "again": "all 40 steps",
		"rows": "blk.0.a,blk.1.b,blk.2.c,output", "down": "blk.1.b,blk.0.a,output,blk.2.c", "cells": "1 MiB,2 KiB,5 B,–", "up": "output,blk.0.a,blk.1.b,blk.2.c", "filtered": "blk.1.b", "scripts": "4",
	})
	colours := strings.Fields(got["colours"])
	if len(colours) != 4 {
		t.Fatalf("colours %q", colours)
	}
	for i, want := range []string{"0,34,78,255", "255,255,255,255", "220,220,228,255", "254,232,56,255"} { // most, nothing, not observed, least
		if colours[i] != want {
			t.Errorf("pixel %d is %s, want %s", i, colours[i], want)
		}
	}
}

// Light and dark follow the reader's system, and the button.
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
	expect(t, inBrowser(t, planted(), steps), map[string]string{"first": "rgb(255, 255, 255)", "second": "rgb(22, 23, 27)", "most": "254,232,56,255"})
	expect(t, inBrowser(t, planted(), steps, "--blink-settings=preferredColorScheme=0"), map[string]string{"first": "rgb(22, 23, 27)", "second": "rgb(255, 255, 255)", "most": "0,34,78,255"})
}

// A report without anything is a page without an error; so is the largest one.
func TestExtremes(t *testing.T) {
	expect(t, inBrowser(t, &Report{Title: "nothing"}, `await drawn(); result.view = $("view").textContent;`), map[string]string{"view": "no steps"})
	const steps, tensors = 34_000, 300
	r := &Report{Title: "much", Steps: make([]Step, steps), Series: []Series{{"speed", "tok/s", make([]float64, steps)}}}
	rows := make([]Row, tensors)
	for i := range rows {
		rows[i] = Row{Name: "t", Weight: 1}
	}
	for range maxHeatmaps {
		r.Heat = append(r.Heat, Heatmap{Name: "h", Rows: rows, At: func(row, step int) float64 { return float64(row * step) }})
	}
	r.Offsets = &Offsets{Size: steps * tensors, Kinds: []string{"k"}, Count: steps * tensors, At: func(i int) Point { return Point{float64(i / tensors), float64(i), 1, 0} }}
	got := inBrowser(t, r, `
		await drawn();
		for (let i = 0; i < 12; i++) await act($("heat-map"), WheelEvent, "wheel", 700, 100, { deltaY: -100 });
		await act($("heat-map"), PointerEvent, "pointermove", 700, 200);
		result.view = $("view").textContent; result.tip = $("tip").textContent;
	`)
	expect(t, got, map[string]string{"view": " of 34000", "tip": "about "})
	if strings.HasPrefix(got["view"], "all") {
		t.Errorf("it has not zoomed: %q", got["view"])
	}
}

package main

// This file measures analyze on long captures.

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tensorcast/event"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// writeLong writes a capture of so many accesses: tokens of a model of 32 layers with nine tensors. Each
// reads half of what it needs from disk.
func writeLong(tb testing.TB, dir string, rows int) {
	tb.Helper()
	var structure []tables.StructureRow
	offset := int64(4096)
	add := func(name, component string, layer int32, size int64) {
		structure = append(structure, tables.StructureRow{
			Name: name, Component: component, Layer: layer, Offset: offset, Size: size, File: "long.gguf",
			Type: "Q8_0", Shape: []int64{size},
		})
		offset += size
	}
	for l := range int32(32) {
		for i, c := range []string{
			"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
		} {
			add(fmt.Sprintf("blk.%d.%s.weight", l, c), c+".weight", l, int64(1+i)<<20)
		}
	}
	add("output.weight", "output.weight", -1, 64<<20)
	meta := &tables.Meta{
		Detail: tables.DetailOpIO,
		Models: []tables.ModelInfo{{Path: "/long.gguf", Bytes: offset, Fingerprint: planted.Fingerprint}},
	}
	w, err := trace.Create(dir, meta, structure)
	if err != nil {
		tb.Fatal(err)
	}
	check := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	steps, now, n := rows/len(structure), int64(0), 0
	for step := range int32(steps) {
		phase := tables.PhaseGeneration
		if step == 0 {
			phase = tables.PhasePrompt
		}
		begin := now
		for i := range structure {
			s := &structure[i]
			n++
			check(w.Access(&tables.Access{
				Step: step, Token: step - 1, Phase: phase, Tensor: int32(i), Offset: s.Offset, Bytes: s.Size,
				Timestamp: now, Duration: s.Size / 10, Stall: int64(n % 7 * 1000), Op: "MUL_MAT",
			}))
			if n%8 == 0 {
				check(w.PageIn(&tables.PageInRow{
					Step: step, Tensor: int32(i), File: s.File, Offset: s.Offset, Bytes: s.Size / 2, Timestamp: now,
					Rereads: min(step, 65535), Cause: event.Cause(n % 3), Expert: -1,
				}))
			}
			now += s.Size / 10
		}
		check(w.Step(&tables.StepRow{Step: step, Phase: phase, Tokens: 1, Token: step - 1, Begin: begin, End: now}))
	}
	check(w.Close(meta, true))
}

// buildAnalyze builds the command.
func buildAnalyze(b *testing.B) (bin string) {
	b.Helper()
	bin = filepath.Join(b.TempDir(), "analyze")
	if out, err := exec.Command("go", "build", "-ldflags=-checklinkname=0", "-o", bin,
		".").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return bin
}

// BenchmarkAll runs the command as users do. It reports the seconds, and the greatest memory.
func BenchmarkAll(b *testing.B) {
	bin := buildAnalyze(b)
	for _, rows := range []int{1e6, 3e6, 10e6} {
		b.Run(fmt.Sprint(rows/1e6, "M"), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "capture")
			writeLong(b, dir, rows)
			for b.Loop() {
				c := exec.Command(bin, "--all", "-c", dir, "-o", filepath.Join(b.TempDir(), "out"))
				c.Stdout, c.Stderr = io.Discard, os.Stderr
				if err := c.Run(); err != nil {
					b.Fatal(err)
				}
				use := c.ProcessState.SysUsage().(*syscall.Rusage)
				b.ReportMetric(float64(use.Maxrss)/1024, "MiB")
				b.ReportMetric(float64(use.Utime.Nano()+use.Stime.Nano())/1e9, "cpu-s")
			}
		})
	}
}

// BenchmarkPage opens the page of a long capture in a browser. It reports how long it takes until the
// page is drawn, how long a tenfold zoom takes, and how large the page is.
func BenchmarkPage(b *testing.B) {
	bin, dir, out := buildAnalyze(b), filepath.Join(b.TempDir(), "capture"), b.TempDir()
	writeLong(b, dir, 10e6)
	c := exec.Command(bin, "report", "-c", dir, "-o", out)
	if said, err := c.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, said)
	}
	page, err := os.ReadFile(filepath.Join(out, pageFile))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		got := testenv.Browse(b, page, `
			await drawn();
			const loaded = performance.now();
			for (let i = 0; i < 10; i++) await act($("heat-map"), WheelEvent, "wheel", 700, 100, { deltaY: -100 });
			await act($("heat-map"), PointerEvent, "pointermove", 700, 200);
			result.loaded = String(loaded); result.zoomed = String(performance.now() - loaded);
			result.view = $("view").textContent; result.tip = $("tip").textContent;
		`)
		if !strings.Contains(got["view"], " of 34602") || strings.HasPrefix(got["view"], "all") ||
			!strings.Contains(got["tip"], "from disk: about ") {
			b.Fatalf("it has not zoomed: %q, %q", got["view"], got["tip"])
		}
		for name, unit := range map[string]string{"loaded": "ms-drawn", "zoomed": "ms-zoomed"} {
			ms, err := strconv.ParseFloat(got[name], 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ms, unit)
		}
	}
	b.ReportMetric(float64(len(page))/(1<<20), "page-MiB")
}

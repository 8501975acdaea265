package top

// This file compares frames with golden ones, which people have looked at.

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"

	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/monitor"
)

var update = flag.Bool("update", false, "rewrite the golden frames in testdata, and the recording in docs")

func TestMain(m *testing.M) {
	flag.Parse()
	time.Local = time.UTC // frames tell the time of day
	os.Exit(m.Run())
}

const mib = 1 << 20

// noon is when all scenes happen.
var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// dense is a prefetchd that helps a dense model of 764 MiB in a room of 670 MiB.
func dense() monitor.Report {
	d := prefetch.Detail{
		Usable: 670 * mib, Bound: "/box memory.max", Window: 48 * mib,
		Strip: &prefetch.Strip{Bytes: 770 * mib, Cell: 770 * mib / 250, At: 300 * mib},
		Happenings: []prefetch.Happening{
			{At: noon.Add(-4 * time.Minute), What: "compare: the reads of a token are known"},
			{At: noon.Add(-239 * time.Second), What: "stream: a token takes 800ms without help"},
			{At: noon.Add(-2 * time.Minute), What: "gave memory back: keeping 590 MiB in a room of 640 MiB (/box memory.max)"},
			{At: noon.Add(-30 * time.Second), What: "there is more room: 622 MiB are to be kept"},
		},
	}
	for i := range 250 {
		used, kept, ahead := byte(255), byte(255), byte(0)
		switch {
		case i < 3: // metadata and a table
			used, kept = 0, 0
		case i%8 == 7: // every eighth cell is streamed
			kept = byte(32 * (i % 3))
		}
		if i >= 97 && i < 113 && kept != 255 {
			ahead = 200
		}
		d.Strip.Used, d.Strip.Kept = append(d.Strip.Used, used), append(d.Strip.Kept, kept)
		d.Strip.Ahead = append(d.Strip.Ahead, ahead)
	}
	for i := range 125 { // 250 seconds: a token without help, then it gets faster; in between nothing for a while
		speed := 1.25
		if i > 5 {
			speed = 11.4 - 10*math.Exp(-float64(i-5)/6) + 0.6*math.Sin(float64(i)/3)
		}
		if i > 60 && i < 72 {
			speed = 0
		}
		d.Speeds = append(d.Speeds, float32(speed))
	}
	return monitor.Report{
		PID: 26801, Target: 26772, Command: "llama-server", Began: noon.Add(-5 * time.Minute),
		Models: []string{"/models/model-Q8_0.gguf"},
		Status: prefetch.Status{
			Activity: prefetch.Helping, LoopPhase: prefetch.Stream, Since: noon.Add(-239 * time.Second),
			Held: 600 * mib, Wanted: 622 * mib, PerToken: 764 * mib, Needs: 764 * mib, Room: 670 * mib,
			Level: "/box memory.max", Streamed: 164 * mib, Before: 1.25, Now: 11.4, Bound: 23.1, Disk: 2.9e9,
			Tokens: 2100, Decodes: 2110,
		},
		OwnRead: 1e9, TargetRead: 5e8, Detail: &d,
	}
}

// experts is a prefetchd that helps a mixture of 24 layers with 64 experts each.
func experts() monitor.Report {
	r := dense()
	r.PID, r.Target, r.Command = 30011, 30001, "llama-cli"
	r.Models = []string{"/models/very/deep/below/many/directories/whose/names/are/long/mixture-00001-of-00002.gguf",
		"/models/mixture-00002-of-00002.gguf"}
	s, d := &r.Status, r.Detail
	s.LoopPhase, s.Held, s.PerToken, s.Needs = prefetch.Mixture, 300*mib, 300*mib, 5300*mib
	s.Experts, s.Bound, s.Early, s.Room = 1400*mib, 0, 20*mib, 1800*mib
	d.Usable, d.Window = 1800*mib, 24*mib
	h := &mixture.Heat{Layers: 24, Experts: 64, Rows: 24, Columns: 64, All: 24 * 64, Chosen: 40000, Missed: 3500}
	for row := range h.Rows {
		for column := range h.Columns {
			use := byte(255 / (1 + (column*7+row*5)%h.Columns))
			kept := byte(0)
			if use > 12 {
				kept = 255
				h.Inside++
			}
			h.Use, h.Kept = append(h.Use, use), append(h.Kept, kept)
		}
	}
	d.Experts = h
	return r
}

// looks are surveys, one a second.
func looks(m *Model, surveys ...monitor.Survey) {
	for i, s := range surveys {
		m.Update(surveyed{s, noon.Add(time.Duration(i-len(surveys)+1) * time.Second), nil})
	}
}

// later is a report after a second in which so much was read from disk.
func later(r monitor.Report, help, faults int64) monitor.Report {
	r.OwnRead += help
	r.TargetRead += faults
	return r
}

func reports(all ...monitor.Report) monitor.Survey { return monitor.Survey{Reports: all} }

// scenes are models as somebody sees them, by name.
func scenes() map[string]func(m *Model) {
	idle := dense()
	idle.IdleSince = noon.Add(-13 * time.Second)
	fits := dense()
	fits.Status = prefetch.Status{
		Activity: prefetch.Idle, LoopPhase: prefetch.StandingOff, Since: noon.Add(-time.Hour), Needs: 764 * mib,
		Why:  "everything fits: 764 MiB of weights, room for 2.0 GiB (host)",
		Room: 2048 * mib, Level: "host",
	}
	fits.Detail = &prefetch.Detail{Usable: 2048 * mib, Bound: "host", Speeds: fits.Detail.Speeds}
	paused := fits
	paused.Paused = true
	paused.Status.Why = "help is paused: the target is left alone until somebody resumes it"
	unseen := *fits.Detail
	unseen.Speeds = append([]float32{}, unseen.Speeds...)
	for i := len(unseen.Speeds) - 20; i < len(unseen.Speeds); i++ {
		unseen.Speeds[i] = prefetch.NotSeen
	}
	paused.Detail = &unseen
	search := monitor.Report{PID: 812, Began: noon.Add(-time.Hour), Search: &monitor.Search{
		All: true, Helped: []monitor.Process{{PID: 26772, Name: "llama-server"}, {PID: 30001, Name: "llama-cli"}},
	}}
	return map[string]func(m *Model){
		"dense": func(m *Model) { looks(m, reports(dense()), reports(later(dense(), 1.9e9, 12e6))) },
		"mixture": func(m *Model) {
			looks(m, reports(experts()), reports(later(experts(), 3e8, 4e6)))
		},
		"idle": func(m *Model) { looks(m, reports(idle), reports(idle)) },
		"died": func(m *Model) {
			looks(m, reports(dense()), reports(later(dense(), 1.9e9, 12e6)), monitor.Survey{Left: []int{26772}})
		},
		"several": func(m *Model) {
			looks(m, reports(dense(), experts(), search), reports(later(dense(), 1e9, 0), experts(), search))
			m.selectNeighbour(1)
		},
		"fits":    func(m *Model) { looks(m, reports(fits), reports(fits)) },
		"paused":  func(m *Model) { looks(m, reports(paused), reports(later(paused, 0, 9e7))) },
		"nobody":  func(m *Model) { looks(m, reports()) },
		"explain": func(m *Model) { looks(m, reports(dense())); m.explains = true },
	}
}

// Frames look as they did when people looked at them: in both widths, with colours and without.
func TestFrames(t *testing.T) {
	for name, see := range scenes() {
		for _, terminal := range []struct{ width, height int }{{80, 24}, {120, 40}} {
			m := New(nil, terminal.width, terminal.height)
			see(m)
			frame := m.Frame()
			for i, line := range strings.Split(frame, "\n") {
				if w := ansi.StringWidth(line); w > terminal.width {
					t.Errorf("%s: line %d has %d columns, want at most %d", name, i+1, w, terminal.width)
				}
			}
			if n := strings.Count(frame, "\n") + 1; n != terminal.height {
				t.Errorf("%s: %d lines, want %d", name, n, terminal.height)
			}
			for profile, ending := range map[colorprofile.Profile]string{
				colorprofile.NoTTY: "txt", colorprofile.ANSI: "ansi",
			} {
				compareGolden(t, fmt.Sprintf("%s-%d.%s", name, terminal.width, ending), show(t, frame, profile))
			}
			if text := show(t, frame, colorprofile.ASCII); ansi.Strip(text) != show(t, frame, colorprofile.NoTTY) {
				t.Errorf("%s: with NO_COLOR the text differs", name)
			}
		}
	}
}

// show is what a terminal with a profile shows of a text.
func show(t *testing.T, text string, profile colorprofile.Profile) string {
	t.Helper()
	var out strings.Builder
	w := colorprofile.Writer{Forward: &out, Profile: profile}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// compareGolden compares a text with a file in testdata.
func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	got += "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; if that is meant, look at it and run the test with -update:\n%s", name, got)
	}
}

// What is printed for a pipe has all prefetchds, as text of at most 80 columns.
func TestOnce(t *testing.T) {
	m := New(nil, 80, 0)
	scenes()["several"](m)
	compareGolden(t, "once.txt", show(t, strings.TrimSuffix(m.Once(), "\n"), colorprofile.NoTTY))
	if text := New(nil, 80, 0).Once(); !strings.Contains(text, "no prefetchd") {
		t.Errorf("without a prefetchd: %q", text)
	}
}

// Each size of a terminal has a frame that fits it.
func TestSizes(t *testing.T) {
	for name, see := range scenes() {
		for _, width := range []int{1, 10, 39, 79, 80, 81, 200, 500} {
			for _, height := range []int{1, 2, 5, 10, 17, 23, 50, 200} {
				m := New(nil, width, height)
				see(m)
				lines := strings.Split(m.Frame(), "\n")
				if len(lines) > height {
					t.Errorf("%s in %d x %d: %d lines", name, width, height, len(lines))
				}
				for _, line := range lines {
					if w := ansi.StringWidth(line); w > width {
						t.Errorf("%s in %d x %d: a line of %d columns", name, width, height, w)
					}
				}
			}
		}
	}
}

// A chart's columns are means over their time, so that what happens rarely is neither lost nor drawn too large.
func TestResample(t *testing.T) {
	speeds := make([]float32, 150)
	for i := range speeds {
		speeds[i] = float32(i % 2 * 2)
	}
	for _, columns := range []int{30, 50, 75, 71, 150, 300} {
		var sum float64
		for _, v := range resample(speeds, 150, columns) {
			sum += v / float64(columns)
		}
		if math.Abs(sum-1) > 1e-6 {
			t.Errorf("%d columns have a mean of %v, want 1", columns, sum)
		}
	}
	half := resample(speeds[:75], 150, 10)
	for i, v := range half {
		if (i < 5) != math.IsNaN(v) {
			t.Errorf("column %d of a chart that is known by half is %v", i, v)
		}
	}
	for i, v := range resample([]float32{1, prefetch.NotSeen, prefetch.NotSeen, 1}, 4, 2) {
		if v != 1 {
			t.Errorf("column %d is %v where half of the time was not observed, want 1", i, v)
		}
	}
	for _, v := range resample([]float32{float32(math.Inf(1)), -5, float32(math.NaN())}, 3, 3) {
		if v != 0 {
			t.Errorf("a speed that cannot be is drawn as %v, want 0", v)
		}
	}
}

// Cells of a strip are means, too.
func TestSpread(t *testing.T) {
	cells := make([]byte, 250)
	cells[100] = 255
	for _, columns := range []int{1, 7, 71, 250, 400} {
		var sum float64
		for _, v := range spread(cells, columns) {
			sum += v * 250 / float64(columns)
		}
		if math.Abs(sum-1) > 1e-6 {
			t.Errorf("%d columns have %v cells, want 1", columns, sum)
		}
	}
}

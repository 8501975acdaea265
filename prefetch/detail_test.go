package prefetch_test

// This file tests in virtual time what a picture of the help is made of, and that a target can be left alone.

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// sumOf is how many bytes the cells of a strip have of something, within the precision of a share.
func sumOf(s *prefetch.Strip, shares []byte) (bytes float64) {
	for i, share := range shares {
		bytes += float64(share) / 255 * float64(min(s.Cell, s.Bytes-int64(i)*s.Cell))
	}
	return bytes
}

// near says whether a number is another one, within what the rounding of a strip's cells takes away.
func near(s *prefetch.Strip, got float64, want int64) bool {
	rounding := float64(s.Bytes) / 255
	return got > float64(want)-rounding && got < float64(want)+rounding
}

// A strip has as many bytes as the status says, and the target's place. Speeds and phases are told.
func TestDetail(t *testing.T) {
	r := newSettledRig(t, 0.7, prefetch.Options{}, nil)
	r.run(40)
	var within prefetch.Detail
	r.At(100*time.Millisecond, func() { within = r.Detail() })
	r.run(4)
	if err := r.Sleep(100 * time.Millisecond); err != nil { // the last decode's end is told
		t.Fatal(err)
	}
	status, d := r.Status(), r.Detail()
	s := d.Strip
	if s == nil || s.Bytes < r.cycle.Bytes() || len(s.Used) > 256 || len(s.Kept) != len(s.Used) ||
		len(s.Ahead) != len(s.Used) {
		t.Fatalf("strip %+v of a model of %d bytes", s, r.cycle.Bytes())
	}
	if !near(s, sumOf(s, s.Used), status.PerToken) || !near(s, sumOf(s, s.Kept), status.Held) || status.Held == 0 {
		t.Errorf("the strip has %.0f bytes used and %.0f kept, want %d and %d",
			sumOf(s, s.Used), sumOf(s, s.Kept), status.PerToken, status.Held)
	}
	if ahead := sumOf(s, s.Ahead); ahead > float64(d.Window)+float64(s.Bytes)/255 {
		t.Errorf("%.0f bytes were read ahead, want at most the window of %d", ahead, d.Window)
	}
	if s.At != -1 || within.Strip == nil || within.Strip.At < 0 || within.Strip.At >= s.Bytes {
		t.Errorf("between tokens the target is at %d, within one %+v, want -1 and a place", s.At, within.Strip)
	}
	if d.Usable <= 0 || d.Bound == "" || d.Budget != 0 || d.Experts != nil {
		t.Errorf("%+v, want a room, who bounds it, no budget and no experts", d)
	}
	if len(d.Speeds) == 0 || float64(d.Speeds[len(d.Speeds)-1]) < status.Now/2 {
		t.Errorf("speeds %v, want the last near %.1f", d.Speeds, status.Now)
	}
	var phases []string
	for _, h := range d.Happenings {
		name, _, _ := strings.Cut(h.What, ":")
		phases = append(phases, name)
	}
	if got := strings.Join(phases, " "); !strings.HasPrefix(got, "compare stream") {
		t.Errorf("happenings %q, want compare and stream first", got)
	}
	text, err := json.Marshal(d)
	if err != nil || len(text) > 8<<10 {
		t.Errorf("%d bytes of JSON, %v, want at most 8 KiB", len(text), err)
	}
}

// Of a mixture the strip has the experts, too, and there is a picture of them.
func TestDetailOfMixture(t *testing.T) {
	r, _ := runSettledMixture(t, 200*mib, skewed, prefetch.Options{}, nil)
	status, d := r.Status(), r.Detail()
	s, h := d.Strip, d.Experts
	if s == nil || h == nil {
		t.Fatalf("strip %v, experts %v, want both", s, h)
	}
	if !near(s, sumOf(s, s.Kept), status.Held+status.Experts) || !near(s, sumOf(s, s.Used), mixShared+mixRouted) {
		t.Errorf("the strip has %.0f bytes used and %.0f kept, want %d and %d",
			sumOf(s, s.Used), sumOf(s, s.Kept), mixShared+mixRouted, status.Held+status.Experts)
	}
	if h.Layers != mixLayers || h.Experts != mixExperts || h.All != mixLayers*mixExperts ||
		int64(h.Inside)*mixExpert != status.Experts || h.Chosen == 0 || h.Missed >= h.Chosen {
		t.Errorf("experts %+v, want %d bytes in memory of %d x %d", h, status.Experts, mixLayers, mixExperts)
	}
}

// A target that is to be left alone gets no help until it is to be helped again. Then that goes on as before. It is so
// in each phase.
func TestLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		share float64
		after int // tokens
		phase prefetch.Phase
	}{
		"learning":       {0.7, 0, prefetch.Learn},
		"helping":        {0.7, 16, prefetch.Stream},
		"nothing to win": {1.5, 5, prefetch.StandingOff},
	} {
		t.Run(name, func(t *testing.T) {
			paused := false
			r := newRig(t, tc.share, prefetch.Options{Paused: func() bool { return paused }}, nil)
			if tc.after > 0 {
				if _, err := r.Run(1, r.cycle, tc.after); err != nil && tc.phase != prefetch.StandingOff {
					t.Fatal(err)
				}
			}
			if s := r.Status(); s.LoopPhase != tc.phase {
				t.Fatalf("%s before the pause, want %s", s.LoopPhase, tc.phase)
			}
			if paused = tc.after > 0; !paused { // then within the first token, when the file is known
				r.At(50*time.Millisecond, func() { paused = true })
			}
			if again, err := r.Look(); tc.phase == prefetch.StandingOff && (!again || err != nil) {
				t.Fatalf("Look with a pause: %v, %v, want what is done besides to end", again, err)
			}
			r.Attach(r.Controller)
			expectPause(t, r)
			read := r.Summary().Streamed
			r.Attach(nil)
			r.run(5)
			if again, err := r.Look(); again || err != nil {
				t.Errorf("Look = %v, %v while it is paused, want false", again, err)
			}
			if s := r.Summary(); s.Streamed != read || s.Pinned != 0 {
				t.Errorf("while it is paused %d bytes were read and %d are held, want none", s.Streamed-read, s.Pinned)
			}
			paused = false
			if again, err := r.Look(); !again || err != nil {
				t.Fatalf("Look = %v, %v after the pause, want true", again, err)
			}
			if tc.phase == prefetch.StandingOff {
				return
			}
			r.Attach(r.Controller)
			r.run(16)
			if s := r.Status(); s.LoopPhase != prefetch.Stream || s.Held == 0 {
				t.Errorf("after the pause %v with %d bytes held, want help", s, s.Held)
			}
		})
	}
}

// expectPause runs tokens of a target that is to be left alone, and wants the controller to say so, once.
func expectPause(t *testing.T, r *rig) {
	t.Helper()
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 3); !errors.As(err, &stood) || stood.Reason != prefetch.Paused {
		t.Fatalf("%v, want a stand back (%v)", err, prefetch.Paused)
	}
	s := r.Status()
	if s.Activity != prefetch.Idle || s.Held != 0 || !strings.Contains(s.String(), "paused") {
		t.Errorf("%v with %d bytes held, want it to be paused", s, s.Held)
	}
	last := r.Detail().Happenings
	if what := last[len(last)-1].What; !strings.Contains(what, "paused") {
		t.Errorf("the last happening is %q, want the pause", what)
	}
	for range 3 { // events that come nevertheless change nothing
		if err := r.Tick(); err != nil {
			t.Errorf("a tick: %v", err)
		}
	}
}

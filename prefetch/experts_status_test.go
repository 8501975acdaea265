package prefetch_test

// This file tests in virtual time what status and summary say of experts.

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/proc"
	"tensorcast/prefetch"
	"tensorcast/prefetch/pages"
)

// The summary still has what was done for experts when help has ended. What is done afterwards is added.
func TestExpertsInSummary(t *testing.T) {
	const limit = 200 * mib
	r, _ := runSettledMixture(t, limit, skewed, prefetch.Options{}, nil)
	first := *r.Summary().Experts
	text := fmt.Sprintf(" and %s of experts", humanize.IBytes(uint64(first.Kept)))
	if s := r.Status(); s.Experts != first.Kept || first.Kept == 0 || !strings.Contains(s.String(), text) {
		t.Errorf("status %q with %d bytes of experts, want %q in it, and %d", s, s.Experts, text, first.Kept)
	}
	r.SetLimit(2 * (mixShared + mixRouted))
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 30); !errors.As(err, &stood) || stood.Reason != prefetch.Fits {
		t.Fatal(err)
	}
	if s := r.Status(); s.Experts != 0 {
		t.Errorf("after a stand back: a status with %d bytes of experts, want 0", s.Experts)
	}
	between := *r.Summary().Experts
	if between.Kept != 0 || between.Chosen < first.Chosen || between.Read < first.Read ||
		between.Missed < first.Missed || between.All != first.All {
		t.Errorf("after a stand back: %+v, want nothing kept, and no less of the rest than %+v", between, first)
	}
	r.SetLimit(limit)
	if again, err := r.Look(); !again || err != nil {
		t.Fatalf("Look with the limit of before = %v, %v, want true", again, err)
	}
	r.Attach(r.Controller)
	r.run(40)
	if last := r.Summary().Experts; last.Kept == 0 || last.Chosen <= between.Chosen || last.Read <= between.Read ||
		last.Missed <= between.Missed || last.Strays < between.Strays {
		t.Errorf("with help again: %+v, want something kept, and more of the rest than %+v", last, between)
	}
}

// The status says how much is read for predictions, if anything is.
func TestPredictionsInStatus(t *testing.T) {
	s := prefetch.Status{Activity: prefetch.Helping, Experts: mib, Streamed: 2 * mib, Now: 5}
	if text := s.String(); strings.Contains(text, "guess") {
		t.Errorf("status %q, want no guesses in it", text)
	}
	s.Early = 3 * mib
	want := "5.00 tok/s; keeping 0 B of 0 B and 1.0 MiB of experts, streaming 2.0 MiB/token, guessing 3.0 MiB/token"
	if text := s.String(); !strings.Contains(text, want) {
		t.Errorf("status %q, want %q in it", text, want)
	}
}

// A dry run says how much room there is for experts. It expects no speed, because that depends on routers.
func TestDryExperts(t *testing.T) {
	const limit = 200 * mib
	opts := prefetch.Options{Always: true, Dry: func(proc.Place, []pages.Range) (float64, error) { return 1e9, nil }}
	r := newMixtureRig(t, limit, skewed, opts, nil)
	_, err := r.Run(1, r.cycle, 3)
	s := r.Summary()
	if want := int64(limit - mixShared - mixMargin); !errors.Is(err, prefetch.ErrPlanned) ||
		s.Expected != 0 || s.Pinned < mixShared ||
		s.Experts == nil || s.Experts.Room < want*3/4 || s.Experts.Room > want || s.Experts.Chosen != 0 {
		t.Errorf("%v, want %v; %+v, want %d bytes held, and no speed; experts %+v, want room for about %d, none chosen",
			err, prefetch.ErrPlanned, s, mixShared, s.Experts, want)
	}
}

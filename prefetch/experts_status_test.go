package prefetch_test

// This file tests what is told of experts, in virtual time.

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

// What was done for experts is told when the help has ended, too, and what is done afterwards is added.
func TestExpertsTold(t *testing.T) {
	const limit = 200 * mib
	r, _ := mixHelp(t, limit, skewed, prefetch.Options{}, nil)
	first := *r.Summary().Experts
	if s := r.Status(); s.Experts != first.Kept || first.Kept == 0 || !strings.Contains(s.String(), fmt.Sprintf(" and %s of experts", humanize.IBytes(uint64(first.Kept)))) {
		t.Errorf("%q, of %d bytes of experts", s, first.Kept)
	}
	r.SetLimit(2 * (mixTrunk + mixRouted))
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 30); !errors.As(err, &stood) || stood.Reason != prefetch.Fits {
		t.Fatal(err)
	}
	if s := r.Status(); s.Experts != 0 {
		t.Errorf("%+v", s)
	}
	between := *r.Summary().Experts
	if between.Kept != 0 || between.Chosen < first.Chosen || between.Read < first.Read || between.Missed < first.Missed || between.All != first.All {
		t.Errorf("%+v, before %+v", between, first)
	}
	r.SetLimit(limit)
	if again, err := r.Look(); !again || err != nil {
		t.Fatal(again, err)
	}
	r.Attach(r.Controller)
	r.run(40)
	if last := r.Summary().Experts; last.Kept == 0 || last.Chosen <= between.Chosen || last.Read <= between.Read || last.Missed <= between.Missed || last.Strays < between.Strays {
		t.Errorf("%+v, before %+v", last, between)
	}
}

// What is read for guesses is told, if anything is.
func TestGuessesTold(t *testing.T) {
	s := prefetch.Status{Activity: prefetch.Helping, Experts: mib, Streamed: 2 * mib, Now: 5}
	if text := s.String(); strings.Contains(text, "guess") {
		t.Errorf("%q", text)
	}
	s.Early = 3 * mib
	if text := s.String(); !strings.Contains(text, "streaming 2.0 MiB/token, guessing 3.0 MiB/token, 5.00 tok/s") {
		t.Errorf("%q", text)
	}
}

// A dry run says how much room there is for experts, and expects nothing: that depends on routers.
func TestDryExperts(t *testing.T) {
	const limit = 200 * mib
	opts := prefetch.Options{Always: true, Dry: func(proc.Place, []pages.Range) (float64, error) { return 1e9, nil }}
	r := mixRig(t, limit, skewed, opts, nil)
	_, err := r.Run(1, r.cycle, 3)
	s := r.Summary()
	if want := int64(limit - mixTrunk - mixMargin); !errors.Is(err, prefetch.ErrPlanned) || s.Expected != 0 || s.Pinned < mixTrunk || s.Experts == nil || s.Experts.Room < want*3/4 || s.Experts.Room > want || s.Experts.Chosen != 0 {
		t.Errorf("%v; %+v; experts %+v, room for %d", err, s, s.Experts, want)
	}
}

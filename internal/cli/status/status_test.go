package status

// This file tests rates and the line.

import (
	"bytes"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64, tokens int, events uint64) Sample {
		return Sample{Time: start.Add(time.Duration(seconds * float64(time.Second))), Tokens: tokens, Events: events}
	}
	cases := map[string]struct {
		samples []Sample
		want    Rates
	}{
		"one sample has no rate": {[]Sample{at(0, 10, 100)}, Rates{}},
		"two":                    {[]Sample{at(0, 10, 100), at(2, 30, 1100)}, Rates{10, 500}},
		"the same moment":        {[]Sample{at(0, 10, 100), at(0, 30, 1100)}, Rates{}},
		"the window moves on":    {[]Sample{at(0, 0, 0), at(1, 100, 1000), at(6, 110, 1050)}, Rates{2, 10}},
		"a long gap is averaged": {[]Sample{at(0, 0, 0), at(100, 50, 1000)}, Rates{0.5, 10}},
		"idle": {
			[]Sample{at(0, 0, 0), at(1, 100, 1000), at(6, 100, 1000), at(11, 100, 1000)}, Rates{0, 0},
		},
		"between the window's edges": {[]Sample{at(0, 0, 0), at(4, 40, 0), at(7, 40, 0)}, Rates{40.0 / 7, 0}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var m Meter
			var got Rates
			for _, s := range tc.samples {
				got = m.Add(s)
			}
			if math.Abs(got.Tokens-tc.want.Tokens) > 1e-9 || math.Abs(got.Events-tc.want.Events) > 1e-9 {
				t.Errorf("rates %v, want %v", got, tc.want)
			}
		})
	}
}

// A Meter does not keep the samples of hours.
func TestMeterForgets(t *testing.T) {
	var m Meter
	for i := range 10000 {
		m.Add(Sample{Time: time.Unix(int64(i), 0)})
	}
	if len(m.samples) > 10 {
		t.Errorf("%d samples are kept, want at most 10", len(m.samples))
	}
}

func TestText(t *testing.T) {
	got := Text("generation", Sample{Tokens: 1234, Lost: 5}, Rates{18.26, 56789.4})
	if want := "generation  18.3 tok/s  1,234 tokens  56,789 events/s  5 lost"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLine(t *testing.T) {
	var b bytes.Buffer
	l := NewLine(&b, func() int { return 9 })
	l.Show("0123456789abcdef")
	l.Close()
	got := b.String()
	if want := "\r\x1b[K01234567\r\r\x1b[K"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}

	b.Reset()
	NewLine(&b, func() int { return 9 }).Close()
	if b.Len() != 0 {
		t.Errorf("a line that showed nothing wrote %q, want nothing", b.String())
	}
}

// Other output replaces the line instead of following it.
func TestLineGivesWay(t *testing.T) {
	var b bytes.Buffer
	l := NewLine(&b, func() int { return 80 })
	l.Show("status")
	l.Close()
	b.Reset()
	l.mu.Lock()
	l.shown = true
	l.mu.Unlock()
	for range 2 {
		if n, err := l.Write([]byte("warning\n")); n != 8 || err != nil {
			t.Errorf("wrote %d bytes (%v), want 8", n, err)
		}
	}
	if got, want := b.String(), "\r\x1b[Kwarning\nwarning\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// Messages cannot control the terminal.
func TestLineShowsMessages(t *testing.T) {
	var b bytes.Buffer
	l := NewLine(&b, func() int { return 80 })
	defer l.Close()
	if n, err := l.Write([]byte("read \x1b[2J: no\n")); n != 14 || err != nil || b.String() != "read \\x1b[2J: no\n" {
		t.Errorf("%q, %d bytes, %v; want the message visible, 14", &b, n, err)
	}
}

// stopped is a terminal that blocks writers until its mutex is unlocked.
type stopped struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *stopped) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

func TestLineNeverWaits(t *testing.T) {
	var s stopped
	s.mu.Lock()
	l := NewLine(&s, func() int { return 80 })
	for range 1000 {
		l.Show("old")
	}
	l.Show("new") // would block here if Show waited for the terminal
	s.mu.Unlock()
	l.Close()
	if got := s.String(); !strings.Contains(got, "new") || strings.Count(got, "old") > 1 {
		t.Errorf("wrote %q, want new, and old at most once", got)
	}
}

package prefetch_test

// This file tests the words for what is done.

import (
	"testing"

	"tensorcast/prefetch"
)

// Speeds have three digits at most. A target that generates no tokens, but reads prompts, is told as such.
func TestSpeed(t *testing.T) {
	for want, s := range map[string]prefetch.Status{
		"":                               {Before: 2},
		"5.20 tok/s":                     {Now: 5.2, Tokens: 3, Decodes: 4},
		"12.3 tok/s, 0.68 before":        {Now: 12.345, Before: 0.678, Tokens: 3, Decodes: 4},
		"235 prompt tok/s, 104 before":   {Now: 234.6, Before: 104.2, Decodes: 4},
		"8.00 prompt tok/s":              {Now: 8, Tokens: 2, Decodes: 12},
		"9.99 tok/s, 10.0 before":        {Now: 9.994, Before: 9.996, Tokens: 1},
		"1234 prompt tok/s, 99.9 before": {Now: 1234.4, Before: 99.94, Decodes: 1},
		"0.00 tok/s, 100 before":         {Now: 0.001, Before: 99.96},
	} {
		if got := s.Speed(); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}

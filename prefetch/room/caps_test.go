package room

// This file tests which bound applies to whom.

import (
	"strings"
	"testing"
)

func TestCaps(t *testing.T) {
	var caps Caps
	for _, text := range []string{
		"ollama.service=30%", "llama-server=600B", "*-70B-*.gguf=200B", "/models/small/*=100B", "a=b=50B",
	} {
		c, err := ParseCap(text)
		if err != nil || c.String() != text && c.String() != strings.TrimSuffix(text, "B")+" B" {
			t.Fatalf("%q: %q, %v", text, c, err)
		}
		caps = append(caps, c)
	}
	for _, tc := range []struct {
		names, models string
		want          int64
	}{
		{"", "", 0},
		{"other", "/models/x.gguf", 0},
		{"ollama.service", "", 300},
		{"ollama.service llama-server", "", 300},
		{"llama-server", "/m/Llama-70B-Q4.gguf", 200},
		{"llama-server", "/m/x.gguf /m/Llama-70B-Q4.gguf", 200},
		{"", "/models/small/a.gguf", 100},
		{"", "/proc/12/root/models/small/a.gguf", 100},
		{"", "/models/small/deep/a.gguf", 0},
		{"a=b", "", 50},
	} {
		isNamed := func(name string) bool {
			for _, n := range strings.Fields(tc.names) {
				if n == name {
					return true
				}
			}
			return false
		}
		if got := caps.Of(1000, isNamed, strings.Fields(tc.models)); got != tc.want {
			t.Errorf("%q with %q: %d, want %d", tc.names, tc.models, got, tc.want)
		}
	}
	for _, text := range []string{"", "x", "=1GB", "x=", "x=12", "x=much", "[=1GB", "x=0%"} {
		if c, err := ParseCap(text); err == nil {
			t.Errorf("%q: %v, want an error", text, c)
		}
	}
}

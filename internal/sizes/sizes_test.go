package sizes

// This file tests sizes and shares: what is read, what is refused, and that what is written is read as the same.

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"600MB": 600e6, "2GiB": 2 << 30, "2 GiB": 2 << 30, "12B": 12, "4096B": 4096, "500KB": 500e3, " 1GB\n": 1e9,
		"1048576": 1 << 20, "1.5GB": 1.5e9, "2000000": 2e6,
	} {
		if got, err := Parse(text); got != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "want a size", "much": "want a size", "-3": "want a size", "0": "want a size", "0GB": "want a size",
		"20EB": "want a size", "60%": "want a size", "12": "12 bytes: write the unit, as in 12MiB or 12GiB",
		"1": "write the unit", "4096": "write the unit", "1048575": "write the unit", "1.5": "as in 1.5MiB or 1.5GiB",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v; want an error with %q", text, got, err, want)
		}
	}
}

func TestAmount(t *testing.T) {
	for text, want := range map[string]int64{"60%": 600, "0.01%": 1, "100 %": 1000, "12B": 12, "1GB": 1e9} {
		if a, err := ParseAmount(text); err != nil || a.Of(1000) != want || a.IsShare() != strings.Contains(text, "%") {
			t.Errorf("%q: %v, %v; want %d of 1000", text, a, err, want)
		}
	}
	for _, text := range []string{"", "0%", "-1%", "101%", "NaN%", "Inf%", "%", "12", "much", "6%0"} {
		if a, err := ParseAmount(text); err == nil {
			t.Errorf("%q: %v, want an error", text, a)
		}
	}
	if (Amount{}).Of(1000) != 0 || (Amount{}).String() != "" {
		t.Error("the zero value is some amount")
	}
}

// What is written is read as the same number, with and without a unit that is exact.
func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{
		2 << 30: "2.0 GiB", 600000001: "600000001B", 64 << 20: "64 MiB", 1: "1 B", 600e6: "600 MB", 1<<62 + 1: "",
	} {
		text := Format(n)
		if again, err := Parse(text); err != nil || again != n || want != "" && text != want {
			t.Errorf("%d is written as %q (want %q), and read as %d, %v", n, text, want, again, err)
		}
	}
}

func FuzzAmount(f *testing.F) {
	for _, text := range []string{"60%", "2GiB", "12", "1e3%", "1,024 MiB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAmount(text)
		if err != nil {
			return
		}
		if again, err := ParseAmount(a.String()); err != nil || again != a {
			t.Errorf("%q is written as %q, and read as %v, %v", text, a, again, err)
		}
		if n := a.Of(1 << 34); n <= 0 {
			t.Errorf("%q is %d bytes", text, n)
		}
	})
}

package proc

// This file tests quoting with a real shell.

import (
	"os/exec"
	"testing"
)

// A shell reads what was quoted.
func TestQuote(t *testing.T) {
	out, err := exec.Command("/bin/sh", "-c", `printf '%s|' `+Quote("a b", "", "it's $HOME", "*\n\\")).Output()
	if want := "a b||it's $HOME|*\n\\|"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
	if got := Quote(); got != "" {
		t.Errorf("Quote() = %q, want nothing", got)
	}
}
